"""The joint guarantee, end to end and exact: all answers of real runs, all neighbours, all draws.

Nothing is sampled: `enumeration` runs the pipeline once for every outcome of its draws.
`test_mutants` plants mistakes, and the same check has to find each of them.
"""

from __future__ import annotations

import os
from random import Random

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from tacit.insight.audit import audit
from tacit.patterns.reference import Tuple
from tacit.patterns.tree import elements
from tacit.planning.plan import Plan
from tacit.planning.planner import make_plan
from tacit.privacy.mechanisms.optimal.mechanism import Optimal
from tacit.privacy.noise import Noise
from tacit.privacy.randomness import SeededSource
from tacit.spec.specification import Specification
from tests.privacy.enumeration import (
    ScriptedNoise,
    TooManyOutcomesError,
    enumerated,
    released,
    within,
)
from tests.privacy.worlds import (
    SUBJECTS,
    all_cases,
    broken,
    by_hand,
    furthest,
    neighbours,
    planned,
    policy_of,
    random_cases,
    random_specification,
    random_window,
    served_by_book,
    slots_of,
    specification,
)

# The larger sweep: TACIT_SWEEP=50 tries 50 times as many specifications.
SWEEP = int(os.environ.get("TACIT_SWEEP", "1"))

mechanisms = pytest.mark.parametrize("mechanism", ["uniform", "adaptive", "optimal"])
decoders = pytest.mark.parametrize("decode", ["literal", "posterior"])
ways = pytest.mark.parametrize(
    ("mechanism", "decode"),
    [
        ("uniform", "literal"),
        ("adaptive", "posterior"),
        ("optimal", "literal"),
        ("optimal", "posterior"),
    ],
)
"""Everything that draws and everything that decodes; `uniform` and `adaptive` draw alike."""
each_draw = pytest.mark.parametrize(
    ("mechanism", "decode"), [("adaptive", "literal"), ("optimal", "posterior")]
)
"""Each way to draw once, where decoding is not the point: flips of elements, and channels."""
specifications = pytest.mark.parametrize(
    "spec",
    [
        pytest.param(
            specification(
                [("SEQ(a, b)", "1"), ("OR(a, NOT c)", "0.5")],
                ["SEQ(a, b)", "OR(a, NOT c)", "AND(SEQ(a, b), s)"],
            ),
            id="queries that are private patterns",
        ),
        pytest.param(
            specification([("AND(a, b)", "1")], ["SEQ(s, t)", "NOT s", "SEQ(s, NOT t)"]),
            id="queries that touch nothing private",
        ),
        pytest.param(
            specification([("a", "0.1"), ("AND(b, c)", "1")], ["AND(b, s)", "c", "SEQ(s, t)"]),
            id="a private pattern that no query touches",
        ),
        pytest.param(
            specification(
                [("AND(a, b)", "2"), ("SEQ(b, c)", "0.3"), ("c{2,}", "1")],
                ["AND(a, b)", "OR(b, c)", "SEQ(b, s)", "SEQ(c, NOT b, c)"],
            ),
            id="overlapping patterns with different epsilon",
        ),
        pytest.param(
            specification(
                [("AND(a, b)", "1"), ("AND(c, d)", "0.5")],
                ["AND(a, c)", "NOT OR(SEQ(s, b), SEQ(d, s))", "OR(AND(a, b), d, s)"],
                types="abcdst",
            ),
            id="queries that split over two components",
        ),
        pytest.param(
            specification(
                [("AND(a, b)", "1"), ("AND(c, d)", "0.5")],
                ["AND(a, c)", "SEQ(b, d)", "AND(OR(a, d), OR(b, c))"],
                types="abcdst",
            ),
            id="queries that merge two components",
        ),
        pytest.param(
            specification([("a", "1"), ("b", "0.5")], ["SEQ(a, b)", "SEQ(b, NOT a, s)", "a"]),
            id="order across components",
        ),
        pytest.param(
            specification(
                [("a", "1"), ("AND(a, b)", "0.5", "x"), ("c", "2", "y")],
                ["a", "AND(a, b)", "SEQ(b, s)", "SEQ(c, s)"],
            ),
            id="private for some subjects only",
        ),
        pytest.param(
            specification(
                [("AND(a, b, c, d, e, f, g)", "3"), ("AND(a, g)", "0.5")],
                ["OR(AND(a, b, c, d, e, f, g), s)", "OR(SEQ(s, a), AND(b, c, d, e, f, g))", "g"],
                types="abcdefgst",
            ),
            id="more than 6 variables",
        ),
        pytest.param(
            specification(
                [("AND(a, b, c, d)", "2"), ("AND(d, b)", "1")],
                ["AND(a, s)", "b", "c", "OR(d, AND(a, b))", "SEQ(d, s)"],
                types="abcdst",
            ),
            id="more answers than one channel holds",
        ),
        pytest.param(
            specification(
                [("AND(a, b)", "1"), ("SEQ(b, c)", "0.5")],
                [
                    "SEQ(a x, s y) WHERE y.v > x.v",
                    "SEQ(s x, t y) WHERE y.v >= x.v",
                    "NOT (AND(b x, s y) WHERE x.w = y.w OR y.v > 1)",
                    "SEQ(c, NOT (a x WHERE x.v > 0), t)",
                    "AND(a, s)",
                ],
                streams="qpqpq",
            ),
            id="conditions across streams",
        ),
        pytest.param(
            specification(
                [("AND(a, b)", "1"), ("c", "0.5")],
                ["SEQ(s, a)", "AND(b, c)", "SEQ(c x, t y) WHERE y.v > 0", "SEQ(s, t)"],
                types=[*(f"other{number}" for number in range(62)), *"satbc"],
            ),
            id="types beyond the first 64",
        ),
        pytest.param(
            specification(
                [("SEQ(a, b) WITHIN 1 us", "1"), ("(c x WHERE x.v > 0){2}", "4")],
                [
                    "SEQ(a, s) WITHIN 1 us",
                    "SEQ(s+, c{2,}) WITHIN 2 us",
                    "SEQ(NOT b, s, NOT c)",
                    "a",
                ],
                size=4,
            ),
            id="repetition and spans",
        ),
    ],
)


def plain(spec: Specification, mechanism: str, decode: str) -> Plan:
    """A plan for events that are as likely as not: then answers tell most."""
    return make_plan(spec, by_hand(spec, {}), mechanism, decode)


@ways
@settings(max_examples=10 * SWEEP, derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_no_outcome_tells_neighbours_apart_by_more_than_epsilon(
    mechanism: str, decode: str, seed: int
) -> None:
    spec = random_specification(Random(seed))
    plan = planned(spec, mechanism, decode, seed)
    try:
        assert not broken(spec, plan, random_cases(seed, spec))
    except TooManyOutcomesError:
        reject()


@specifications
@ways
def test_special_cases_are_no_exception(spec: Specification, mechanism: str, decode: str) -> None:
    found = furthest(spec, plain(spec, mechanism, decode), random_cases(0, spec))
    assert all(within(ratio, epsilon) for epsilon, ratio in found.values())
    private = frozenset().union(*map(elements, spec.private_patterns))
    asked = frozenset().union(*map(elements, spec.query_patterns.values()))
    # Where something is asked, something is told: the windows are not all alike.
    assert any(ratio != 1 for _, ratio in found.values()) == bool(private & asked)


@ways
def test_all_windows_of_all_neighbours_of_a_small_specification(
    mechanism: str, decode: str
) -> None:
    queries = ["SEQ(a, s)", "AND(a, NOT b)", "SEQ(b x, s y) WHERE y.v > x.v", "OR(SEQ(s, b), a)"]
    spec = specification([("SEQ(a, b)", "1"), ("b", "0.5")], queries, types="abs")
    cases = all_cases(spec)
    assert len(cases.windows) == 64
    found = furthest(spec, plain(spec, mechanism, decode), cases)
    assert all(ratio != 1 and within(ratio, epsilon) for epsilon, ratio in found.values())


def test_epsilon_is_not_wasted_either() -> None:
    """The check is sharp: where a mechanism spends all of epsilon, the ratio shows it."""
    spec = specification([("AND(a, b)", "1")], ["a", "b", "AND(a, b)"], types="abs")
    for mechanism in ("uniform", "optimal"):
        plan = plain(spec, mechanism, "posterior")
        ((epsilon, ratio),) = furthest(spec, plan, all_cases(spec)).values()
        assert ratio is not None
        assert 0.999999 * np.exp(float(epsilon)) < float(ratio) <= np.exp(float(epsilon))


def small(spec: Specification) -> Specification:
    """The same for a subject of either sort."""
    few = SUBJECTS[:2]
    private = tuple(
        one
        if one.subjects is None
        else one.model_copy(update={"subjects": tuple(s for s in one.subjects if s in few)})
        for one in spec.private
    )
    return spec.model_copy(update={"subjects": few, "private": private})


@pytest.mark.filterwarnings("ignore::tacit.errors.RefusedInputWarning")
@ways
@settings(max_examples=3 * SWEEP, derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_other_windows_and_subjects_do_not_notice(mechanism: str, decode: str, seed: int) -> None:
    rng = Random(seed)
    spec = small(random_specification(rng))
    plan = planned(spec, mechanism, decode, seed)
    types = list(spec.events)
    around = [random_window(rng, spec, types) for _ in range(3)] + [[]]
    rng.shuffle(around)
    place, last = rng.randrange(4), rng.random() < 0.5
    for pattern in policy_of(spec, place % 2).patterns:
        seen = []
        for window in neighbours(rng, spec, around[place], pattern.elements, 4):
            sent = [window if number == place else around[number] for number in range(4)]
            noise = ScriptedNoise(np.empty((4, 0), np.int64), 2, last=last)
            rows = released(spec, plan, sent, np.arange(4), noise)
            assert (rows.detected >= 0).all()  # those who were silent have rows too
            others = [number for number in range(4) if number != place]
            seen.append([(noise.trace(number), rows.outcome(number)) for number in others])
        assert all(found == seen[0] for found in seen)


@ways
def test_a_window_is_released_alike_wherever_it_stands(mechanism: str, decode: str) -> None:
    queries = ["SEQ(a, s)", "AND(a, b)", "SEQ(s, t)", "SEQ(b x, s y) WHERE y.v > x.v"]
    spec = specification([("AND(a, b)", "1"), ("b", "2", "x")], queries)
    plan, few = plain(spec, mechanism, decode), plain(small(spec), mechanism, decode)
    rng = Random(4)
    windows = [random_window(rng, spec, "abst") for _ in range(3)]
    for sort, slot in (("x", 0), ("y", 1)):
        among = enumerated(spec, plan, windows, [slots_of(sort)] * 3)
        for number, window in enumerate(windows):
            alone = enumerated(small(spec), few, [window], [(slot,)])
            assert among.shares(number) == alone.shares(0)


@ways
def test_real_draws_come_as_often_as_enumerated(mechanism: str, decode: str) -> None:
    spec = specification(
        [("AND(a, b)", "1"), ("c", "0.5", "x")],
        ["SEQ(a, s)", "AND(b, s)", "OR(c, AND(a, b))", "SEQ(c x, s y) WHERE y.v > 0"],
    )
    plan = plain(spec, mechanism, decode)
    window = [Tuple(0, frozenset("s"), {"v": 1.0}), Tuple(1, frozenset("sa"), {"v": 2.0})]
    number = 500
    laid = np.zeros(number * len(SUBJECTS), np.int64)
    rows = released(spec, plan, [window], laid, Noise(SeededSource(5)))
    for sort in ("x", "y"):
        slots = slots_of(sort)
        found = enumerated(spec, plan, [window], [slots])
        drawn = [
            rows.outcome(place * len(SUBJECTS) + slot) for place in range(number) for slot in slots
        ]
        assert len(found.likely[0]) > 1
        assert set(drawn) <= found.likely[0].keys()
        for outcome, share in found.shares(0).items():
            spread = 5 * float(share * (1 - share) / len(drawn)) ** 0.5
            assert abs(drawn.count(outcome) / len(drawn) - share) <= spread


BOOKS = {
    "all variables in one block": specification(
        [("AND(a, b)", "2"), ("SEQ(b, c)", "0.3")],
        ["AND(a, s)", "OR(b, AND(c, t))", "SEQ(b, s)", "AND(a, b, c)"],
    ),
    "a pattern over several blocks": specification(
        [("AND(a, b, c, d, e, f, g)", "3"), ("AND(a, g)", "0.5")],
        ["a", "AND(b, s)", "OR(c, AND(d, s))", "e", "OR(f, SEQ(g, s))"],
        types="abcdefgs",
    ),
    "two components": specification(
        [("AND(a, b)", "1"), ("AND(c, d)", "0.5")],
        ["AND(a, c)", "NOT OR(SEQ(s, b), SEQ(d, s))", "OR(AND(a, b), d, s)"],
        types="abcdst",
    ),
}


@pytest.mark.parametrize("name", BOOKS)
@decoders
def test_a_book_of_channels_keeps_the_joint_guarantee(name: str, decode: str) -> None:
    """In the real pipeline, where no context has channels of its own."""
    spec = BOOKS[name]
    with served_by_book():
        plan = plain(spec, "optimal", decode)
        (scheme,) = plan.mechanisms
        assert isinstance(scheme, Optimal)
        assert not any(scheme.planned)
        blocks = max(len(book.blocks) for book in scheme.books)
        assert (blocks > 1) == (name == "a pattern over several blocks")
        found = furthest(spec, plan, random_cases(0, spec, bases=1, number=6))
    assert all(within(ratio, epsilon) for epsilon, ratio in found.values())
    assert any(ratio != 1 for _, ratio in found.values())
    told = {pattern.name: pattern.whole for pattern in audit(plan).policies[0].patterns}
    for pattern, (_, ratio) in found.items():
        whole = told[pattern]
        assert whole is not None
        assert within(ratio, whole)  # the audit does not say less than there is


def test_a_book_does_not_waste_epsilon() -> None:
    spec = specification([("AND(a, b)", "1")], ["a", "b", "AND(a, b)"], types="abs")
    with served_by_book():
        plan = plain(spec, "optimal", "posterior")
        ((epsilon, ratio),) = furthest(spec, plan, all_cases(spec)).values()
    assert ratio is not None
    assert 0.999999 * np.exp(float(epsilon)) < float(ratio) <= np.exp(float(epsilon))


def test_a_book_has_the_same_rows_for_windows_that_public_events_tell_apart_only() -> None:
    """Which group and which channel is used depends on public events, whatever private ones do."""
    spec = small(BOOKS["all variables in one block"])
    rng = Random(1)
    with served_by_book():
        plan = plain(spec, "optimal", "posterior")
        for _ in range(4):
            base = random_window(rng, spec, "abcst")
            kinds = set()
            for pattern in policy_of(spec, 0).patterns:
                for window in neighbours(rng, spec, base, pattern.elements, 4):
                    noise = ScriptedNoise(np.empty((4, 0), np.int64), 2)
                    released(spec, plan, [window], np.array([0, -1, -1, -1]), noise)
                    kinds.add(tuple(len(weights) for weights, _ in noise.trace(0)))
            assert len(kinds) == 1  # as many draws, from channels of the same width
