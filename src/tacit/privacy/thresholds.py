"""Thresholds: from which posterior on a query is answered yes, chosen on held-out windows.

The windows of each query are counted by the level of their posterior. Levels are narrow ranges,
and a threshold is the lower end of one, so counts are exact for every threshold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacit.privacy.quality import Confusion, QualityObjective, micro_alpha

Floats = NDArray[np.float64]

LEVELS: Final = np.concatenate([[0.0], 1 / (1 + np.exp(-np.linspace(-12.0, 12.0, 1201)))])
"""The lower end of each level. A posterior of 0 is in the first, and is never answered yes."""
_MIDDLES: Final = np.append(np.sqrt(LEVELS[:-1] * LEVELS[1:]), LEVELS[-1])
"""The posterior that each level stands for."""
_PREDICTED: Final = 200
"""How many true windows the posteriors themselves count for when a threshold is chosen."""
_LEARNT: Final = 10
"""With fewer true windows than this, the posteriors themselves are little more than chance."""
_BLURRED: Final = 8
"""The levels that an uncertain posterior may be off by, as a standard deviation."""
_TIE: Final = 1e-12
_EVEN: Final = 0.5
"""The threshold of one of several values: at most one of them is more likely than not."""
_ALIKE: Final = 0.01
"""Thresholds whose Q differs by at most this are considered equally good."""
_PUBLIC: Final = "public_thresholds"
_CONCEDED: Final = 0.001
"""The micro Q that may be given up so that rare queries are answered at all."""


@dataclass(frozen=True, slots=True, eq=False)
class PosteriorCounts:
    """The windows of each query by the level of its posterior."""

    true: Floats
    """`[query][level]`: the number of windows in which the query is true."""
    false: Floats

    @classmethod
    def zeros(cls, queries: int) -> PosteriorCounts:
        """Return the counts of no windows."""
        shape = (queries, len(LEVELS))
        return cls(np.zeros(shape), np.zeros(shape))

    def add(
        self, query: int | NDArray[np.int64], posterior: Floats, true: Floats, false: Floats
    ) -> None:
        """Add windows with these posteriors; `query` is one, or one for each."""
        level = np.searchsorted(LEVELS, posterior, side="right") - 1
        for counts, more in ((self.true, true), (self.false, false)):
            if isinstance(query, int):
                counts[query] += np.bincount(level, more, len(LEVELS))
            else:
                place = query * len(LEVELS) + level
                counts += np.bincount(place, more, counts.size).reshape(counts.shape)

    def add_exact(self, query: int, positives: float) -> None:
        """Add the windows of a query that public events decide."""
        self.true[query, -1] += positives

    def plus(self, other: PosteriorCounts, sign: int = 1) -> PosteriorCounts:
        """Return the sum of two counts, or their difference."""
        return PosteriorCounts(self.true + sign * other.true, self.false + sign * other.false)

    def predict(self) -> PosteriorCounts:
        """Return how many of the windows at each level would be true if posteriors were right."""
        total = self.true + self.false
        true = total * _MIDDLES
        true[:, 0] = self.true[:, 0]
        return PosteriorCounts(true, total - true)

    def confusion(self, thresholds: Floats) -> Confusion[Floats]:
        """Return the counts of each query, given its threshold."""
        yes = thresholds[:, np.newaxis] <= LEVELS
        tp, fp = (np.where(yes, part, 0.0).sum(axis=1) for part in (self.true, self.false))
        return Confusion(tp, fp, np.maximum(0.0, self.true.sum(axis=1) - tp))


class JudgedThresholds(NamedTuple):
    """Thresholds, and what to expect with thresholds that were chosen without the same windows."""

    thresholds: Floats
    confusion: Confusion[Floats]


def judge(
    folds: Sequence[PosteriorCounts], objective: QualityObjective, *, uncertain: bool = False
) -> JudgedThresholds:
    """Choose the thresholds on all folds, and judge each fold by those of the others.

    A fold takes the thresholds of all folds unless others are clearly better on the other folds:
    where two very different thresholds are about equally good, folds would differ in which they
    take, and their sum would be worse than both.
    Where the only true windows are in the fold that is judged, the others say nothing about its
    thresholds, and those of all folds are used.

    Where true windows are few, thresholds also follow what the posteriors predict. If posteriors
    are `uncertain`, as those of a fitted model, thresholds are chosen as if each could also be a
    little smaller or larger.
    """
    total = folds[0]
    for fold in folds[1:]:
        total = total.plus(fold)

    def spread(counts: PosteriorCounts) -> PosteriorCounts:
        return _blur(counts) if uncertain else _smooth_counts(counts)

    thresholds = choose_thresholds(spread(total), objective)
    if len(folds) == 1:
        return JudgedThresholds(thresholds, total.confusion(thresholds))
    alphas, free = np.array(objective.alphas), objective.free
    common = np.zeros(len(thresholds), np.bool_)
    if not objective.separate:
        common = free & (thresholds == _best_common(spread(total), objective))
    found = []
    for fold in folds:
        rest = total.plus(fold, -1)
        others = spread(rest)
        known = others.confusion(thresholds)
        own = _best_levels(others, alphas)
        better = others.confusion(own).quality(alphas) > known.quality(alphas) + _ALIKE
        informed = rest.true.sum(axis=1) > _TIE
        if common.any():
            own[common] = _best_common(others, objective)
            moved = others.confusion(np.where(common, own, thresholds))
            better[common] = objective.value(moved) > objective.value(known) + _ALIKE
            informed[common] = informed.any()
        found.append(fold.confusion(np.where(informed & better & free, own, thresholds)))
    return JudgedThresholds(thresholds, add_confusions(found))


def _blur(counts: PosteriorCounts) -> PosteriorCounts:
    """Spread windows over neighbouring levels; what is decided stays where it is."""
    steps = np.arange(-3 * _BLURRED, 3 * _BLURRED + 1)
    kernel = np.exp(-0.5 * (steps / _BLURRED) ** 2)
    kernel /= kernel.sum()
    parts = []
    for part in (counts.true, counts.false):
        inner = part[:, 1:-1]
        spread = np.array([np.convolve(row, kernel, "same") for row in inner]).reshape(inner.shape)
        parts.append(np.column_stack([part[:, 0], spread, part[:, -1]]))
    return PosteriorCounts(*parts)


def add_confusions(found: Sequence[Confusion[Floats]]) -> Confusion[Floats]:
    """Add up the counts of several parts of history."""
    return Confusion(
        *(np.sum([getattr(one, part) for one in found], axis=0) for part in ("tp", "fp", "fn"))
    )


def choose_thresholds(counts: PosteriorCounts, objective: QualityObjective) -> Floats:
    """Return the best threshold of each query.

    For the micro average one threshold for all is best. A query that it answers always no gets
    its own best threshold, as long as that hardly costs quality. Where each query's quality counts
    by itself, each has its own. Values of a query with several have 1/2.
    """
    own = np.where(objective.free, _best_levels(counts, np.array(objective.alphas)), _EVEN)
    if objective.separate:
        return own
    thresholds = np.where(objective.free, _best_common(counts, objective), _EVEN)
    return _answer_rare(counts, objective, thresholds, own)


def _best_common(counts: PosteriorCounts, objective: QualityObjective) -> float:
    """Return the threshold that is best for all queries together."""
    free = objective.free
    together = PosteriorCounts(
        counts.true[free].sum(axis=0, keepdims=True), counts.false[free].sum(axis=0, keepdims=True)
    )
    alphas = np.array([micro_alpha(np.array(objective.alphas)[free])])
    return float(_best_levels(together, alphas)[0])


def _answer_rare(
    counts: PosteriorCounts, objective: QualityObjective, thresholds: Floats, own: Floats
) -> Floats:
    """Give queries that are always answered no their own thresholds, the cheapest first.

    A threshold that was chosen by one or two true windows finds these, and hardly any others. So
    no more claims count as true than posteriors predict.
    """
    found, other = counts.confusion(thresholds), counts.confusion(own)
    predicted = np.minimum(other.tp, counts.predict().confusion(own).tp)
    claims, positives = other.tp + other.fp, other.tp + other.fn
    silent = np.flatnonzero((found.tp + found.fp <= _TIE) & (found.fn > 0) & (other.tp > 0))
    least = objective.value(found) - _CONCEDED
    for query in silent[np.argsort(other.fp[silent], kind="stable")]:
        found.tp[query] = predicted[query]
        found.fp[query] = claims[query] - predicted[query]
        found.fn[query] = positives[query] - predicted[query]
        if objective.value(found) < least:
            break
        thresholds[query] = own[query]
    return thresholds


def _best_levels(counts: PosteriorCounts, alphas: Floats) -> Floats:
    """Return for each query the threshold with its best Q, in the middle of equally good ones."""
    tp, fp = (
        np.cumsum(part[:, ::-1], axis=1)[:, ::-1][:, 1:] for part in (counts.true, counts.false)
    )
    fn = np.maximum(0.0, counts.true.sum(axis=1, keepdims=True) - tp)
    quality = Confusion(tp, fp, fn).quality(alphas[:, np.newaxis])
    good = quality >= quality.max(axis=1, keepdims=True) - _TIE
    # Of several ranges of equally good thresholds the highest: it claims least.
    last = good.shape[1] - 1 - np.argmax(good[:, ::-1], axis=1)
    bad = ~good & (np.arange(good.shape[1]) < last[:, np.newaxis])
    first = np.where(bad.any(axis=1), good.shape[1] - np.argmax(bad[:, ::-1], axis=1), 0)
    return np.asarray(LEVELS[1 + (first + last) // 2])


def _smooth_counts(counts: PosteriorCounts) -> PosteriorCounts:
    """Move counts towards what their posteriors predict, the more the fewer true windows there are.

    With few true windows, how many of them are at a level is mostly chance.
    """
    found = counts.true.sum(axis=1, keepdims=True)
    share = np.where(found >= _LEARNT, _PREDICTED / (_PREDICTED + found), 0.0)
    predicted = counts.predict()
    return PosteriorCounts(
        counts.true + share * (predicted.true - counts.true),
        counts.false + share * (predicted.false - counts.false),
    )


def read_thresholds(plain: Mapping[str, Any], queries: int) -> Floats:
    """Read the thresholds of a plan; old plans have one for all queries. Raise ValueError."""
    if "thresholds" not in plain:
        return np.full(queries, float(plain["threshold"]))
    return _check(plain["thresholds"], queries)


def write_public_thresholds(thresholds: Floats | None) -> dict[str, Any]:
    """Return the entry of a plan for windows that are not paid for; none if it has no such ones."""
    return {} if thresholds is None else {_PUBLIC: thresholds.tolist()}


def read_public_thresholds(plain: Mapping[str, Any], queries: int) -> Floats | None:
    """Read what `write_public_thresholds` wrote. Raise ValueError."""
    return _check(plain[_PUBLIC], queries) if _PUBLIC in plain else None


def _check(plain: Any, queries: int) -> Floats:
    thresholds = np.array(plain, np.float64)
    if thresholds.shape != (queries,) or not ((thresholds > 0) & (thresholds <= 1)).all():
        raise ValueError("thresholds")
    return thresholds
