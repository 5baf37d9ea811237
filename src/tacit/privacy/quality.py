"""Quality: precision, recall and Q of answers, counted or expected.

Conventions: precision is 1 if there are no claims and no positives, and 0 if there are positives
but no claims. Recall is 1 if there are no positives. Over several queries the counts are added up
first (the micro average), and alpha is the mean of the queries' alphas. The macro average is the
mean of the queries' qualities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from tacit.spec.specification import Specification

Floats = NDArray[np.float64]
Amount = TypeVar("Amount", float, Floats)
"""A number, or one for each query."""


class Weights(NamedTuple):
    """The gain of one more true claim and the loss of one more false claim, near some quality."""

    reward: float
    penalty: float

    @property
    def threshold(self) -> float:
        """The probability from which on a claim pays."""
        both = self.reward + self.penalty
        return self.penalty / both if both else 0.5


@dataclass(frozen=True, slots=True)
class Confusion(Generic[Amount]):
    """True positives, false positives and false negatives: numbers, or arrays per query.

    >>> found = Confusion(6.0, 2.0, 4.0)
    >>> found.precision, found.recall, found.quality(0.5), round(found.mre(0.5), 6)
    (0.75, 0.6, 0.675, 0.325)
    """

    tp: Amount
    fp: Amount
    fn: Amount

    @property
    def precision(self) -> Amount:
        """The share of claims that are true."""
        tp, claimed = self.tp, self.tp + self.fp
        if isinstance(claimed, np.ndarray):
            return np.divide(tp, claimed, out=np.where(self.fn > 0, 0.0, 1.0), where=claimed > 0)
        return tp / claimed if claimed > 0 else float(self.fn <= 0)

    @property
    def recall(self) -> Amount:
        """The share of positives that were claimed."""
        tp, there = self.tp, self.tp + self.fn
        if isinstance(there, np.ndarray):
            return np.divide(tp, there, out=np.ones_like(there), where=there > 0)
        return tp / there if there > 0 else 1.0

    def quality(self, alpha: Amount | float) -> Amount:
        """Return Q = alpha * precision + (1 - alpha) * recall."""
        return alpha * self.precision + (1 - alpha) * self.recall

    def mre(self, alpha: Amount | float, truth_quality: Amount | float = 1.0) -> Amount:
        """Return the share of the unprotected quality that is lost; exact answers have Q = 1."""
        return (truth_quality - self.quality(alpha)) / truth_quality

    def total(self) -> Confusion[float]:
        """Return the counts of all queries together, for the micro average."""
        return Confusion(*(float(np.sum(part)) for part in (self.tp, self.fp, self.fn)))

    def weights(self, alpha: float) -> Weights:
        """Return the gradient of Q: its gain for a true claim and its loss for a false one.

        A claim turns a false negative into a true positive, or a true negative into a false
        positive. Without claims, precision has no gradient and only recall counts. Without
        positives, no claim is true.
        """
        tp, fp, fn = (float(np.sum(part)) for part in (self.tp, self.fp, self.fn))
        if tp + fn <= 0:
            return Weights(0.0, alpha)
        recall = (1 - alpha) / (tp + fn)
        if tp + fp <= 0:
            return Weights(recall, 0.0)
        claimed = (tp + fp) ** 2
        return Weights(alpha * fp / claimed + recall, alpha * tp / claimed)


def micro_alpha(alphas: Sequence[float] | Floats) -> float:
    """Return the alpha of the micro average: the mean, or 1/2 without queries."""
    return float(np.mean(alphas)) if len(alphas) else 0.5


@dataclass(frozen=True, slots=True)
class QualityObjective:
    """What a plan maximises: the micro or macro average of Q, or required qualities.

    >>> found = Confusion(np.array([90.0, 0.0]), np.array([10.0, 0.0]), np.array([10.0, 1.0]))
    >>> alphas = 0.5, 0.5
    >>> round(QualityObjective(alphas).value(found), 3)
    0.896
    >>> round(QualityObjective(alphas, macro=True).value(found), 3)
    0.45
    >>> round(QualityObjective(alphas, required=(0.8, None)).value(found), 3)
    0.8
    """

    alphas: tuple[float, ...]
    """For each query, the weight of precision in its quality."""
    macro: bool = False
    required: tuple[float | None, ...] | None = None
    """For each query the quality that it needs, if any: what is above it does not count."""
    halves: tuple[bool, ...] = ()
    """For each query whether its threshold must be 1/2: it is one of several values of a query.

    Empty if no query is.
    """

    @property
    def free(self) -> NDArray[np.bool_]:
        """For each query, whether its threshold can be chosen."""
        if not self.halves:
            return np.ones(len(self.alphas), np.bool_)
        return ~np.array(self.halves, np.bool_)

    @property
    def separate(self) -> bool:
        """Whether each query's quality counts by itself, not only the sum of all counts."""
        return self.macro or self.required is not None

    @property
    def caps(self) -> Floats:
        """For each query, the quality above which more does not count."""
        if self.required is None:
            return np.full(len(self.alphas), np.inf)
        return np.array([np.inf if least is None else least for least in self.required])

    @property
    def shares(self) -> Floats:
        """For each query, the weight of its own quality; the weights add up to 1."""
        chosen = np.ones(len(self.alphas))
        if self.required is not None:
            chosen = np.array([float(least is not None) for least in self.required])
        return np.asarray(chosen / max(1.0, chosen.sum()))

    def value(self, found: Confusion[Floats]) -> float:
        """Return the value to maximise."""
        if not self.separate:
            return found.total().quality(micro_alpha(self.alphas))
        quality = found.quality(np.array(self.alphas))
        return float(self.shares @ np.minimum(quality, self.caps))

    def weights(self, found: Confusion[Floats]) -> Floats:
        """Return `[query]`: the gain of a true claim and the loss of a false one, at most 1."""
        if not self.separate:
            one = found.total().weights(micro_alpha(self.alphas))
            rows = np.tile([one.reward, one.penalty], (len(self.alphas), 1))
        else:
            own = [
                Confusion(*counts).weights(alpha)
                for *counts, alpha in zip(found.tp, found.fp, found.fn, self.alphas, strict=True)
            ]
            rows = np.array([[one.reward, one.penalty] for one in own]).reshape(-1, 2)
            rows = rows * self.shares[:, np.newaxis]
        return np.asarray(rows / max(rows.max(initial=0.0), 1e-300))


def make_objective(
    spec: Specification, objective: str, required: Sequence[float | None] | None = None
) -> QualityObjective:
    """Return what a plan for a specification maximises: `micro` or `macro`.

    What is `required` of a query with several values is how often the value is right. None of its
    boolean queries is good enough for that by itself, so all of them count as far as they go.
    """
    queries = spec.boolean_queries
    halves = tuple(not query.whole for query in queries)
    if required is not None:
        required = [
            1.0 if least is not None and part else least
            for least, part in zip(required, halves, strict=True)
        ]
    return QualityObjective(
        tuple(query.alpha for query in queries),
        objective == "macro",
        None if required is None else tuple(required),
        halves if any(halves) else (),
    )
