"""Quality against limits: what a limit per day gives, and the least limit for a quality.

All limits of a specification are changed in proportion. Quality is simulated on held-out windows of
history with memory and spending, so it needs a mechanism with memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from os import PathLike
from typing import TYPE_CHECKING, Final

from tacit.durations import format_duration
from tacit.errors import PlanError
from tacit.pictures import make_picture
from tacit.planning.plan import Expected, Plan
from tacit.planning.planner import choose_split, make_plan
from tacit.planning.requirements import find_lack
from tacit.privacy.statistics import Statistics
from tacit.progress import ProgressCallback, ignore_progress
from tacit.spec.epsilon import Limit
from tacit.spec.epsilon_split import EpsilonSplit
from tacit.spec.specification import Private, Specification

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FACTORS: Final = tuple(Fraction(n, 16) for n in (1, 2, 4, 8, 16, 32, 64, 128))
"""The limits of a curve, as parts of those in the specification."""
_LARGEST: Final = Fraction(256)
_PRECISION: Final = 1.03
"""The search ends when a limit is known up to this factor."""
_BELOW: Final = 3
"""How many smaller limits are tried below one that is enough: quality need not grow evenly."""


@dataclass(frozen=True, slots=True)
class LimitPoint:
    """The expected quality with some limits."""

    factor: Fraction
    """The limits, as a part of those in the specification."""
    limits: dict[str, str]
    """By private pattern, such as `20 per day`."""
    expected: Expected
    plan: Plan


class LimitCurve(list[LimitPoint]):
    """The expected quality with several limits, in their order."""

    def plot(self, path: str | PathLike[str] | None = None) -> Figure:
        """Draw quality against limits; with a path, write the figure to this file too."""
        from tacit.planning.limits_picture import draw_limits

        return make_picture(lambda: draw_limits(self), path)


@dataclass(frozen=True, slots=True)
class LeastLimit:
    """The least limits for a required quality, or the best that can be had."""

    point: LimitPoint
    """The least limits that are enough; if none are, the largest that were tried."""
    enough: bool
    obstacle: str | None = None
    """If no limit is enough, the query that misses its quality by most."""


def predict_limits(
    spec: Specification,
    statistics: Sequence[Statistics],
    factor: Fraction = Fraction(1),
    *,
    required: Sequence[float | None] | None = None,
    split: EpsilonSplit | None = None,
) -> LimitPoint:
    """Plan for limits that are multiplied by a factor; raise PlanError if there is no memory.

    `split` is how counts and answers share epsilon, if that is chosen already.
    """
    scaled = _scale(spec, factor)
    plan = make_plan(scaled, statistics, "optimal", required=required, fall_back=False, split=split)
    if plan.limited is None:
        raise PlanError(
            "what a limit gives can be predicted with memory only: it needs `memory: true`,"
            " posterior decoding, and history of a few dozen windows or more"
        )
    limits = {one.name: str(one.limit) for one in scaled.private if one.limit is not None}
    return LimitPoint(factor, limits, plan.limited, plan)


def predict_curve(
    spec: Specification,
    statistics: Sequence[Statistics],
    factors: Sequence[Fraction] = FACTORS,
    progress: ProgressCallback = ignore_progress,
) -> LimitCurve:
    """Predict the quality with several limits."""
    points = LimitCurve()
    split, _ = choose_split(spec, statistics, "optimal")
    possible = [factor for factor in factors if factor >= _find_smallest(spec)]
    for number, factor in enumerate(possible):
        progress(number / len(possible), f"simulating limits, {number + 1} of {len(possible)}")
        points.append(predict_limits(spec, statistics, factor, split=split))
    return points


def find_least_limit(
    spec: Specification,
    statistics: Sequence[Statistics],
    required: Sequence[float | None],
    progress: ProgressCallback = ignore_progress,
) -> LeastLimit:
    """Find the least limits with which every query reaches its quality."""
    tried: dict[Fraction, LimitPoint] = {}
    split, _ = choose_split(spec, statistics, "optimal")

    def is_enough(factor: Fraction) -> bool:
        progress(min(0.95, len(tried) / 14), f"simulating limits, {len(tried) + 1}")
        tried[factor] = predict_limits(spec, statistics, factor, required=required, split=split)
        return lack(factor)[0] <= 0

    def lack(factor: Fraction) -> tuple[float, str]:
        point = tried[factor]
        return find_lack(point.expected, required, point.plan.windows)

    low, high = Fraction(0), Fraction(1)
    while not is_enough(high):
        if high >= _LARGEST:
            return LeastLimit(tried[high], False, lack(high)[1])
        low, high = high, high * 4
    low = low or _find_smallest(spec)
    while float(high / low) > _PRECISION:
        middle = Fraction(float(low * high) ** 0.5).limit_denominator(1000)
        if middle in tried or not low < middle < high:
            break
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    for step in range(1, _BELOW + 1):
        below = high * Fraction(10 - step, 10)
        if below not in tried and below >= _find_smallest(spec) and is_enough(below):
            high = below
    return LeastLimit(tried[high], True)


def _find_smallest(spec: Specification) -> Fraction:
    """Return the factor with which each limit allows one window."""
    needed = [
        Fraction(one.epsilon) / Fraction(one.limit.amount)
        for one in spec.private
        if one.limit is not None
    ]
    return max(needed, default=Fraction(1)) * Fraction(99, 100)


def _scale(spec: Specification, factor: Fraction) -> Specification:
    """Multiply all limits by a factor."""
    if all(one.limit is None for one in spec.private):
        raise PlanError(
            "no private pattern has a limit: give one, such as `limit: 20 per day`, and all limits"
            " are changed in proportion"
        )
    private = tuple(_scale_limit(one, factor) for one in spec.private)
    return spec.model_copy(update={"private": private}).checked()


def _scale_limit(private: Private, factor: Fraction) -> Private:
    if private.limit is None:
        return private
    amount = Fraction(private.limit.amount) * factor
    rounded = Decimal(amount.numerator * 1000 // amount.denominator) / 1000
    text = f"{rounded.normalize():f} per {format_duration(private.limit.horizon)}"
    return private.model_copy(update={"limit": Limit.model_validate(text)})
