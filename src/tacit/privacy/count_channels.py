"""The channel of a count: two-sided geometric noise in whole numbers, with a positive floor."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tacit.errors import AuditError, PrivacyError
from tacit.privacy.channel_audit import largest_ratio
from tacit.privacy.exponentials import format_epsilon, log_above
from tacit.privacy.randomness import RandomSource

_TOTAL: Final = 1 << 63
"""The sum of a row."""
MOST_SUBJECTS: Final = 1 << 24
"""The most subjects in a group."""
LEAST_EPSILON: Final = Fraction(1, 10_000)
"""The least epsilon of a count: with less, noise would spread over more than a million numbers."""
COVERAGE: Final = Fraction(95, 100)
"""What the interval of a count covers at least."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CountChannel:
    """Add two-sided geometric noise to a count of at most `most` subjects.

    Row c has the entry `weights[d]` in the columns c - d and c + d, and `weights[-1]`, the floor,
    in all columns that are further away. Columns go from -reach to most + reach, where reach is
    `len(weights) - 1`. So every row has the same sum. What is missing to 2**63 is in the first
    column, the same in every row.

    Guarantee: counts that differ by one, as if one subject changes, are within epsilon.
    Why: each weight is at least the one before it, divided by a lower bound of exp(epsilon).
    Neighbouring rows have neighbouring weights in every column but the first, where they have the
    same entry. The audit compares all of them in whole numbers; a channel that fails cannot exist.
    Proof: docs/guarantee.md#counts

    >>> channel = make_count_channel(Fraction(1))
    >>> channel.mean_error, channel.half_width, channel.coverage
    (0.850918..., 3, 0.9732...)
    """

    epsilon: Fraction
    weights: tuple[int, ...]
    """The entries by distance from the true count, up to the first that is the floor."""
    most: int = MOST_SUBJECTS
    _sums: NDArray[np.uint64] = field(init=False)

    def __post_init__(self) -> None:
        first = np.array([weight - self.floor for weight in self.weights[:-1]], np.uint64)
        around = np.concatenate([first[:0:-1], first])
        object.__setattr__(self, "_sums", np.cumsum(around, dtype=np.uint64))
        if min(self.weights) < 1 or self.remainder < 0 or len(self.weights) < 2:
            raise PrivacyError("the weights of a count's channel are positive and sum to 2**63")
        if self.ratio > largest_ratio(self.epsilon):
            distance = max(range(self.reach), key=lambda d: self._step(d))
            raise AuditError(
                asked=self.epsilon,
                true=self.true_epsilon,
                high=distance,
                low=distance + 1,
                column=0,
            )

    @property
    def floor(self) -> int:
        """The entry of all columns that are far from the true count."""
        return self.weights[-1]

    @property
    def reach(self) -> int:
        """The distance from which on entries are the floor."""
        return len(self.weights) - 1

    @property
    def columns(self) -> int:
        """The number of possible outputs."""
        return self.most + 1 + 2 * self.reach

    @property
    def remainder(self) -> int:
        """What the first column has beside the floor."""
        band = self.weights[0] + 2 * sum(self.weights[1:-1])
        return _TOTAL - band - self.floor * (self.columns - 2 * self.reach + 1)

    def _step(self, distance: int) -> Fraction:
        near, far = self.weights[distance], self.weights[distance + 1]
        return Fraction(max(near, far), min(near, far))

    @property
    def ratio(self) -> Fraction:
        """The largest ratio between neighbouring rows, in any column: what the audit compares."""
        return max(self._step(distance) for distance in range(self.reach))

    @property
    def true_epsilon(self) -> Fraction:
        """The exact epsilon of a draw, rounded up."""
        return Fraction(log_above(self.ratio))

    @property
    def mean_error(self) -> float:
        """The expected distance between the true count and what is drawn."""
        return float(2 * sum(d * weight for d, weight in enumerate(self.weights)) / _TOTAL)

    @property
    def half_width(self) -> int:
        """The distance within which a draw is with a probability of at least 95 %."""
        inside = self.weights[0]
        for distance in range(self.reach):
            if inside >= COVERAGE * _TOTAL:
                return distance
            inside += 2 * self.weights[distance + 1]
        return self.reach

    @property
    def coverage(self) -> float:
        """The probability that a draw is within `half_width`."""
        return (self.weights[0] + 2 * sum(self.weights[1 : self.half_width + 1])) / _TOTAL

    def draw(self, counts: NDArray[np.int64], source: RandomSource) -> NDArray[np.int64]:
        """Draw an output for each count, independently.

        A uniform number below 2**63 is looked up among the weights above the floor, then among
        the floors of all columns; the rest belongs to the first column.
        """
        if len(counts) and not 0 <= counts.min() <= counts.max() <= self.most:
            raise PrivacyError(f"a group has at most {self.most} subjects")
        numbers = source.draw_words(counts.size).reshape(counts.shape) >> np.uint64(1)
        inside = self._sums[-1]
        near = np.searchsorted(self._sums, numbers, side="right") - (self.reach - 1)
        rest = np.where(numbers >= inside, numbers - inside, np.uint64(0)) // np.uint64(self.floor)
        column = np.where(rest < np.uint64(self.columns), rest, np.uint64(0)).astype(np.int64)
        return np.where(numbers < inside, counts + near, column - self.reach)

    def __repr__(self) -> str:
        return (
            f"CountChannel(epsilon {format_epsilon(self.epsilon)}, mean error"
            f" {self.mean_error:.3g})"
        )


@lru_cache(256)
def make_count_channel(epsilon: Fraction, most: int = MOST_SUBJECTS) -> CountChannel:
    """Make the channel of an epsilon, for groups of at most `most` subjects."""
    if epsilon < LEAST_EPSILON:
        raise PrivacyError(
            f"a count needs an epsilon of at least {format_epsilon(LEAST_EPSILON)} for each window;"
            f" it would get {float(epsilon):.3g}. Ask for fewer counts, or raise epsilon"
        )
    limit = largest_ratio(epsilon)
    share = (limit - 1) / (limit + 1)
    peak = int(_TOTAL * share)
    while True:
        weights = _decrease(peak, limit)
        reach = len(weights) - 1
        band = weights[0] + 2 * sum(weights[1:-1])
        excess = band + weights[-1] * (most + 2) - _TOTAL
        if excess <= 0:
            return CountChannel(epsilon, tuple(weights), most)
        peak -= int(excess * share) + reach.bit_length()


def _decrease(peak: int, limit: Fraction) -> list[int]:
    """Return weights that decrease by at most the factor `limit`, down to where they stay."""
    high, low = limit.numerator, limit.denominator
    weights = [peak]
    while True:
        following = -(-weights[-1] * low // high)
        if following == weights[-1]:
            return weights if len(weights) > 1 else [peak, following]
        weights.append(following)
