"""The joint guarantee where some subjects' limits are reached: for them it is epsilon 0, exactly.

Subjects whose limit is reached and others share windows; nothing that either of them do may
tell neighbours of the first apart at all, nor those of the others by more than epsilon.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from tacit.answers.answers import Answers
from tacit.patterns.tree import Pattern, elements
from tacit.pipeline.window_state import ClosedWindows, WindowState
from tacit.planning.planner import make_plan
from tacit.privacy.mechanisms.mechanism import PatternIndex
from tacit.privacy.mechanisms.public_only import PublicContexts, PublicTables
from tacit.privacy.mechanisms.unprotected import _TrueProtector
from tacit.spec.epsilon import Limit
from tacit.spec.specification import Specification
from tests.privacy.enumeration import (
    ScriptedNoise,
    TooManyOutcomesError,
    released,
    within,
)
from tests.privacy.test_joint_guarantee import SWEEP, each_draw, specifications, ways
from tests.privacy.worlds import (
    SUBJECTS,
    Cases,
    all_cases,
    by_hand,
    furthest,
    planned,
    random_cases,
    random_specification,
    random_window,
    specification,
)

EXHAUSTED = np.arange(len(SUBJECTS)) // 2 % 2 == 1
"""Every second subject of either sort has reached its limit."""


@contextmanager
def limits_reached() -> Iterator[None]:
    """Runs in which the limits of the exhausted subjects are reached."""
    answer = WindowState.answer

    def told(this: WindowState, handed: ClosedWindows, *_: Any, **_named: Any) -> Answers:
        return answer(this, handed, EXHAUSTED)

    with patch.object(WindowState, "answer", told):
        yield


def limited(spec: Specification) -> Specification:
    """The same with a limit on everything private."""
    limit = Limit.model_validate("1000 per day")
    private = tuple(one.model_copy(update={"limit": limit}) for one in spec.private)
    return spec.model_copy(update={"private": private})


def both(cases: Cases) -> Cases:
    """Every window once from a subject whose limit is reached, and once from another.

    Where it is reached, nothing at all may be told.
    """
    number = len(cases.windows)
    slots = [tuple(slot for slot in own if not EXHAUSTED[slot]) for own in cases.slots]
    slots += [tuple(slot for slot in own if EXHAUSTED[slot]) for own in cases.slots]
    silent = [
        (replace(pattern, name=f"{pattern.name}, reached", epsilon=Fraction(0)), group)
        for pattern, group in cases.groups
    ]
    groups = cases.groups + [(p, [number + n for n in group]) for p, group in silent]
    return Cases(cases.windows * 2, slots, cases.policies * 2, groups)


@ways
@settings(max_examples=10 * SWEEP, derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_past_a_limit_nothing_tells_neighbours_apart(
    mechanism: str, decode: str, seed: int
) -> None:
    spec = limited(random_specification(Random(seed)))
    plan = planned(spec, mechanism, decode, seed)
    with limits_reached():
        try:
            found = furthest(spec, plan, both(random_cases(seed, spec)))
        except TooManyOutcomesError:
            reject()
    assert all(within(ratio, epsilon) for epsilon, ratio in found.values())


@pytest.mark.cases(13)
@specifications
@each_draw
def test_special_cases_past_a_limit_are_no_exception(
    spec: Specification, mechanism: str, decode: str
) -> None:
    spec = limited(spec)
    plan = make_plan(spec, by_hand(spec, {}), mechanism, decode)
    with limits_reached():
        found = furthest(spec, plan, both(random_cases(0, spec)))
    assert all(within(ratio, epsilon) for epsilon, ratio in found.values())
    private = frozenset().union(*map(elements, spec.private_patterns))
    asked = frozenset().union(*map(elements, spec.query_patterns.values()))
    # The others' answers still tell something: the windows are not all alike.
    assert any(ratio != 1 for _, ratio in found.values()) == bool(private & asked)


SMALL = specification(
    [("SEQ(a, b)", "1"), ("b", "0.5")],
    ["SEQ(a, s)", "AND(a, NOT b)", "SEQ(b x, s y) WHERE y.v > x.v", "OR(SEQ(s, b), a)"],
    types="abs",
)


@ways
def test_all_windows_of_a_small_specification_past_a_limit(mechanism: str, decode: str) -> None:
    spec = limited(SMALL)
    plan = make_plan(spec, by_hand(spec, {}), mechanism, decode)
    cases = both(all_cases(spec))
    assert len(cases.windows) == 2 * 64
    with limits_reached():
        found = furthest(spec, plan, cases)
    assert {name: ratio for name, (epsilon, ratio) in found.items() if not epsilon} == {
        "SEQ(a, b), reached": 1,
        "b, reached": 1,
    }
    assert all(within(ratio, epsilon) for epsilon, ratio in found.values())
    assert sum(ratio != 1 for _, ratio in found.values()) == 2


@ways
def test_nothing_is_drawn_for_those_whose_limit_is_reached(mechanism: str, decode: str) -> None:
    spec = limited(SMALL)
    plan = make_plan(spec, by_hand(spec, {}), mechanism, decode)
    rng = Random(3)
    windows = [random_window(rng, spec, "abs") for _ in range(2 * len(SUBJECTS))]
    noise = ScriptedNoise(np.empty((len(windows), 0), np.int64), len(SUBJECTS))
    with limits_reached():
        released(spec, plan, windows, np.arange(len(windows)), noise)
    drawn = noise.drawn.reshape(2, -1)
    assert not drawn[:, EXHAUSTED].any()
    assert drawn[:, ~EXHAUSTED].any()


@ways
def test_a_public_mechanism_that_used_private_events_would_be_found(
    mechanism: str, decode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check is sharp: the true answers in place of the public ones break the guarantee."""
    spec = limited(SMALL)
    plan = make_plan(spec, by_hand(spec, {}), mechanism, decode)

    def true(_: object, queries: Sequence[Pattern], index: PatternIndex) -> Any:
        return _TrueProtector(index.columns(queries))

    for kind in (PublicTables, PublicContexts):
        monkeypatch.setattr(kind, "start", true)
    with limits_reached():
        found = furthest(spec, plan, both(all_cases(spec)))
    assert [ratio for epsilon, ratio in found.values() if not epsilon] == [None, None]
