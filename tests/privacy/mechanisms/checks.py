"""The checks that every mechanism must pass; `test_checks` runs them all over the list.

A check takes the name of a mechanism. Where outputs are finite it enumerates them: nothing about
privacy is sampled.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import pytest

from tacit.connectors.frames import FrameSource
from tacit.engines.local import survey
from tacit.errors import PlanError, PrivacyError
from tacit.insight.audit import audit
from tacit.insight.explain import explain
from tacit.pipeline.reader import Input
from tacit.pipeline.run import Run
from tacit.planning.plan import Plan
from tacit.planning.planner import make_plan
from tacit.privacy.mechanisms import load
from tacit.privacy.mechanisms.mechanism import Mechanism
from tacit.privacy.noise import Noise
from tacit.privacy.randomness import SeededSource
from tacit.privacy.statistics import Statistics
from tacit.spec.mechanisms import MECHANISMS
from tacit.spec.specification import Specification
from tacit.spec.yaml_reader import loads
from tests.privacy import streams
from tests.privacy.enumeration import within
from tests.privacy.test_exhausted import both, limited, limits_reached
from tests.privacy.worlds import all_cases, by_hand, furthest, specification, survey_history

GUARANTEE: Final = Path(__file__).parents[3] / "docs" / "guarantee.md"
DECODES: Final = ("literal", "posterior")
SMALL: Final = specification(
    [("SEQ(a, b)", "1"), ("b", "0.5")],
    ["SEQ(a, s)", "AND(a, NOT b)", "OR(SEQ(s, b), a)", "s"],
    types="abs",
)
SLIDING: Final = (
    streams.sliding([("a", "1")], ["a", "AND(a, s)"], panes=2, types="as"),
    streams.sliding([("AND(a, b)", "1.3")], ["a", "OR(a, b)"], panes=2, types="ab"),
)
PRESENCE: Final = """
version: 1
subjects: [{subjects}]
streams: {{s: {{subject: who, time: at, unit: us}}}}
windows: {{size: 10 us}}
events:
  a: {{stream: s, where: "kind = 0"}}
  b: {{stream: s, where: "kind = 1"}}
  x: {{stream: s, where: "kind = 2"}}
  y: {{stream: s, where: "kind = 3"}}
private:
  - {{pattern: "AND(x, y)", epsilon: 2.5, limit: 1000 per day}}
  - {{pattern: y, epsilon: 1.5}}
queries:
  - {{name: plain, consumer: c, pattern: "AND(a, b)"}}
  - {{name: there, consumer: c, pattern: "AND(a, x)"}}
  - {{name: either, consumer: c, pattern: "OR(AND(b, y), AND(a, NOT x))"}}
"""
SUBJECTS, WINDOWS = 120, 50


def check_its_docstring_says_what_it_guarantees_and_where_that_is_proved(name: str) -> None:
    """As every mechanism's docstring must; the proof is a heading of the guarantee's page."""
    said = inspect.getdoc(load(name)) or ""
    for part in ("Guarantee: ", "Neighbours: ", "Why: ", "Spends: ", "Paper: ", "Proof: "):
        assert re.search(f"^{part}", said, re.MULTILINE), f"{name} does not say {part!r}"
    anchor = re.search(r"^Proof: docs/guarantee\.md#(\S+)$", said, re.MULTILINE)
    assert anchor is not None
    assert anchor[1] in _anchors(GUARANTEE.read_text("utf-8"))


def check_its_entry_agrees_with_its_class(name: str) -> None:
    """What commands show without loading it must be true."""
    kind = load(name)
    assert issubclass(kind, Mechanism)
    assert kind.name == name
    assert kind.draws_panes == (MECHANISMS[name].randomises == "elements")
    spec = _chosen(SMALL, name)
    assert MECHANISMS[name].summary.removesuffix(".") in _flat(str(explain(spec)))


def check_no_output_tells_neighbours_apart_by_more_than_epsilon(name: str) -> None:
    """All windows of a small specification, all draws, in both decodings; the audit knows it."""
    cases = all_cases(SMALL)
    # A history of all windows, so that every context is in the plan, and so in its audit.
    statistics = survey_history(SMALL, cases.windows, range(len(cases.windows)))
    for decode in DECODES:
        plan = make_plan(SMALL, statistics, name, decode)
        found = furthest(SMALL, plan, cases)
        told = {pattern.name: pattern for pattern in audit(plan).policies[0].patterns}
        assert found.keys() == told.keys()
        assert any(ratio != 1 for _, ratio in found.values())  # something private is answered
        for pattern, (epsilon, ratio) in found.items():
            assert within(ratio, epsilon)
            whole = told[pattern].whole
            assert whole is not None
            assert within(ratio, whole)  # the audit does not say less than there is


def check_past_a_limit_nothing_tells_neighbours_apart(name: str) -> None:
    """The same where a limit is reached: epsilon is 0 there, exactly."""
    spec = limited(SMALL)
    for decode in DECODES:
        plan = make_plan(spec, by_hand(spec, {}), name, decode)
        with limits_reached():
            found = furthest(spec, plan, both(all_cases(spec)))
        assert all(within(ratio, epsilon) for epsilon, ratio in found.values())
        assert {ratio for epsilon, ratio in found.values() if not epsilon} == {1}


def check_sliding_windows_give_away_epsilon_for_an_occurrence(name: str) -> None:
    """All streams of two panes, all occurrences, all draws."""
    for spec in SLIDING:
        for decode in DECODES:
            plan = streams.by_hand(spec, name, decode)
            assert not streams.broken(spec, plan, 2)


def check_a_window_costs_what_the_audit_finds(name: str) -> None:
    """What is charged is what an occurrence can give away, and never more than was granted."""
    for spec in (SMALL, *SLIDING):
        for share in (Fraction(1), Fraction(1, 2)):
            statistics = streams.statistics_by_hand(spec)
            plan = make_plan(spec, statistics, name, share=share)
            for private, found in zip(spec.private, audit(plan).policies[0].patterns, strict=True):
                granted = Fraction(private.epsilon) * share
                assert found.passed
                assert found.granted == granted
                assert found.whole is not None
                assert found.whole <= granted
                assert plan.spent_per_window(private) * found.draws == granted


def check_a_plan_file_gives_the_same_mechanism(name: str) -> None:
    """To the last bit of its answers; and a plan with more epsilon than is granted is refused."""
    spec = _presence()
    for decode in DECODES:
        plan = make_plan(spec, _history(), name, decode)
        plain = json.loads(json.dumps(plan.to_dict()))
        again = Plan.from_dict(plain, spec)
        assert again.to_dict() == plan.to_dict()
        assert _answers(again) == _answers(plan)
        with pytest.raises((PlanError, PrivacyError)):
            Plan.from_dict({**plain, "share": "0.9"}, spec)
        for other in {load(each).kind for each in MECHANISMS} - {load(name).kind} | {"open", "x"}:
            damaged: list[dict[str, Any]] = [{**part, "kind": other} for part in plain["schemes"]]
            with pytest.raises(PlanError):
                Plan.from_dict({**plain, "schemes": damaged}, spec)


def check_answers_are_as_good_and_as_sure_as_the_plan_says(name: str) -> None:
    """On windows like those of history: counts as expected, confidence as often right as it says.

    Bounds are five standard errors wide; an epsilon of a quarter is outside of them.
    """
    spec = _presence()
    true = np.concatenate([part.detected for part in Run(spec, _inputs(2))])
    for decode in DECODES:
        plan = make_plan(spec, _history(), name, decode)
        parts = list(Run(spec, _inputs(2), plan=plan, noise=Noise(SeededSource(3))))
        said = np.concatenate([part.detected for part in parts])
        sure = np.stack(
            [np.concatenate([part.confidence(q) for part in parts]) for q in range(3)], axis=1
        )
        assert (said[:, 0] == true[:, 0]).all()  # nothing private is asked there
        assert (sure[:, 0] == 1).all()
        for query in (1, 2):
            right = said[:, query] == true[:, query]
            error = 5 * np.sqrt((sure[:, query] * (1 - sure[:, query])).sum()) / right.size
            assert abs(right.mean() - sure[:, query].mean()) < error + 0.01
        total = true.shape[0] * true.shape[2]
        found = (true & said).sum(), (~true & said).sum()
        weak = make_plan(spec, _history(), name, decode, Fraction(1, 4)).expected
        assert plan.expected is not None
        assert weak is not None
        counts = plan.expected.confusion.total()
        for got, expected in zip(found, (counts.tp, counts.fp), strict=True):
            assert abs(got - expected) < 5 * total**0.5
        assert weak.quality < plan.expected.quality - 0.02
        right, missed = found[0] / true.sum(), found[1]
        precision = found[0] / max(1, found[0] + missed)
        assert abs((right + precision) / 2 - plan.expected.quality) < 0.02


CHECKS: Final[tuple[Callable[[str], None], ...]] = (
    check_its_docstring_says_what_it_guarantees_and_where_that_is_proved,
    check_its_entry_agrees_with_its_class,
    check_no_output_tells_neighbours_apart_by_more_than_epsilon,
    check_past_a_limit_nothing_tells_neighbours_apart,
    check_sliding_windows_give_away_epsilon_for_an_occurrence,
    check_a_window_costs_what_the_audit_finds,
    check_a_plan_file_gives_the_same_mechanism,
    check_answers_are_as_good_and_as_sure_as_the_plan_says,
)


def _anchors(page: str) -> set[str]:
    """The anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in headings}


def _flat(text: str) -> str:
    return " ".join(text.split())


def _chosen(spec: Specification, name: str) -> Specification:
    return spec.model_copy(update={"mechanism": name})


@cache
def _presence() -> Specification:
    return loads(PRESENCE.format(subjects=", ".join(f'"{n}"' for n in range(SUBJECTS))))


@cache
def _frame(seed: int) -> pl.DataFrame:
    """Windows in which events are there or not, some more often than others."""
    rng = np.random.default_rng(seed)
    there = rng.random((WINDOWS, SUBJECTS, 4)) < np.array([0.6, 0.4, 0.5, 0.3])
    window, subject, kind = np.nonzero(there)
    return pl.DataFrame(
        {
            "who": [str(number) for number in subject],
            "at": 10 * window + rng.integers(0, 10, len(window)),
            "kind": kind,
        }
    ).sort("at")


def _inputs(seed: int) -> list[Input]:
    return [Input("s", FrameSource(_frame(seed), "s"))]


@cache
def _history() -> tuple[Statistics, ...]:
    return tuple(survey(_presence(), _inputs(1), literal=True))


def _answers(plan: Plan) -> list[tuple[bytes, bytes]]:
    return [
        (part.bits.tobytes(), np.stack([part.confidence(q) for q in range(3)]).tobytes())
        for part in Run(_presence(), _inputs(2), plan=plan, noise=Noise(SeededSource(5)))
    ]
