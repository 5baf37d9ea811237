"""Memory of counts: a filter over released counts, and how a limit is spread over windows.

The filter follows the share of open subjects that have the pattern: its usual course over a day,
which history shows, and the deviation from it. Public events determine how many subjects are open.
A released count corrects the deviation. How far counts are from what the filter predicts shows how
fast the deviation moves now, compared with history: its *scale*.

A deviation may stay, or return to the usual course, and a new day may have another course. So there
are several models of the same count. All of them are followed, and weighed by how well they predict
the counts that are released.

With a limit, a count is drawn only every k-th window, with k times the epsilon of a window: the
limit is then spread evenly over its horizon, whatever k is. Slow counts are drawn rarely and
precisely, fast ones often. The scale chooses k after each draw.

Everything here is a function of released counts, public events and the plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacit.durations import MICROSECONDS
from tacit.errors import PlanError
from tacit.privacy.count_channels import LEAST_EPSILON, CountChannel
from tacit.privacy.prices import NANO

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]

MOST_SLOTS: Final = 288
"""The most parts of a day with a usual share of their own."""
SCALES: Final = 2.0 ** np.arange(-4, 5)
"""The scales for which a plan has an interval between draws."""
_LEARNING: Final = 0.1
"""How fast the scale follows surprises."""
_SURPRISE: Final = 8.0
"""The largest surprise that counts: an outlier is not a new world."""
_KEPT: Final = 0.9
"""How much of what draws say about the models is kept from draw to draw."""
_DAY: Final = MICROSECONDS["d"]


class FilterState(NamedTuple):
    """The state of a count's filter, `[model][group]`."""

    level: Floats
    """The deviation of the share from its usual course."""
    variance: Floats
    """The variance of the level."""
    scale: Floats
    """How fast the level moves, compared with history."""
    belief: Floats
    """How likely each model is, as a logarithm."""
    paid: Floats
    """`[group]`: the number of the first window that may be drawn next; the draws so far are for
    all before it."""

    def to_array(self) -> Floats:
        """Return the state as one array."""
        return np.vstack(self)

    @property
    def weights(self) -> Floats:
        """How likely each model is; they add up to 1 in each group."""
        found = np.exp(self.belief - self.belief.max(axis=0))
        return np.asarray(found / found.sum(axis=0))


class CountReading(NamedTuple):
    """What is known of a count in one window, `[group]`."""

    exact: Numbers
    """How many have the pattern whatever private events do."""
    opened: Numbers
    """For how many it is open, counted or left out."""
    counted: Numbers
    """How many of these are counted."""
    drawn: Numbers
    """The released number of counted open subjects with the pattern; 0 if nobody is counted."""
    noise: Floats
    """The variance of the noise of what was released."""


@dataclass(frozen=True, slots=True, eq=False)
class CountHistory:
    """The true counts of one query in consecutive windows of history, `[window][group]`."""

    groups: tuple[str, ...]
    """Their names; '' if all subjects are counted together."""
    local: Numbers
    """`[window]`: when it starts, in local time, in microseconds."""
    exact: Numbers
    """How many have the pattern whatever private events do."""
    opened: Numbers
    """For how many it is open."""
    detected: Numbers
    """How many of these have the pattern."""

    def select(self, windows: slice) -> CountHistory:
        """Return some of the windows."""
        parts = (part[windows] for part in (self.local, self.exact, self.opened, self.detected))
        return CountHistory(self.groups, *parts)


class CountEstimate(NamedTuple):
    """The estimated count of all registered subjects, `[group]`, and its interval."""

    value: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True, slots=True, eq=False)
class GroupModel:
    """What history says of a count in one group, by one model."""

    usual: Floats
    """`[part of the day]`: the usual share of open subjects that have the pattern."""
    step: float
    """The variance of what is new in a deviation from the usual share, in each window."""
    spread: float
    """The variance of a deviation."""
    kept: float = 1.0
    """How much of a deviation is left in the next window; all of it in a random walk."""
    belief: float = 0.0
    """How likely the model is at the start, as a logarithm."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "usual": self.usual.tolist(),
            "step": self.step,
            "spread": self.spread,
            "kept": self.kept,
            "belief": self.belief,
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> GroupModel:
        """Read what `to_dict` wrote; raise ValueError if it is malformed."""
        usual = np.array(plain["usual"], np.float64)
        step, spread = float(plain["step"]), float(plain["spread"])
        if usual.ndim != 1 or not 1 <= len(usual) <= MOST_SLOTS:
            raise ValueError("usual")
        if not (np.isfinite(usual).all() and 0 < step < np.inf and 0 < spread < np.inf):
            raise ValueError("model")
        # A former version had random walks alone.
        kept, belief = float(plain.get("kept", 1)), float(plain.get("belief", 0))
        if not (0 <= kept <= 1 and np.isfinite(belief)):
            raise ValueError("model")
        return cls(usual, step, spread, kept, belief)


@dataclass(frozen=True, slots=True)
class CountSpending:
    """How a limit is spread over the windows of its horizon."""

    epsilon: Fraction
    """The epsilon of one window, in whole nano-epsilon: a draw for k windows has k times that."""
    horizon: int
    """In microseconds."""
    intervals: tuple[tuple[int, ...], ...]
    """By model, and by scale as in `SCALES`: how many windows a draw is for."""

    def __post_init__(self) -> None:
        if any(len(own) != len(SCALES) or min(own) < 1 for own in self.intervals):
            raise PlanError("the plan's intervals of counts are damaged; make a new plan")
        if self.epsilon <= 0 or self.horizon <= 0 or (self.epsilon * NANO).denominator != 1:
            raise PlanError("the plan's spending on counts is damaged; make a new plan")

    @property
    def longest(self) -> int:
        """The most windows that a draw is for."""
        return max(map(max, self.intervals))

    def choose_intervals(self, state: FilterState, local: int, slide: int) -> Numbers:
        """Return by group for how many windows a draw is, no further than the horizon's end.

        The most likely model decides. `local` is the start of the window in local time, in
        microseconds.
        """
        likely, groups = np.argmax(state.belief, axis=0), np.arange(len(state.paid))
        places = np.rint(np.log2(state.scale[likely, groups] / SCALES[0])).astype(np.int64)
        chosen = np.array(self.intervals)[likely, np.clip(places, 0, len(SCALES) - 1)]
        left = max(1, (self.horizon - local % self.horizon) // slide)
        return np.asarray(np.minimum(chosen, left))


@dataclass(frozen=True, slots=True, eq=False)
class CountMemory:
    """The memory of one count query, from a plan."""

    models: Mapping[str, tuple[GroupModel, ...]]
    """By group; the only one is '' if all subjects are counted together. All have as many."""
    width: float
    """The half width of an interval, in standard deviations: it covers 95 % of history."""
    error: float
    """The expected mean absolute error of an estimate."""
    spending: CountSpending | None = None
    """How a limit is spent; None if every window is drawn."""

    @property
    def usual_interval(self) -> int:
        """How many windows a draw is for at the start, in the group that is first by name."""
        if self.spending is None:
            return 1
        beliefs = [one.belief for one in next(iter(self.models.values()))]
        return self.spending.intervals[int(np.argmax(beliefs))][len(SCALES) // 2]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        plain: dict[str, Any] = {
            "models": {name: [one.to_dict() for one in own] for name, own in self.models.items()},
            "width": self.width,
            "error": self.error,
        }
        if self.spending is not None:
            plain["spending"] = {
                "nano": int(self.spending.epsilon * NANO),
                "horizon": self.spending.horizon,
                "intervals": [list(own) for own in self.spending.intervals],
            }
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> CountMemory:
        """Read what `to_dict` wrote; raise ValueError or PlanError if it is malformed."""
        # A former version had one model for each group.
        models = {
            str(name): tuple(map(GroupModel.from_dict, own if isinstance(own, list) else [own]))
            for name, own in plain["models"].items()
        }
        width, error = float(plain["width"]), float(plain["error"])
        if len({len(one.usual) for own in models.values() for one in own} - {1}) > 1:
            raise ValueError("usual")
        number = {len(own) for own in models.values()}
        if len(number) != 1 or 0 in number or not (0 < width < np.inf and 0 <= error < np.inf):
            raise ValueError("memory")
        spending = None
        if "spending" in plain:
            given = plain["spending"]
            listed = given["intervals"]
            intervals = listed if isinstance(listed[0], list) else [listed]
            spending = CountSpending(
                Fraction(int(given["nano"]), NANO),
                int(given["horizon"]),
                tuple(tuple(int(one) for one in own) for own in intervals),
            )
            if len(spending.intervals) not in number:
                raise ValueError("intervals")
        return cls(models, width, error, spending)


class CountFilter:
    """Follows one count query, window by window: what to draw, and what the draws say."""

    def __init__(self, memory: CountMemory, groups: Sequence[str | None], slide: int) -> None:
        known = memory.models
        slots = max(len(one.usual) for own in known.values() for one in own)
        # A group that history does not have is like the others together.
        mean = tuple(
            GroupModel(
                np.mean([np.resize(one.usual, slots) for one in same], axis=0),
                max(one.step for one in same),
                max(one.spread for one in same),
                float(np.mean([one.kept for one in same])),
                float(np.mean([one.belief for one in same])),
            )
            for same in zip(*known.values(), strict=True)
        )
        models = [known.get(group or "", mean) for group in groups]

        def gather(name: str) -> Floats:
            return np.array([[getattr(one, name) for one in own] for own in models]).T

        usual = [[np.resize(one.usual, slots) for one in own] for own in models]
        self._usual = np.array(usual).transpose(2, 1, 0)
        """`[part of the day][model][group]`; the others are `[model][group]`."""
        self._step, self._spread = gather("step"), gather("spread")
        self._kept, self._belief = gather("kept"), gather("belief")
        self._width = memory.width
        self._slide = slide
        self.spending = memory.spending

    def start(self) -> FilterState:
        """Return the state before the first window."""
        shape = self._kept.shape
        unpaid = np.full(shape[1], -np.inf)
        return FilterState(
            np.zeros(shape), self._spread.copy(), np.ones(shape), self._belief.copy(), unpaid
        )

    def read(self, array: NDArray[Any] | None) -> FilterState:
        """Read a state; start from the beginning if there is none for these groups."""
        models, groups = self._kept.shape
        fields = len(FilterState._fields) - 1
        if array is None or array.shape != (fields * models + 1, groups):
            return self.start()
        level, variance, scale, belief = array[:-1].reshape(fields, models, groups)
        return FilterState(level, variance, scale, belief, array[-1])

    def choose_intervals(self, state: FilterState, window: int, local: int) -> Numbers:
        """Return by group for how many windows this one is drawn; 0 if it is not."""
        if self.spending is None:
            return np.ones(len(state.paid), np.int64)
        found = self.spending.choose_intervals(state, local, self._slide)
        enough = found >= -(-LEAST_EPSILON // self.spending.epsilon)
        return np.where((window >= state.paid) & enough, found, 0)

    def find_epsilon(self, interval: int, most: Fraction) -> Fraction:
        """Return the epsilon of a draw for so many windows; `most` at most."""
        return most if self.spending is None else min(interval * self.spending.epsilon, most)

    def follow(
        self,
        state: FilterState,
        local: int,
        reading: CountReading,
        paid: Numbers,
        usual: Floats | None = None,
    ) -> tuple[FilterState, CountEstimate]:
        """Advance by a window; `paid` are the windows that may be drawn next if this one was drawn.

        `usual` replaces the usual shares, `[model][group]`.
        """
        if usual is None:
            usual = self._usual[find_slot(local, len(self._usual))]
        state = state._replace(
            level=state.level * self._kept,
            variance=state.variance * self._kept**2 + self._step * state.scale,
        )
        if (reading.counted > 0).any():
            state = self._correct(state, reading, usual)
            state = state._replace(paid=np.where(reading.counted > 0, paid, state.paid))
        weights, shares = state.weights, usual + state.level
        share = (weights * shares).sum(axis=0)
        variance = (weights * (state.variance + (shares - share) ** 2)).sum(axis=0)
        least, most = reading.exact, reading.exact + reading.opened
        value: Floats = np.clip(reading.exact + reading.opened * share, least, most)
        half = self._width * np.sqrt(variance) * reading.opened
        found = CountEstimate(
            value, np.clip(value - half, least, most), np.clip(value + half, least, most)
        )
        return state, found

    def _correct(self, state: FilterState, reading: CountReading, usual: Floats) -> FilterState:
        """Use the counts that were drawn."""
        level, variance, scale, belief, _ = state
        counted, number = reading.counted > 0, np.maximum(reading.counted, 1)
        likely = np.clip(usual + level, 0.02, 0.98)
        sampled = likely * (1 - likely) * (1 / number - 1 / np.maximum(reading.opened, 1))
        noise = reading.noise / number**2 + sampled
        gain = np.where(counted, variance / (variance + noise), 0.0)
        error = reading.drawn / number - usual - level
        surprise = np.minimum(error**2 / (variance + noise), _SURPRISE)
        fit = -(surprise + np.log(variance + noise)) / 2
        belief = np.where(counted, _KEPT * belief + fit - fit.max(axis=0), belief)
        scale = np.clip(scale * np.exp(_LEARNING * (surprise - 1) * gain), SCALES[0], SCALES[-1])
        return state._replace(
            level=level + gain * error,
            variance=np.maximum(variance * (1 - gain), 1e-18),
            scale=scale,
            belief=belief,
        )


def noise_variance(channel: CountChannel) -> float:
    """Return the variance of the noise of a count's channel."""
    decay = np.exp(-float(channel.epsilon))
    return float(2 * decay / (1 - decay) ** 2)


def find_slots(slide: int) -> int:
    """Return into how many parts a day is divided for its usual course."""
    return int(max(1, min(MOST_SLOTS, _DAY // slide)))


def find_slot(local: int, slots: int) -> int:
    """Return the part of the day of a local time."""
    return local % _DAY * slots // _DAY
