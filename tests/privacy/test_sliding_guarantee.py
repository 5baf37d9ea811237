"""The guarantee where windows slide, end to end and exact. The unit is one occurrence.

All streams of private events over a few panes are run, and all outcomes of all draws: nothing is
sampled. Neighbours differ by an event of each of a private pattern's elements, all of them inside
one window. The mistakes that are planted below have to be found.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import count
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from tacit.errors import StateError
from tacit.patterns.booleans import to_columns
from tacit.privacy.mechanisms import flips
from tacit.privacy.mechanisms.flips import FlipProtector
from tacit.privacy.mechanisms.pane_noise import PaneNoise
from tacit.privacy.policies import Policy, PrivatePattern
from tacit.spec.specification import Specification
from tacit.windows.sliding import SlidingWindows, combine_panes
from tests.longer import longer
from tests.patterns.strategies import random_pattern
from tests.privacy.enumeration import TooManyOutcomesError, within
from tests.privacy.streams import Event, Way, all_streams, broken, by_hand, enumerated, furthest
from tests.privacy.streams import sliding as specified
from tests.privacy.test_joint_guarantee import SWEEP, mechanisms, ways

Patch = pytest.MonkeyPatch

PLAIN = ["a", "OR(a, b)", "AND(b, s)"]
CASES: dict[str, tuple[Specification, int, list[Event]]] = {
    "two elements": (specified([("AND(a, b)", "1")], PLAIN, panes=2), 3, [(1, "s")]),
    "three panes": (specified([("AND(a, b)", "1")], ["a", "AND(a, b)"], panes=3), 2, []),
    "one element in three panes": (specified([("a", "0.5")], ["a"], panes=3), 4, []),
    "patterns that overlap": (
        specified([("AND(a, b)", "2"), ("b", "0.3")], ["OR(a, b)", "b"], panes=2),
        3,
        [],
    ),
    "two components": (
        specified([("a", "1"), ("b", "0.5")], ["AND(a, b)", "OR(b, s)"], panes=2),
        2,
        [(0, "s")],
    ),
    "order": (
        specified([("SEQ(a, b)", "1")], ["SEQ(a, s, b)", "SEQ(s, NOT a, s)"], panes=2),
        2,
        [(0, "s"), (1, "s")],
    ),
    "order inside panes": (
        specified([("a", "1")], ["SEQ(a, s)", "SEQ(a, a) WITHIN 2 us"], panes=2, slide=2),
        2,
        [(1, "s"), (2, "s")],
    ),
    "conditions": (
        specified([("a", "1")], ["SEQ(a x, s y) WHERE y.v > x.v", "NOT a"], panes=3),
        2,
        [(1, "s")],
    ),
}
cases = pytest.mark.parametrize(("spec", "panes", "public"), CASES.values(), ids=CASES.keys())


@cases
@ways
def test_no_outcome_of_all_windows_tells_an_occurrence_by_more_than_epsilon(
    spec: Specification, panes: int, public: list[Event], mechanism: str, decode: str
) -> None:
    found = furthest(spec, by_hand(spec, mechanism, decode), panes, public)
    assert all(within(ratio, epsilon) for epsilon, ratio in found.values())
    # Without history posteriors of ordered queries say nothing about elements; else much is told.
    assert any(ratio != 1 for _, ratio in found.values()) or decode == "posterior"


@ways
@settings(max_examples=6 * SWEEP, derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_random_specifications_are_no_exception(mechanism: str, decode: str, seed: int) -> None:
    rng = Random(seed)
    slide, spans = rng.choice((1, 1, 2)), (1, 2)
    hidden = "a" if slide == 2 else "ab"
    private = {
        repr(
            random_pattern(rng, rng.sample(hidden, rng.randint(1, len(hidden))), 1, spans=())
        ): epsilon
        for epsilon in rng.sample(("0.1", "1", "4"), rng.randint(1, 2))
    }
    queries = [
        repr(random_pattern(rng, hidden + "s", rng.choice((1, 2)), spans=spans))
        for _ in range(rng.randint(1, 3))
    ]
    spec = specified([*private.items()], queries, panes=rng.choice((2, 3)), slide=slide)
    public = [(time, "s") for time in range(2 * slide) if rng.random() < 0.5]
    way = Way(steps=rng.random() < 0.5, restored=rng.random() < 0.5)
    try:
        assert not broken(spec, by_hand(spec, mechanism, decode), 2, public, way)
    except TooManyOutcomesError:
        reject()


@ways
def test_batches_and_restores_do_not_change_the_distribution(mechanism: str, decode: str) -> None:
    queries = ["a", "SEQ(a, s)"]
    spec = specified([("a", "1")], queries, panes=3, slide=2)
    plan = by_hand(spec, mechanism, decode)
    streams = [one | {(2, "s")} for one in all_streams(spec, "a", 2)[:6]]
    ways = (Way(steps=False), Way(), Way(restored=True))
    in_one_go, in_steps, restored = (enumerated(spec, plan, streams, 2, way) for way in ways)
    for number in range(len(streams)):
        assert in_one_go.shares(number) == in_steps.shares(number) == restored.shares(number)


@pytest.mark.parametrize("mechanism", ["uniform", "optimal"])
@pytest.mark.parametrize("panes", [2, *longer(3)])
def test_epsilon_is_not_wasted_either(mechanism: str, panes: int) -> None:
    """An occurrence of two elements changes 2k - 1 windows, one of a single element k."""
    for pattern, windows in (("AND(a, b)", 2 * panes - 1), ("a", panes)):
        spec = specified([(pattern, "1")], ["a"] if pattern == "a" else ["a", "b"], panes=panes)
        plan = by_hand(spec, mechanism, "posterior")
        ((epsilon, ratio),) = furthest(spec, plan, panes).values()
        assert ratio is not None
        assert np.log(float(ratio)) == pytest.approx(1)
        cost = plan.spent_per_window(spec.private[0])
        assert cost == (epsilon / windows if mechanism == "optimal" else epsilon)


def test_windows_of_an_optimal_plan_do_not_share_epsilon(monkeypatch: Patch) -> None:
    spec = specified([("AND(a, b)", "1")], PLAIN, panes=2)
    assert not broken(spec, by_hand(spec, "optimal", "posterior"), 2)
    monkeypatch.setattr(Policy, "per_window", lambda self, _: self)
    assert broken(spec, by_hand(spec, "optimal", "posterior"), 2) == ["AND(a, b)"]


def test_an_occurrence_is_taken_to_change_no_more_windows_than_an_event(monkeypatch: Patch) -> None:
    spec = specified([("AND(a, b)", "1")], ["a", "b"], panes=2)
    assert not broken(spec, by_hand(spec, "optimal", "posterior"), 2)
    monkeypatch.setattr(PrivatePattern, "count_windows", lambda _, panes: panes)
    assert broken(spec, by_hand(spec, "optimal", "posterior"), 2) == ["AND(a, b)"]


@mechanisms
def test_a_longer_occurrence_than_a_window_may_cost_more(mechanism: str) -> None:
    """What is promised is about occurrences inside one window: the check is not blind to it."""
    spec = specified([("a", "1")], ["a"], panes=2)
    plan = by_hand(spec, mechanism, "posterior")
    nothing, twice = enumerated(
        spec, plan, [frozenset(), frozenset({(0, "a"), (3, "a")})], 4
    ).likely
    ratios = [Fraction(nothing[outcome], twice[outcome]) for outcome in nothing]
    assert 1.9 < np.log(float(max(ratios))) <= 2


@pytest.mark.parametrize("decode", ["literal", "posterior"])
def test_noise_is_drawn_for_each_window_and_not_for_each_pane(
    monkeypatch: Patch, decode: str
) -> None:
    spec = specified([("a", "1")], ["a", "AND(a, s)"], panes=2)
    plan = by_hand(spec, "uniform", decode)
    assert not broken(spec, plan, 2)

    def apart(self: FlipProtector, windows: Any, own: Any, _: Any) -> tuple[Any, None]:
        assert self._panes is not None
        assert own is None
        paned = windows.closed.panes
        true = to_columns(paned.words, self._panes.types)[:, list(self._panes.numbers)]
        noisy = []
        for window in range(paned.windows):
            seen = true[window : window + paned.count]
            flips = [
                self._noise.flip(np.ascontiguousarray(seen[:, number]), channel)
                for number, channel in enumerate(self._channels)
            ]
            noisy.append(combine_panes(np.stack(flips, axis=1), paned.count))
        return np.concatenate(noisy), None

    monkeypatch.setattr(FlipProtector, "_draw", apart)
    assert broken(spec, plan, 2) == ["a"]


def test_noise_is_drawn_again_after_a_restore(monkeypatch: Patch) -> None:
    spec = specified([("a", "1")], ["a"], panes=2)
    plan, way = by_hand(spec, "uniform", "posterior"), Way(restored=True)
    assert not broken(spec, plan, 2, way=way)
    restore, earlier = SlidingWindows.restore, PaneNoise._earlier

    def forgetting(self: SlidingWindows, arrays: Any, frames: Any) -> None:
        kept = {name: part for name, part in arrays.items() if not name.startswith("drawn.")}
        restore(self, kept, frames)

    def anew(self: PaneNoise, paned: Any, slots: int) -> Any:
        if paned.before:
            return earlier(self, paned, slots)
        true = to_columns(np.ascontiguousarray(paned.words[: paned.count - 1]), self.types)
        flips = [
            self.noise.flip(np.ascontiguousarray(true[:, number]), channel)
            for number, channel in zip(self.numbers, self.channels, strict=True)
        ]
        return np.stack(flips, axis=1)

    monkeypatch.setattr(SlidingWindows, "restore", forgetting)
    monkeypatch.setattr(PaneNoise, "_earlier", anew)
    assert broken(spec, plan, 2, way=way) == ["a"]


def test_the_moment_of_a_private_event_is_kept(monkeypatch: Patch) -> None:
    spec = specified([("a", "1")], ["SEQ(a, s)"], panes=2, slide=2)
    plan, public = by_hand(spec, "uniform", "literal"), [(1, "s")]
    assert not broken(spec, plan, 1, public)
    moments = PaneNoise.draw_times

    def real(self: PaneNoise, closed: Any, panes: Any, timed: Any) -> Any:
        table = moments(self, closed, panes, timed).copy()
        slots = closed.panes.words.shape[1]
        window = np.repeat(closed.keys, np.diff(closed.lists.starts))
        own = (closed.lists.masks[:, 0] >> np.uint64(self.numbers[0])) & np.uint64(1) > 0
        for key, time in zip(window[own] % slots, closed.lists.times[own], strict=True):
            table[3, table[2] == key] = time
        return table

    monkeypatch.setattr(PaneNoise, "draw_times", real)
    assert broken(spec, plan, 1, public) == ["a"]


def test_a_snapshot_without_what_was_drawn_is_refused(monkeypatch: Patch) -> None:
    names = count()
    spec = specified([("a", "1")], ["a"], panes=2)
    plan = by_hand(spec, "uniform", "posterior")
    monkeypatch.setattr(flips, "PaneNoise", lambda _, *rest: PaneNoise(f"{next(names)}", *rest))
    with pytest.raises(StateError, match="are missing"):
        enumerated(spec, plan, [frozenset()], 2, Way(restored=True))
