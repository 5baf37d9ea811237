"""The memory of counts is learned from history, and says how good estimates will be."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from tacit.durations import MICROSECONDS
from tacit.planning import count_models as planned
from tacit.planning.count_models import CountLimit, follow_history, learn_count_memory
from tacit.privacy import count_memory
from tacit.privacy.count_memory import CountHistory, CountMemory
from tacit.privacy.randomness import SeededSource
from tests.longer import longer

WINDOW, DAY = MICROSECONDS["h"] // 6, 144
LIMIT = CountLimit(Fraction(20), MICROSECONDS["d"])


def make(days: int, seed: int, *, speed: float = 1.0, subjects: int = 1000) -> CountHistory:
    """Counts with a usual course, and a random walk around it."""
    rng = np.random.default_rng(seed)
    course = 300 + 150 * np.sin(2 * np.pi * np.arange(days * DAY) / DAY)
    walk = np.cumsum(rng.normal(0, 2 * speed, days * DAY))
    counts = np.clip(np.rint(course + walk - walk.mean()), 0, subjects).astype(np.int64)
    local = np.arange(days * DAY) * WINDOW
    detected = counts[:, np.newaxis]
    opened = np.full_like(detected, subjects)
    return CountHistory(("",), local, np.zeros_like(detected), opened, detected)


def learn(history: CountHistory, limit: CountLimit | None = LIMIT) -> CountMemory:
    """Learn with an epsilon of 2 for a window."""
    found = learn_count_memory(history, WINDOW, Fraction(2), limit)
    assert found is not None
    return found


def measure(memory: CountMemory, history: CountHistory, seed: int = 1) -> tuple[float, float]:
    """The mean error of estimates, and how often intervals cover the truth."""
    found = list(follow_history(memory, history, WINDOW, Fraction(2), SeededSource(seed)))
    value, low, high = (np.stack([one[place] for _, one in found]) for place in range(3))
    covered = (low <= history.detected) & (history.detected <= high)
    return float(np.abs(value - history.detected).mean()), float(covered.mean())


@pytest.mark.parametrize("amount", [20, *longer(2, 100)])
def test_the_error_is_as_expected_and_intervals_cover_what_they_say(amount: int) -> None:
    limit = CountLimit(Fraction(amount), MICROSECONDS["d"])
    memory = learn(make(6, 1), limit)
    found = [measure(memory, make(4, seed), seed) for seed in range(2, 8)]
    error, covered = (float(np.mean(part)) for part in zip(*found, strict=True))
    assert error == pytest.approx(memory.error, rel=0.2)
    assert 0.92 < covered < 0.98


def test_a_limit_is_spent_to_the_last_and_never_passed() -> None:
    for amount in (1, 20, 200):
        memory = learn(make(4, 1), CountLimit(Fraction(amount), MICROSECONDS["d"]))
        assert memory.spending is not None
        history = make(3, 2)
        spent = [
            epsilon
            for epsilon, _ in follow_history(memory, history, WINDOW, Fraction(2), SeededSource(1))
        ]
        for day in range(3):
            total = sum(spent[day * DAY : (day + 1) * DAY])
            assert Fraction(9, 10) * amount < total <= amount
    assert learn(make(4, 1), CountLimit(Fraction(288), MICROSECONDS["d"])).spending is None


@pytest.mark.soak
def test_slow_counts_are_drawn_rarely_and_fast_ones_often() -> None:
    slow, fast = (learn(make(4, 1, speed=speed)).spending for speed in (0.2, 5.0))
    assert slow is not None
    assert fast is not None
    for rare, often in zip(slow.intervals, fast.intervals, strict=True):
        assert rare[len(rare) // 2] > often[len(often) // 2]
        assert list(rare) == sorted(rare, reverse=True)


@pytest.mark.soak
def test_a_filter_with_memory_is_better_than_the_draws_alone() -> None:
    memory = learn(make(6, 1), None)
    error, _ = measure(memory, make(4, 2))
    flat = learn(make(1, 1), None)  # one day does not show what is usual
    assert [len(one.usual) for one in flat.models[""]] == [1, 1, 1]
    assert [len(one.usual) for one in memory.models[""]] == [1, DAY, DAY]
    assert error < 0.6  # the draws alone: 0.27 is geometric noise of epsilon 2


def test_a_world_unlike_history_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The filter learns from surprises that counts move faster now than they did in history."""
    memory, wild = learn(make(4, 1, speed=0.2)), make(3, 2, speed=8.0)
    error, _ = measure(memory, wild)
    monkeypatch.setattr(count_memory, "_LEARNING", 0.0)
    stubborn, _ = measure(memory, wild)
    assert error < 0.7 * stubborn


def scatter(days: int, seed: int, kept: float, shift: float = 0.0) -> CountHistory:
    """Counts whose deviations return to the usual course; `shift` is another level of all days."""
    rng = np.random.default_rng(seed)
    plain, deviation = make(days, seed, speed=0.0), np.zeros(days * DAY)
    for step in range(1, days * DAY):
        deviation[step] = kept * deviation[step - 1] + rng.normal(0, 20 * np.sqrt(1 - kept**2))
    counts = plain.detected + np.rint(deviation + shift).astype(np.int64)[:, np.newaxis]
    assert 0 <= counts.min() <= counts.max() <= 1000
    return CountHistory(plain.groups, plain.local, plain.exact, plain.opened, counts)


@pytest.mark.soak
def test_deviations_that_return_are_not_followed_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draw tells little about later windows; a random walk would never forget it."""
    limit = CountLimit(Fraction(5), MICROSECONDS["d"])
    memory = learn(scatter(4, 1, 0.5), limit)
    walk, around, returns = memory.models[""]
    assert (walk.kept, around.kept) == (1, 1)
    assert returns.kept == pytest.approx(0.5, abs=0.1)
    assert max(walk.belief, around.belief) < returns.belief == 0
    assert memory.spending is not None
    fresh = scatter(3, 2, 0.5)
    error, covered = measure(memory, fresh)
    assert error < 1.1 * 20 * np.sqrt(2 / np.pi) * np.sqrt(1 + 1 / 4)
    assert 0.9 < covered < 0.99
    monkeypatch.setattr(planned, "_MOST_KEPT", 1.0)
    monkeypatch.setattr(planned, "_LEAST_PAIRS", 10**9)  # nothing is learned about a return
    walking, _ = measure(learn(scatter(4, 1, 0.5), limit), fresh)
    assert error < 0.85 * walking


@pytest.mark.soak
def test_the_model_that_fits_the_present_is_used() -> None:
    """History prefers deviations that return; what is drawn soon shows that they stay."""
    memory = learn(scatter(4, 1, 0.5), CountLimit(Fraction(5), MICROSECONDS["d"]))
    alone = [replace(memory, models={"": (one,) * 3}) for one in memory.models[""]]
    for shift in (0.0, 250.0):
        fresh = scatter(3, 2, 0.5, shift)
        errors = [measure(one, fresh)[0] for one in alone]
        assert measure(memory, fresh)[0] < 1.1 * min(errors)
        assert max(errors) > 1.2 * min(errors)


def test_plans_of_a_former_version_have_one_model() -> None:
    memory = learn(make(4, 1))
    plain = memory.to_dict()
    again = CountMemory.from_dict(plain)
    assert again.to_dict() == plain
    walk = {name: plain["models"][""][1][name] for name in ("usual", "step", "spread")}
    former = plain | {"models": {"": walk}}
    former["spending"] = plain["spending"] | {"intervals": plain["spending"]["intervals"][1]}
    read = CountMemory.from_dict(former)
    assert len(read.models[""]) == 1
    error, _ = measure(read, make(2, 2))
    assert error == pytest.approx(measure(memory, make(2, 2))[0], rel=0.5)
    for models, found in (([], "memory"), (plain["models"][""][:2], "intervals")):
        with pytest.raises(ValueError, match=found):
            CountMemory.from_dict(plain | {"models": {"": models}})


def test_a_count_that_is_never_open_has_no_memory() -> None:
    history = make(2, 1)
    nobody = CountHistory(
        ("",), history.local, history.detected, 0 * history.opened, 0 * history.detected
    )
    assert learn_count_memory(nobody, WINDOW, Fraction(2)) is None
    assert learn_count_memory(history, WINDOW, Fraction(0)) is None
