"""Mistakes in memory, learning and spending: the checks of `test_memory_guarantee` find each one.

Every test first sees that the promise is kept, then plants a mistake and sees it broken.
"""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from tacit.pipeline.pacing import Pacer
from tacit.pipeline.versioned_windows import VersionedWindows
from tacit.pipeline.window_state import WindowState
from tacit.privacy.mechanisms.optimal.memory.beliefs import BeliefFilter, Prediction, Update
from tacit.privacy.mechanisms.optimal.memory.channel_tables import ChannelTables
from tacit.privacy.mechanisms.optimal.memory.kernels import Numbers, Words
from tacit.privacy.mechanisms.optimal.memory.learning import StepLearner
from tacit.privacy.mechanisms.optimal.memory.protector import MemoryProtector
from tacit.privacy.policies import Policy
from tests.privacy.memories import Broken, all_streams, find_broken, plan_by_hand
from tests.privacy.test_memory_guarantee import (
    CASES,
    LEARNING,
    ONE,
    OTHER,
    enumerated_together,
    quick_learning,
    seen_of_another,
)

Patch = pytest.MonkeyPatch


def breaks(name: str) -> list[Broken]:
    """The neighbours that are told apart in a case."""
    return CASES[name].run()[1]


def remember_truth(monkeypatch: Patch) -> dict[int, Words]:
    """The true values of the last draws of each filter."""
    found: dict[int, Words] = {}
    draw = BeliefFilter.draw

    def spy(self: BeliefFilter, predicted: Prediction, values: Words, silent: Any) -> Numbers:
        found.pop(id(self), None)
        found[id(self)] = values  # the last one stands last
        return draw(self, predicted, values, silent)

    monkeypatch.setattr(BeliefFilter, "draw", spy)
    return found


def test_a_belief_is_updated_with_a_true_value(monkeypatch: Patch) -> None:
    assert not breaks("one component")
    truth = remember_truth(monkeypatch)
    update = BeliefFilter.update

    def peeking(self: BeliefFilter, *given: Any) -> Update:
        found = update(self, *given)
        rows = np.arange(len(found.beliefs))
        found.state.beliefs[rows, 0, truth[id(self)][:, 0].astype(np.int64)] += np.uint16(5000)
        return found

    monkeypatch.setattr(BeliefFilter, "update", peeking)
    # Nothing is told in the same window, and too much in the next.
    assert {one.windows for one in breaks("one component")} >= {(0,), (1,), (0, 1, 2)}
    assert (2,) not in {one.windows for one in breaks("one component")}


def test_a_belief_knows_whether_anything_was_sent(monkeypatch: Patch) -> None:
    """A subject that is heard is not new any more: private tuples count as being heard."""
    assert not breaks("windows that cost nothing")
    truth = remember_truth(monkeypatch)
    update = BeliefFilter.update

    def heard(self: BeliefFilter, *given: Any) -> Update:
        found = update(self, *given)
        found.state.groups[~truth[id(self)].any(axis=1)] = -1
        return found

    monkeypatch.setattr(BeliefFilter, "update", heard)
    assert {one.windows for one in breaks("windows that cost nothing")} >= {(0,), (1,)}


def test_a_channel_is_chosen_by_a_true_value(monkeypatch: Patch) -> None:
    assert not breaks("patterns that overlap")
    draw = BeliefFilter.draw

    def peeking(self: BeliefFilter, predicted: Prediction, values: Words, silent: Any) -> Numbers:
        first = self.tables.blocks[self.tables.first_block[predicted.contexts], 2]
        there = (values[:, 0] > 0) & self.tables.is_open[predicted.contexts]
        predicted.chosen[there, 0] = first[there]
        return draw(self, predicted, values, silent)

    monkeypatch.setattr(BeliefFilter, "draw", peeking)
    assert breaks("patterns that overlap")


@pytest.mark.parametrize("name", ["one component", "sliding windows"])
def test_a_window_is_free_although_something_is_open(monkeypatch: Patch, name: str) -> None:
    assert not breaks(name)
    price = ChannelTables.price
    monkeypatch.setattr(ChannelTables, "price", lambda *given: price(*given) * 0)
    assert len(breaks(name)) == 7  # whatever the windows in which neighbours differ


def test_windows_that_slide_have_all_of_epsilon_each(monkeypatch: Patch) -> None:
    assert not breaks("sliding windows and an occurrence")
    monkeypatch.setattr(Policy, "per_window", lambda self, _: self)
    assert breaks("sliding windows and an occurrence")


@pytest.mark.parametrize("name", ["one component", "pacing"])
def test_a_window_costs_less_where_the_belief_is_certain(monkeypatch: Patch, name: str) -> None:
    assert not breaks(name)
    price = MemoryProtector.price

    def cheap(self: MemoryProtector, windows: Any, claims: Any) -> Any:
        found = price(self, windows, claims)
        certain = self.gains(windows) < 0.02
        return np.where(certain, found // 2, found)

    monkeypatch.setattr(MemoryProtector, "price", cheap)
    assert breaks(name)


def test_who_was_silent_pays_nothing(monkeypatch: Patch) -> None:
    assert not breaks("one component")
    price = WindowState.price

    def heard(self: WindowState, closed: Any, *given: Any, **named: Any) -> Any:
        sent = np.asarray(closed.panes.words.any(axis=2))
        return price(self, closed, *given, **named) * sent[:, np.newaxis]

    monkeypatch.setattr(WindowState, "price", heard)
    assert breaks("one component")


def test_only_one_of_two_components_is_charged(monkeypatch: Patch) -> None:
    """A query about both is open, and both are drawn for."""
    assert not breaks("two components")
    price = MemoryProtector.price

    def first(self: MemoryProtector, windows: Any, claims: Any) -> Any:
        found = price(self, windows, claims).copy()
        found[:, 1:] = 0
        return found

    monkeypatch.setattr(MemoryProtector, "price", first)
    assert {one.pattern for one in breaks("two components")} == {"b"}


def test_a_draw_that_was_thrown_away_is_remembered(monkeypatch: Patch) -> None:
    assert not breaks("draws that are thrown away")
    monkeypatch.setattr(VersionedWindows, "restore_memory", lambda *_: None)
    assert breaks("draws that are thrown away")


def test_those_who_do_not_pay_are_drawn_for(monkeypatch: Patch) -> None:
    assert not breaks("a limit of less than a window")
    draw = BeliefFilter.draw

    def for_all(self: BeliefFilter, predicted: Prediction, values: Words, silent: Any) -> Numbers:
        return draw(self, predicted, values, np.zeros_like(silent))

    monkeypatch.setattr(BeliefFilter, "draw", for_all)
    assert breaks("a limit of less than a window")


def test_a_limit_is_forgotten_from_window_to_window(monkeypatch: Patch) -> None:
    assert not breaks("a limit")
    spent = "tacit.ledger.accounts.Accounts.spent"
    monkeypatch.setattr(spent, lambda self, *_: np.zeros(len(self.ids), np.int64))
    assert {one.windows for one in breaks("a limit")} == {(0, 1, 2)}


def test_spending_looks_at_a_private_event(monkeypatch: Patch) -> None:
    assert not breaks("pacing")
    gains = VersionedWindows.gains

    def peeking(self: VersionedWindows, closed: Any) -> Any:
        # The first event type is private.
        there = (closed.panes.words[0, :, 0] & np.uint64(1)) > 0
        return gains(self, closed) * np.where(there, 10, 1)

    monkeypatch.setattr(VersionedWindows, "gains", peeking)
    assert breaks("pacing")


def test_exploration_follows_a_private_event(monkeypatch: Patch) -> None:
    assert not breaks("pacing")
    decline, gains = Pacer.find_declined, VersionedWindows.gains
    seen: list[Any] = []

    def note(self: VersionedWindows, closed: Any) -> Any:
        seen[:] = [(closed.panes.words[0, :, 0] & np.uint64(1)) > 0]
        return gains(self, closed)

    def peeking(self: Pacer, *given: Any) -> Any:
        return decline(self, *given) & ~seen[0]

    monkeypatch.setattr(VersionedWindows, "gains", note)
    monkeypatch.setattr(Pacer, "find_declined", peeking)
    assert breaks("pacing")


def test_a_belief_is_shared_between_subjects(monkeypatch: Patch) -> None:
    update = BeliefFilter.update

    def shared(self: BeliefFilter, *given: Any) -> Update:
        found = update(self, *given)
        beliefs = found.state.beliefs
        beliefs[:] = beliefs // 2 + beliefs.mean(axis=0, keepdims=True).astype(np.uint16) // 2
        return found

    plan, other = plan_by_hand(ONE), ("abs", "s", "b")
    assert len(seen_of_another(plan, other, Random(0))) == 1
    monkeypatch.setattr(BeliefFilter, "update", shared)
    assert len(seen_of_another(plan, other, Random(0))) > 1


def test_learning_uses_what_was_not_released(monkeypatch: Patch) -> None:
    """The true values of a window instead of the beliefs about them."""
    streams = all_streams("a", ["s", "s", "s"])
    truth = remember_truth(monkeypatch)
    count = StepLearner.count

    def knowing(
        self: StepLearner, learned: Any, state: Any, predicted: Any, updated: Update, counted: Any
    ) -> None:
        values = list(truth.values())[-1]
        lanes = np.zeros_like(updated.lanes)
        lanes[np.arange(len(lanes)), 0, values[:, 0].astype(np.int64)] = 1
        count(self, learned, state, predicted, updated._replace(lanes=lanes), counted)

    with quick_learning():
        plan = plan_by_hand(LEARNING)
        both = enumerated_together(LEARNING, plan, streams, OTHER)
        assert not find_broken(LEARNING, both, streams)
        monkeypatch.setattr(StepLearner, "count", knowing)
        both = enumerated_together(LEARNING, plan, streams, OTHER)
    assert {one.windows for one in find_broken(LEARNING, both, streams)} >= {(1,), (0, 1, 2)}
