"""Learn the memory of counts from history: their usual course, how they move, when to draw."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Final, NamedTuple

import numpy as np

from tacit.durations import MICROSECONDS
from tacit.privacy.count_channels import COVERAGE, LEAST_EPSILON, make_count_channel
from tacit.privacy.count_memory import (
    SCALES,
    CountEstimate,
    CountFilter,
    CountHistory,
    CountMemory,
    CountReading,
    CountSpending,
    Floats,
    GroupModel,
    find_slot,
    find_slots,
    noise_variance,
)
from tacit.privacy.prices import NANO
from tacit.privacy.randomness import RandomSource, SeededSource

_DAY: Final = MICROSECONDS["d"]
_SIMULATED: Final = 1000
"""The most windows of history on which the filter is simulated: the last ones."""
_ROUNDS: Final = 4
"""How often."""
_LEAST_STEP: Final = 0.5
"""Counts are whole numbers: they move at least so far, as a standard deviation."""


class CountLimit(NamedTuple):
    """What a count may spend within a horizon."""

    epsilon: Fraction
    horizon: int
    """In microseconds."""


def learn_count_memory(
    history: CountHistory, slide: int, epsilon: Fraction, limit: CountLimit | None = None
) -> CountMemory | None:
    """Learn the memory of a count with at most `epsilon` in a window; None if it is never open."""
    learned = [_learn(history, group, slide) for group in range(len(history.groups))]
    models = {
        name: model
        for name, (model, _) in zip(history.groups, learned, strict=True)
        if model is not None
    }
    if not models or not epsilon:
        return None
    opened = {
        name: float(history.opened[:, place].mean())
        for place, name in enumerate(history.groups)
        if name in models
    }
    spending = None if limit is None else _plan_spending(models, opened, slide, epsilon, limit)
    memory = CountMemory(models, 2.0, 0.0, spending)
    # Each day is predicted from the others, as a new one will be.
    usual = np.stack([others for _, others in learned], axis=1)[-_SIMULATED:]
    recent = history.select(slice(-_SIMULATED, None))
    found = [
        _simulate(memory, recent, usual, slide, epsilon, seed) for seed in range(1, _ROUNDS + 1)
    ]
    errors, widths = (np.concatenate(part) for part in zip(*found, strict=True))
    width = float(np.quantile(widths, float(COVERAGE))) if len(widths) else 2.0
    return replace(memory, width=max(width, 0.5), error=float(errors.mean()))


def _learn(history: CountHistory, group: int, slide: int) -> tuple[GroupModel | None, Floats]:
    """Return the model of a group, and the usual share of each window according to other days."""
    opened = history.opened[:, group]
    shares = np.where(opened > 0, history.detected[:, group] / np.maximum(opened, 1), np.nan)
    known = np.isfinite(shares)
    if not known.any():
        return None, np.zeros(len(shares))
    slots = find_slots(slide)
    places = np.array([find_slot(local, slots) for local in history.local.tolist()], np.int64)
    sums = np.bincount(places[known], shares[known], slots)
    seen = np.bincount(places[known], minlength=slots)
    mean = float(shares[known].mean())
    flat = np.full(len(shares), mean)
    rest = seen[places] - known
    others = np.where(
        rest > 0, (sums[places] - np.where(known, shares, 0)) / np.maximum(rest, 1), np.nan
    )
    least = (_LEAST_STEP / max(1.0, float(opened.mean()))) ** 2
    deviations = shares - others
    steps, plain = np.diff(deviations), np.diff(shares)
    both = np.isfinite(steps)
    if both.sum() > slots // 2 and (steps[both] ** 2).mean() < (plain[both] ** 2).mean():
        course = np.where(seen > 0, sums / np.maximum(seen, 1), mean)
        own = deviations[np.isfinite(deviations)]
        model = GroupModel(
            course,
            max(least, float((steps[both] ** 2).mean())),
            max(least, float((own**2).mean())),
        )
        return model, np.where(np.isfinite(others), others, mean)
    moved = plain[np.isfinite(plain)]
    step = max(least, float((moved**2).mean()) if len(moved) else 0.0)
    return GroupModel(np.array([mean]), step, float(np.var(shares[known])) + step), flat


def _plan_spending(
    models: dict[str, GroupModel],
    opened: dict[str, float],
    slide: int,
    most: Fraction,
    limit: CountLimit,
) -> CountSpending | None:
    """Choose the interval between draws for each scale; None if the limit pays for all windows."""
    windows = max(1, limit.horizon // slide)
    epsilon = Fraction(int(limit.epsilon * NANO / windows), NANO)
    if epsilon >= most:
        return None
    epsilon = max(epsilon, Fraction(1, NANO))
    first = max(1, -(-LEAST_EPSILON // epsilon))
    last = max(first, min(windows, most // epsilon))
    intervals = np.arange(first, last + 1, dtype=np.float64)
    decay = np.exp(-intervals * float(epsilon))
    noise = 2 * decay / (1 - decay) ** 2
    chosen = []
    for scale in SCALES:
        error = np.zeros(len(intervals))
        for name, model in models.items():
            number = max(1.0, opened[name])
            step = scale * model.step * number**2
            before = step * intervals
            # The variance before a draw, once it is the same from draw to draw.
            before = (before + np.sqrt(before**2 + 4 * before * noise)) / 2
            error += before - step * intervals + step * (intervals - 1) / 2
        chosen.append(int(intervals[int(np.argmin(error))]))
    return CountSpending(epsilon, limit.horizon, tuple(chosen))


def _simulate(
    memory: CountMemory,
    history: CountHistory,
    usual: Floats,
    slide: int,
    epsilon: Fraction,
    seed: int,
) -> tuple[Floats, Floats]:
    """Return the errors of estimates on history, and how many standard deviations they are."""
    true = history.exact + history.detected
    errors, widths = [], []
    found = follow_history(memory, history, slide, epsilon, SeededSource(seed), usual)
    for window, (_, estimate) in enumerate(found):
        error = np.abs(estimate.value - true[window])
        deviation = (estimate.high - estimate.low) / (2 * memory.width)
        errors.append(error)
        widths.append((error / np.maximum(deviation, 1e-9))[deviation > 0])
    return np.concatenate(errors), np.concatenate(widths)


def follow_history(
    memory: CountMemory,
    history: CountHistory,
    slide: int,
    epsilon: Fraction,
    source: RandomSource,
    usual: Floats | None = None,
) -> Iterator[tuple[Fraction, CountEstimate]]:
    """Release the counts of history as a run does.

    Yields the most that a subject spends in each window, and the estimates.
    """
    follower = CountFilter(memory, history.groups, slide)
    state = follower.start()
    for window, local in enumerate(history.local.tolist()):
        intervals = follower.choose_intervals(state, window, local)
        opened = history.opened[window]
        counted, drawn = np.where(intervals > 0, opened, 0), np.zeros_like(opened)
        noise, spent = np.zeros(len(opened)), Fraction(0)
        for interval in np.unique(intervals[counted > 0]).tolist():
            own = (intervals == interval) & (counted > 0)
            channel = make_count_channel(follower.find_epsilon(interval, epsilon))
            drawn[own] = channel.draw(history.detected[window][own], source)
            noise[own] = noise_variance(channel)
            spent = max(spent, channel.epsilon)
        reading = CountReading(history.exact[window], opened, counted, drawn, noise)
        replaced = None if usual is None else usual[window]
        state, estimate = follower.follow(state, local, reading, window + intervals, replaced)
        yield spent, estimate
