"""What a notebook or a prompt shows of results is text that people can read."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

import tacit

SPEC = """
streams: {s: {subject: who, time: at}}
windows: {size: 1 min}
events: {a: {stream: s, where: "kind = 'a'"}}
private: [{pattern: a, epsilon: 1}]
queries: [{name: q, consumer: x, pattern: a}]
"""


@pytest.fixture(scope="module")
def frame() -> pl.DataFrame:
    return pl.DataFrame({"who": ["x", "x", None], "at": [0, 70, 75], "kind": ["a", "b", "a"]})


def test_results_show_what_was_refused(frame: pl.DataFrame) -> None:
    found = tacit.detect(tacit.loads(SPEC), frame)
    told = "refused, for the operator only: 1 tuple, no subject"
    assert told in repr(found)
    assert told in found._repr_html_()
    assert "refused" not in repr(tacit.detect(tacit.loads(SPEC), frame.head(2)))


def test_explanations_audits_curves_and_other_reports_print_as_text(frame: pl.DataFrame) -> None:
    spec, history = tacit.loads(SPEC), frame.head(2)
    plan = tacit.plan(spec, history)
    for shown in (
        tacit.explain(spec), tacit.audit(plan), tacit.curve(spec, history), tacit.doctor(spec),
        tacit.leaks(spec, history), tacit.attack(spec, history, plan=plan),
    ):  # fmt: skip
        assert repr(shown) == str(shown)
        assert "(" + type(shown).__name__ not in repr(shown)
        assert len(repr(shown).splitlines()) > 2


def test_text_or_a_dictionary_in_place_of_a_specification_gives_a_hint(
    frame: pl.DataFrame,
) -> None:
    wrong: list[Any] = [SPEC, {"streams": {}}]
    for given in wrong:
        with pytest.raises(tacit.TacitError, match=r"tacit\.loads reads one"):
            tacit.detect(given, frame)
