"""Find public signals that move the odds of a private pattern, although windows are dependent.

**The test.** For a signal x and a private pattern y, each cluster g of windows has the score
`u_g = n_xy - r_x n_y - r_y n_x + r_x r_y n`: the sum over its windows of (x - r_x)(y - r_y), with
r the rates over all windows. If x says nothing about y, scores have mean 0. The statistic is
`t = sum of u_g / sqrt(V)`, where V is the sum of the squared scores, and at least the variance of
independent windows, `n r_x (1 - r_x) r_y (1 - r_y)`. The p-value is `2 exp(-t**2 / 2)`.

**Why it keeps its level.** Windows of one subject depend on each other: a stay lasts, and some
subjects are more active than others. So a cluster is all windows of a subject, and nothing is
assumed about dependence inside it; different subjects are taken to be independent. A sum of
symmetric terms, divided by the root of the sum of their squares, has sub-Gaussian tails for any
number of terms, `P(|t| >= z) <= 2 exp(-z**2 / 2)` (Hoeffding's bound for the signs, given the
absolute values; Efron 1969). So k clusters never give a p-value below `2 exp(-k / 2)`. Quantiles of
a normal or t distribution have no such bound far in the tails, where many tests are decided. Scores
of rare events are skewed, not symmetric: there the upper tail of t is lighter than the bound, and
the variance of independent windows keeps the lower tail below it (Chernoff's bounds for counts).

**Few subjects.** With fewer than `ENOUGH` subjects, clusters are stretches of whole words (64
windows) of a subject, so that there are about that many. Rates are then those of each subject (a
*stratum*), since differences between a few subjects prove nothing, and the odds ratio is that of
Mantel and Haenszel. Dependence across the ends of stretches is neglected; the report says so.

**Many tests.** Benjamini and Yekutieli (2001) bound the expected share of false findings among all
findings, under any dependence between tests. If there is no leak at all, that is the probability of
reporting anything. Single signals and pairs have half of the error rate each. The bounds of odds
ratios have the level `1 - rate * findings / tests`: then the expected share of bounds that miss is
at most the rate, although only findings get bounds (Benjamini and Yekutieli 2005).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.kernels import compiled

Words: TypeAlias = NDArray[np.uint64]
Floats: TypeAlias = NDArray[np.float64]
Whole: TypeAlias = NDArray[np.int64]

ENOUGH: Final = 100
"""From this many subjects on, all windows of a subject are one cluster."""
FEWEST: Final = 5
"""Pairs that occur together in fewer windows are not tested."""
MOST_STEPS: Final = 1 << 32
"""The most steps (words, targets and pairs) for pairs; beyond it, fewer clusters are used."""


class Clusters(NamedTuple):
    """Words of windows in a row, cut into clusters, and clusters into strata."""

    bounds: Whole
    """The first word of each cluster, and the end of the last."""
    strata: Whole
    """The first cluster of each stratum, and the end of the last. Rates are those of a stratum."""

    @property
    def number(self) -> int:
        """The number of clusters."""
        return len(self.bounds) - 1

    @property
    def whole(self) -> bool:
        """Whether a cluster is all windows of a subject, and there is one stratum."""
        return len(self.strata) <= 2

    def add(self, counts: Floats) -> Floats:
        """Add counts `[...][cluster]` up to `[...][stratum]`."""
        return np.asarray(np.add.reduceat(counts, self.strata[:-1], axis=-1))

    def spread(self, values: Floats) -> Floats:
        """Repeat values `[...][stratum]` for each cluster."""
        return values.repeat(np.diff(self.strata), axis=-1)

    def choose(self, chosen: Whole) -> Clusters:
        """Return some clusters, in a row."""
        ends = np.cumsum(np.diff(self.bounds)[chosen])
        stratum = np.searchsorted(self.strata, chosen, side="right")
        firsts = np.flatnonzero(np.diff(stratum, prepend=-1))
        return Clusters(np.append(0, ends), np.append(firsts, len(chosen)))


def find_clusters(subjects: int, words: int) -> Clusters:
    """Cut the words of subjects, one subject after the other, into clusters.

    >>> find_clusters(2, 3)
    Clusters(bounds=array([0, 1, 2, 3, 4, 5, 6]), strata=array([0, 3, 6]))
    >>> find_clusters(100, 3).bounds[:4].tolist()
    [0, 3, 6, 9]
    """
    if subjects >= ENOUGH:
        return Clusters(np.arange(subjects + 1) * words, np.array([0, subjects]))
    length = max(1, subjects * words // ENOUGH)
    cuts = np.arange(0, words, length)
    firsts = (np.arange(subjects)[:, np.newaxis] * words + cuts).ravel()
    return Clusters(np.append(firsts, subjects * words), np.arange(subjects + 1) * len(cuts))


@dataclass(frozen=True, eq=False)
class Targets:
    """Private patterns, each at some lags, aligned with the windows of signals."""

    present: Words
    """`[target][word]`: whether the private pattern is detected."""
    valid: Words
    """`[target][word]`: the windows that count."""


class TargetCounts(NamedTuple):
    """Counts by cluster, `[target][cluster]`."""

    windows: Floats
    private: Floats


def count_targets(targets: Targets, clusters: Clusters) -> TargetCounts:
    """Count windows, and windows with the private pattern."""
    return TargetCounts(
        _count(targets.valid, clusters), _count(targets.present & targets.valid, clusters)
    )


def _count(columns: Words, clusters: Clusters) -> Floats:
    ones = np.bitwise_count(columns).astype(np.int64)
    sums = np.concatenate([np.zeros((len(ones), 1), np.int64), ones.cumsum(axis=1)], axis=1)
    return np.diff(sums[:, clusters.bounds], axis=1).astype(np.float64)


def count_signals(signals: Words, targets: Targets, clusters: Clusters) -> NDArray[np.int32]:
    """Return `[signal][target][cluster][2]`: windows with the signal, and with the pattern too."""
    shape = (len(signals), len(targets.valid), clusters.number, 2)
    found = np.zeros(shape, np.int32)
    _count_signals(signals, targets.present, targets.valid, clusters.bounds, found)
    return found


def score_signals(counts: NDArray[np.int32], targets: TargetCounts, clusters: Clusters) -> Floats:
    """Compute the statistic t, `[signal][target]`; 0 where nothing can be tested."""
    statistic = np.zeros(counts.shape[:2])
    n, n_y = clusters.add(targets.windows), clusters.add(targets.private)
    rate_y = n_y / np.maximum(n, 1)
    for signal, own in enumerate(counts):  # one signal at a time, to bound the memory
        seen, both = own[..., 0].astype(np.float64), own[..., 1].astype(np.float64)
        rate_x = clusters.add(seen) / np.maximum(n, 1)
        x, y = clusters.spread(rate_x), clusters.spread(rate_y)
        scores = both - x * targets.private - y * seen + x * y * targets.windows
        floor = (n * rate_x * (1 - rate_x) * rate_y * (1 - rate_y)).sum(axis=1)
        variance = np.maximum((scores**2).sum(axis=1), floor)
        possible = floor > 0
        statistic[signal] = np.where(
            possible, scores.sum(axis=1) / np.sqrt(np.where(possible, variance, 1)), 0
        )
    return statistic


def score_pairs(
    signals: Words,
    targets: Targets,
    clusters: Clusters,
    counts: NDArray[np.int32],
    most_steps: int = MOST_STEPS,
) -> tuple[Whole, Floats, int]:
    """Test whether two signals together tell more than each of them.

    Returns the pairs `[pair][2]` that occur together, the statistic `[pair][target]`, and the
    number of clusters that were used. The statistic is the smaller of two: of the second signal in
    windows with the first, and of the first in windows with the second. It is 0 if they have
    different signs: then one of the signals alone tells more.
    """
    number, words = signals.shape
    steps = number * (number - 1) // 2 * words * (1 + len(targets.valid))
    if steps > most_steps:
        keep = max(1, int(clusters.number * most_steps / steps))
        chosen = np.unique(np.linspace(0, clusters.number - 1, keep).astype(np.int64))
        lengths = np.diff(clusters.bounds)
        own = np.flatnonzero(np.isin(np.arange(len(lengths)).repeat(lengths), chosen))
        signals = np.ascontiguousarray(signals[:, own])
        targets = Targets(
            np.ascontiguousarray(targets.present[:, own]),
            np.ascontiguousarray(targets.valid[:, own]),
        )
        clusters = clusters.choose(chosen)
        counts = np.ascontiguousarray(counts[:, :, chosen])
    first, second = np.triu_indices(number, 1)
    pairs = np.column_stack([first, second]).astype(np.int64)
    statistic = np.zeros((len(pairs), len(targets.valid)))
    together = np.zeros(len(pairs), np.int64)
    _score_pairs(
        signals,
        targets.present,
        targets.valid,
        clusters.bounds,
        clusters.strata,
        counts,
        pairs,
        FEWEST,
        statistic,
        together,
    )
    kept = together >= FEWEST
    return pairs[kept], statistic[kept], clusters.number


def compute_p_values(statistic: Floats) -> Floats:
    """Return an upper bound of the probability of such a statistic without a leak.

    >>> compute_p_values(np.array([0.0, 4.0])).round(5).tolist()
    [1.0, 0.00067]
    """
    return np.asarray(np.minimum(1.0, 2 * np.exp(-(statistic**2) / 2)))


def control_discoveries(p_values: Floats, rate: float) -> NDArray[np.bool_]:
    """Choose findings so that the expected share of false ones is at most `rate`.

    Benjamini and Yekutieli's rule, which holds however the tests depend on each other.

    >>> control_discoveries(np.array([0.001, 0.5, 0.9]), 0.05).tolist()
    [True, False, False]
    """
    number = p_values.size
    if not number:
        return np.zeros(p_values.shape, np.bool_)
    harmonic = float((1 / np.arange(1, number + 1)).sum())
    ordered = np.sort(p_values.ravel())
    below = ordered <= rate * np.arange(1, number + 1) / (number * harmonic)
    if not below.any():
        return np.zeros(p_values.shape, np.bool_)
    return np.asarray(p_values <= ordered[np.flatnonzero(below)[-1]])


class OddsRatio(NamedTuple):
    """How far the odds of a private pattern move on seeing a signal, with bounds."""

    value: float
    low: float
    high: float


def bound_odds_ratio(
    signal: Words, present: Words, valid: Words, clusters: Clusters, level: float
) -> OddsRatio:
    """Estimate an odds ratio with bounds at a confidence level, robust to dependent windows.

    The estimate is that of Mantel and Haenszel; with one stratum, the cross ratio. The variance of
    its logarithm is the sum over clusters of their squared influence, and at least that of
    independent windows (Robins, Breslow and Greenland 1986). Half a window is added to each case,
    over all strata. The bounds use the same tails as the test.
    """
    present = present & valid
    columns = np.array(
        [
            signal & present,
            signal & valid & ~present,
            ~signal & present,
            ~signal & valid & ~present,
        ]
    )
    cells = _count(columns, clusters)
    totals = cells.sum(axis=1)
    own = clusters.add(cells)
    a, b, c, d = own + 0.5 / own.shape[1]
    n = a + b + c + d
    up, down = a * d / n, b * c / n
    upper, lower = up.sum(), down.sum()
    slopes = np.array(
        [
            (d / n - up / n) / upper + down / n / lower,
            -up / n / upper - (c / n - down / n) / lower,
            -up / n / upper - (b / n - down / n) / lower,
            (a / n - up / n) / upper + down / n / lower,
        ]
    )
    influence = (clusters.spread(slopes) * cells).sum(axis=0)
    straight, cross = (a + d) / n, (b + c) / n
    independent = (
        (straight * up).sum() / (2 * upper**2)
        + (straight * down + cross * up).sum() / (2 * upper * lower)
        + (cross * down).sum() / (2 * lower**2)
    )
    deviation = np.sqrt(max(float((influence**2).sum()), float(independent)))
    reach = float(np.sqrt(2 * np.log(2 / (1 - level)))) * deviation
    logarithm = float(np.log(upper / lower))
    low = 0.0 if totals[0] == 0 or totals[3] == 0 else float(np.exp(logarithm - reach))
    high = np.inf if totals[1] == 0 or totals[2] == 0 else float(np.exp(logarithm + reach))
    return OddsRatio(float(np.exp(logarithm)), low, high)


@compiled
def _ones(word: np.uint64) -> np.int64:
    """Count the bits of a word that are set."""
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    word = (word & np.uint64(0x3333333333333333)) + (
        (word >> np.uint64(2)) & np.uint64(0x3333333333333333)
    )
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@compiled
def _count_signals(
    signals: Words, present: Words, valid: Words, bounds: Whole, found: NDArray[np.int32]
) -> None:
    for signal in range(len(signals)):
        for target in range(len(valid)):
            for cluster in range(len(bounds) - 1):
                seen, both = np.int64(0), np.int64(0)
                for word in range(bounds[cluster], bounds[cluster + 1]):
                    own = signals[signal, word] & valid[target, word]
                    seen += _ones(own)
                    both += _ones(own & present[target, word])
                found[signal, target, cluster, 0] = seen
                found[signal, target, cluster, 1] = both


@compiled
def _score_pairs(
    signals: Words,
    present: Words,
    valid: Words,
    bounds: Whole,
    strata: Whole,
    counts: NDArray[np.int32],
    pairs: Whole,
    fewest: int,
    statistic: Floats,
    together: Whole,
) -> None:
    """Compute the statistic of each pair and target."""
    clusters, targets = len(bounds) - 1, len(valid)
    seen, both = np.zeros((2, targets, clusters))
    for pair in range(len(pairs)):
        first, second = pairs[pair, 0], pairs[pair, 1]
        met = np.int64(0)
        for word in range(signals.shape[1]):
            met += _ones(signals[first, word] & signals[second, word])
        together[pair] = met
        if met < fewest:
            continue
        for cluster in range(clusters):
            for target in range(targets):
                one, two = np.int64(0), np.int64(0)
                for word in range(bounds[cluster], bounds[cluster + 1]):
                    own = signals[first, word] & signals[second, word] & valid[target, word]
                    one += _ones(own)
                    two += _ones(own & present[target, word])
                seen[target, cluster] = one
                both[target, cluster] = two
        for target in range(targets):
            least = np.inf
            sign = 0.0
            for place in range(2):
                outer = pairs[pair, place]
                total, floor, squares = 0.0, 0.0, 0.0
                for stratum in range(len(strata) - 1):
                    n, n_x, n_y = 0.0, 0.0, 0.0
                    for cluster in range(strata[stratum], strata[stratum + 1]):
                        n += counts[outer, target, cluster, 0]
                        n_y += counts[outer, target, cluster, 1]
                        n_x += seen[target, cluster]
                    if n <= 0.0:
                        continue
                    x, y = n_x / n, n_y / n
                    floor += n * x * (1 - x) * y * (1 - y)
                    for cluster in range(strata[stratum], strata[stratum + 1]):
                        part = both[target, cluster] - y * seen[target, cluster]
                        part -= x * counts[outer, target, cluster, 1]
                        part += x * y * counts[outer, target, cluster, 0]
                        total += part
                        squares += part * part
                value = total / np.sqrt(max(squares, floor)) if floor > 0.0 else 0.0
                if place == 1 and value * sign <= 0.0:
                    least = 0.0
                sign = value
                least = min(least, abs(value))
            statistic[pair, target] = least if sign > 0.0 else -least
