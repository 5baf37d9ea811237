"""Results draw themselves: `plot()` returns a figure, and `plot(path)` writes it too."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import tacit
from tacit.errors import MissingExtraError, OptionError, PlanError
from tacit.planning.limits import LimitCurve

SPEC = """
streams: {s: {subject: who, time: at}}
windows: {size: 1 min}
events:
  a: {stream: s, where: "kind = 'a'"}
  b: {stream: s, where: "kind = 'b'"}
private: [{pattern: a, epsilon: 2, limit: 20 per hour}]
queries:
  - {name: both, consumer: us, pattern: "AND(a, b)"}
  - {name: other, consumer: us, pattern: b}
memory: true
"""


def draw(subjects: int, windows: int = 120, seed: int = 1) -> pl.DataFrame:
    """Tuples at random."""
    there = np.random.default_rng(seed).random((subjects, windows, 2)) < [0.4, 0.6]
    who, window, kind = np.nonzero(there)
    rows = {"who": who, "at": 60 * window, "kind": np.array(["a", "b"])[kind]}
    return pl.DataFrame(rows).sort("at")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One of everything that has a picture."""
    spec, history = tacit.loads(SPEC), draw(4)
    place = tmp_path_factory.mktemp("pictures") / "spent.db"
    plan = tacit.plan(spec, history)
    return {
        "plan": plan,
        "true answers": tacit.detect(spec, history),
        "answers": tacit.run(spec, history, plan=plan, ledger=place),
        "curve": tacit.curve(spec, history),
        "limit curve": tacit.limit_curve(spec, history),
        "statement": tacit.show_ledger(place),
        "statement of a subject": tacit.show_ledger(place, subject="0"),
        "leaks": tacit.leaks(spec, history),
        "attack": tacit.attack(spec, history, plan=plan, period="1 h"),
    }


NAMES = (
    "plan", "true answers", "answers", "curve", "limit curve", "statement",
    "statement of a subject", "leaks", "attack",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_results_have_a_picture_for_files_and_notebooks(
    results: dict[str, Any], name: str, tmp_path: Path
) -> None:
    figure = results[name].plot(tmp_path / "picture.svg")
    assert (tmp_path / "picture.svg").read_text().startswith("<?xml")
    assert figure.axes
    data, size = figure._repr_png_()
    assert data.startswith(b"\x89PNG")
    assert size["width"] == round(72 * figure.get_size_inches()[0])


@pytest.mark.parametrize("name", NAMES)
def test_without_matplotlib_every_picture_names_the_extra(
    results: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'tacit\[plot\]'"):
        results[name].plot()


def test_a_plan_shows_what_it_expects_worst_first(results: dict[str, Any]) -> None:
    plan = results["plan"]
    (axes,) = plan.plot().axes
    rows = sorted(plan.expected.rows(), key=lambda row: -row["quality"])
    assert [label.get_text() for label in axes.get_yticklabels()] == [row["query"] for row in rows]
    drawn = {part.get_label(): part.get_offsets()[:, 0].tolist() for part in axes.collections}
    assert drawn["quality Q"] == pytest.approx([row["quality"] for row in rows])
    past = {row["query"]: row["quality"] for row in plan.past.rows()}
    assert drawn["Q once a limit is reached"] == pytest.approx([past[row["query"]] for row in rows])


def test_answers_about_few_subjects_are_drawn_one_by_one(results: dict[str, Any]) -> None:
    answers = results["true answers"]
    first = answers.plot().axes[0]
    cells = np.asarray(first.collections[0].get_array()).reshape(4, 120)
    for subject, window in ((0, 0), (3, 50), (2, 119)):
        row = answers.wide().filter(subject=str(subject))["both"][window]
        assert cells[subject, window] == float(row)
    assert first.get_title(loc="left") == f"both: {answers.counts()['both']} yes of 480 answers"


def test_protected_answers_show_their_confidence(results: dict[str, Any]) -> None:
    answers = results["answers"]
    first = answers.plot().axes[0]
    frame = answers.polars().filter(pl.col("query") == "both", pl.col("subject") == "1")
    detected, sure = frame["detected"][7], frame["confidence"][7]
    cells = np.asarray(first.collections[0].get_array()).reshape(4, -1)
    assert cells[1, 7] == pytest.approx(sure if detected else 1 - sure)
    assert "sure on average" in first.get_title(loc="left")


def test_answers_about_many_subjects_are_drawn_as_shares() -> None:
    answers = tacit.detect(tacit.loads(SPEC), draw(30, 10))
    (line,) = answers.plot().axes[0].lines
    means = answers.wide().group_by("window_start").agg(pl.col("both").mean()).sort("window_start")
    assert np.asarray(line.get_ydata()) == pytest.approx(means["both"].to_numpy())


def test_a_limit_curve_has_a_line_for_each_query_and_for_all(results: dict[str, Any]) -> None:
    curve = results["limit curve"]
    (axes,) = curve.plot().axes
    lines = {line.get_label(): line.get_ydata() for line in axes.get_lines()}
    assert list(lines) == ["both", "other", "all queries"]
    assert lines["all queries"] == pytest.approx([one.expected.quality for one in curve])


@pytest.mark.parametrize(
    ("make", "error", "reason"),
    [
        (lambda spec: tacit.plan(spec, prior={"a": 0.4}), PlanError, "made without history"),
        (lambda spec: tacit.detect(spec, draw(1, 1).clear()), OptionError, "no answers"),
        (lambda _: LimitCurve(), PlanError, "no points"),
    ],
)
def test_what_has_no_picture_says_why(
    make: Callable[[tacit.Specification], Any], error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=f"nothing to plot: .*{reason}"):
        make(tacit.loads(SPEC)).plot()
