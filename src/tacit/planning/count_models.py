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


_WIDTHS: Final = (1, 3, 7)
"""Over how many parts of a day the usual course may be smoothed."""
_MODELS: Final = 3
"""How many models of a count there are."""
_LEAST_PAIRS: Final = 24
"""The fewest pairs of windows from which is learned whether deviations return."""
_MOST_KEPT: Final = 0.99
_DRAWS: Final = 10
"""Before anything is drawn, history counts as so many draws: as many as are remembered."""


class CountLimit(NamedTuple):
    """What a count may spend within a horizon."""

    epsilon: Fraction
    horizon: int
    """In microseconds."""


def learn_count_memory(
    history: CountHistory, slide: int, epsilon: Fraction, limit: CountLimit | None = None
) -> CountMemory | None:
    """Learn the memory of a count with at most `epsilon` in a window; None if it is never open.

    How smooth the usual course is, is decided by simulation: each day of history is predicted from
    the others, as a new one will be.
    """
    if not epsilon:
        return None
    recent = history.select(slice(-_SIMULATED, None))
    best: tuple[CountMemory, Floats] | None = None
    for width in _WIDTHS:
        learned = [_learn(history, group, slide, width) for group in range(len(history.groups))]
        models = {name: own for name, (own, _) in zip(history.groups, learned, strict=True) if own}
        if not models:
            return None
        opened = {
            name: float(history.opened[:, place].mean())
            for place, name in enumerate(history.groups)
            if name in models
        }
        spending = None if limit is None else _plan_spending(models, opened, slide, epsilon, limit)
        memory = CountMemory(models, 2.0, 0.0, spending)
        usual = np.stack([others for _, others in learned], axis=2)[-_SIMULATED:]
        found = [
            _simulate(memory, recent, usual, slide, epsilon, seed) for seed in range(1, _ROUNDS + 1)
        ]
        errors, deviations = (np.concatenate(part) for part in zip(*found, strict=True))
        memory = replace(memory, error=float(errors.mean()))
        if best is None or memory.error < best[0].error:
            best = memory, deviations
    assert best is not None, "there are several widths"
    memory, deviations = best
    half = float(np.quantile(deviations, float(COVERAGE))) if len(deviations) else 2.0
    return replace(memory, width=max(half, 0.5))


def _learn(
    history: CountHistory, group: int, slide: int, width: int
) -> tuple[tuple[GroupModel, ...], Floats]:
    """Return the models of a group, and `[window][model]`: the usual share by other days.

    There are three: a random walk around the mean, one around the usual course, and deviations
    that return to the usual course. The course is a mean over days and `width` parts of the day.
    """
    opened = history.opened[:, group]
    shares = np.where(opened > 0, history.detected[:, group] / np.maximum(opened, 1), np.nan)
    known = np.isfinite(shares)
    if not known.any():
        return (), np.zeros((len(shares), _MODELS))
    slots = find_slots(slide)
    places = np.array([find_slot(local, slots) for local in history.local.tolist()], np.int64)
    _, days = np.unique(history.local // _DAY, return_inverse=True)
    shape = int(days.max()) + 1, slots
    each = np.ravel_multi_index((days[known], places[known]), shape)
    sums = np.bincount(each, shares[known], shape[0] * slots).reshape(shape)
    seen = np.bincount(each, minlength=shape[0] * slots).reshape(shape)
    mean = float(shares[known].mean())
    rest = seen.sum(axis=0) - seen
    course, others = np.array([mean]), np.full(len(shares), mean)
    if np.count_nonzero(rest[days, places]) > slots // 2:  # a single day shows nothing usual
        course = _smooth(sums.sum(axis=0), seen.sum(axis=0), width, mean)
        others = _smooth(sums.sum(axis=0) - sums, rest, width, mean)[days, places]
    least = (_LEAST_STEP / max(1.0, float(opened.mean()))) ** 2
    models = (
        _fit(np.array([mean]), shares - mean, least, returns=False),
        _fit(course, shares - others, least, returns=False),
        _fit(course, shares - others, least, returns=True),
    )
    most = max(model.belief for model in models)
    even = tuple(replace(model, belief=model.belief - most) for model in models)
    return even, np.stack([np.full(len(shares), mean), others, others], axis=1)


def _fit(usual: Floats, deviations: Floats, least: float, *, returns: bool) -> GroupModel:
    """Fit a model to deviations from the usual share; they move at least by the variance `least`.

    Its belief is how likely the deviations are, as those of a few draws.
    """
    own = deviations[np.isfinite(deviations)]
    spread = max(least, float((own**2).mean()))
    before, after = deviations[:-1], deviations[1:]
    both = np.isfinite(before) & np.isfinite(after)
    before, after = before[both], after[both]
    kept = 1.0
    if returns and len(before) >= _LEAST_PAIRS:
        kept = float(
            np.clip(float(before @ after) / max(float(before @ before), 1e-18), 0.0, _MOST_KEPT)
        )
    moved = float(((after - kept * before) ** 2).mean()) if len(before) else 0.0
    step = max(least, moved if kept == 1 else (1 - kept**2) * spread)
    likely = -(np.log(step) + moved / step) / 2
    return GroupModel(usual, step, spread, kept, _DRAWS * float(likely))


def _smooth(sums: Floats, seen: Floats, width: int, mean: float) -> Floats:
    """Return the mean of each part of a day and its neighbours; `mean` where nothing was seen.

    The last axis has the parts of the day.
    """
    reach = range(-(width // 2), width // 2 + 1)
    total: Floats = np.sum([np.roll(sums, by, axis=-1) for by in reach], axis=0)
    number: Floats = np.sum([np.roll(seen, by, axis=-1) for by in reach], axis=0)
    return np.where(number > 0, total / np.maximum(number, 1), mean)


def _plan_spending(
    models: dict[str, tuple[GroupModel, ...]],
    opened: dict[str, float],
    slide: int,
    most: Fraction,
    limit: CountLimit,
) -> CountSpending | None:
    """Choose the interval between draws; None if the limit pays for all windows."""
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
    chosen = tuple(
        tuple(
            int(intervals[int(np.argmin(_predict_errors(own, opened, intervals, noise, scale)))])
            for scale in SCALES
        )
        for own in (
            {name: every[model] for name, every in models.items()} for model in range(_MODELS)
        )
    )
    return CountSpending(epsilon, limit.horizon, chosen)


def _predict_errors(
    models: dict[str, GroupModel],
    opened: dict[str, float],
    intervals: Floats,
    noise: Floats,
    scale: float,
) -> Floats:
    """Return by interval between draws the mean variance of an estimate, summed over groups."""
    error = np.zeros(len(intervals))
    for name, model in models.items():
        number = max(1.0, opened[name])
        step = scale * model.step * number**2
        if model.kept == 1:
            before = step * intervals
            # The variance before a draw, once it is the same from draw to draw.
            before = (before + np.sqrt(before**2 + 4 * before * noise)) / 2
            error += before - step * intervals + step * (intervals - 1) / 2
            continue
        left, spread = model.kept ** (2 * intervals), step / (1 - model.kept**2)
        new = spread * (1 - left)
        half = (new - noise * (1 - left)) / 2
        before = half + np.sqrt(half**2 + new * noise)
        after = before * noise / (before + noise)
        # The information of a draw fades from window to window, down to the spread.
        informed = (1 - left) / (1 - model.kept**2) / intervals
        error += informed * after + (1 - informed) * spread
    return error


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
