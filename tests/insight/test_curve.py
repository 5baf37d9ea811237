"""Quality against epsilon: the planner's own figures, drawn."""

from __future__ import annotations

import json
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from tacit.engines.local import open_inputs, survey
from tacit.errors import MissingExtraError, PlanError, SinkError
from tacit.insight.curve import EPSILONS, Curve, Point, compute_curve
from tacit.planning.planner import make_plan
from tacit.spec.epsilon import Limit
from tacit.spec.mechanisms import MECHANISMS
from tacit.spec.specification import Specification
from tests.insight.test_audit import ONE, history, written

FEW = (Fraction(1, 2), Fraction(2), Fraction(8))


def made(spec: Specification, epsilons: tuple[Fraction, ...] = FEW) -> Curve:
    """A curve for a specification from random history."""
    statistics = survey(spec, open_inputs(spec, [history()], {}), literal=False)
    return compute_curve(spec, statistics, epsilons=epsilons)


@pytest.fixture(scope="module")
def drawn() -> Curve:
    """A curve to look at."""
    return made(written({"AND(a, b)": "1"}, ONE))


def test_points_are_what_the_planner_expects(drawn: Curve) -> None:
    spec = written({"AND(a, b)": "1"}, ONE)
    statistics = survey(spec, open_inputs(spec, [history()], {}), literal=False)
    assert len(drawn.points) == 4 * 3
    for point in drawn.points:
        expected = make_plan(spec, statistics, point.mechanism, share=point.epsilon).expected
        assert expected is not None
        assert point.quality == pytest.approx(expected.quality)
        assert list(point.queries) == list(ONE)


def test_the_specifications_own_epsilon_is_among_them(drawn: Curve) -> None:
    for mechanism in MECHANISMS:
        epsilons = [point.epsilon for point in drawn.of(mechanism)]
        assert epsilons == [Fraction(1, 2), 1, 2, 8]


def test_more_epsilon_is_never_worse_by_much(drawn: Curve) -> None:
    for mechanism in MECHANISMS:
        quality = [point.quality for point in drawn.of(mechanism)]
        assert quality[-1] > quality[0]
        assert quality[-1] > 0.97


def test_epsilons_keep_their_proportions() -> None:
    """The largest one is told, and named where they differ."""
    few = made(written({"AND(a, b)": "2", "d": "0.5"}, ONE), (Fraction(4),))
    assert few.declared == 2
    assert "epsilon of AND(a, b)" in few.unit
    assert {point.epsilon for point in few.points} == {2, 4}


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", ["curve.svg", "curve.png", "curve.pdf", "CURVE.SVG"])
def test_pictures_are_drawn_and_the_same_each_time(drawn: Curve, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    drawn.plot(path)
    first = path.read_bytes()
    drawn.plot(path)
    assert path.read_bytes() == first
    begins = {"png": b"\x89PNG", "pdf": b"%PDF"}.get(name[-3:], b"<?xml")
    assert first.startswith(begins)


def test_a_picture_names_every_line_and_the_unit(drawn: Curve, tmp_path: Path) -> None:
    drawn.plot(tmp_path / "curve.svg")
    text = (tmp_path / "curve.svg").read_text()
    for words in (*MECHANISMS, "one subject, one private pattern, one window", "quality Q"):
        assert words in text


def test_names_of_lines_that_end_together_do_not_overlap() -> None:
    points = [Point(m, Fraction(e), 0.5, {}) for m in MECHANISMS for e in (1, 10)]
    figure = Curve({"p": Fraction(1)}, "posterior", 9, tuple(points)).plot()
    figure.draw_without_rendering()
    axes = figure.axes[0]
    boxes = [t.get_window_extent() for t in axes.texts if t.get_text() in MECHANISMS]
    assert len(boxes) == 3
    for place, box in enumerate(boxes):
        assert all(not box.overlaps(other) for other in boxes[place + 1 :])


def test_without_matplotlib_it_says_what_to_install(
    drawn: Curve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'tacit\[plot\]'"):
        drawn.plot(tmp_path / "curve.svg")


def test_what_cannot_be_drawn_or_written_is_refused(drawn: Curve, tmp_path: Path) -> None:
    with pytest.raises(SinkError, match=r"\.svg, \.png or \.pdf"):
        drawn.plot(tmp_path / "curve.gif")
    with pytest.raises(SinkError, match="cannot be written"):
        drawn.plot(tmp_path / "no" / "curve.svg")


def test_a_curve_needs_history_and_something_private() -> None:
    with pytest.raises(PlanError, match="windows of history"):
        compute_curve(written({"a": "1"}, ONE), [])
    nothing = written({"a": "1"}, ONE).model_copy(update={"private": ()})
    with pytest.raises(PlanError, match="private patterns"):
        made(nothing)


def test_text_html_and_plain_data_tell_the_same(drawn: Curve) -> None:
    plain = json.loads(json.dumps(drawn.to_dict()))
    best = plain["points"][-1]
    assert best["epsilon"] == "8"
    assert f"{best['quality']:.3f}" in str(drawn).splitlines()[-1]
    assert f"<td>{best['quality']:.3f}</td>" in drawn._repr_html_()
    assert list(EPSILONS) == sorted(EPSILONS)


def test_a_curve_leaves_limits_out() -> None:
    spec = written({"AND(a, b)": "1"}, ONE)
    limit = Limit.model_validate("2 per day")
    private = tuple(one.model_copy(update={"limit": limit}) for one in spec.private)
    limited = spec.model_copy(update={"private": private})
    few = (Fraction(1),)
    assert made(limited, few).points == made(spec, few).points
