"""How well anybody can guess: the bounds that epsilon puts on any attacker, and what one reaches.

Given the attacker's other knowledge, answers change the odds of a hypothesis by a factor of at most
`exp(epsilon)`. For a prior probability p, then

- a guess is right with probability at most `max(p, 1 - p, 1 / (1 + exp(-epsilon)))`;
- a test with false-positive rate f has a true-positive rate of at most
  `min(exp(epsilon) f, 1 - exp(-epsilon) (1 - f))`.

Guesses about many windows with different priors and epsilons are bounded by the mean of the first,
and by the best division of the false positives among windows for the second.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Bits: TypeAlias = NDArray[np.bool_]
Floats: TypeAlias = NDArray[np.float64]


def bound_success(prior: Floats, epsilon: Floats) -> float:
    """Return the largest share of right guesses, given each prior and epsilon.

    >>> round(bound_success(np.array([0.5, 0.1]), np.array([1.0, 1.0])), 4)
    0.8155
    """
    best = np.maximum(np.maximum(prior, 1 - prior), 1 / (1 + np.exp(-epsilon)))
    return float(best.mean())


def bound_detection(prior: Floats, epsilon: Floats, rates: Floats) -> Floats:
    """Return the largest true-positive rate at each false-positive rate.

    >>> rates = np.array([0.1, 0.25, 0.5])
    >>> bound_detection(np.full(4, 0.5), np.full(4, np.log(3)), rates).round(3).tolist()
    [0.3, 0.75, 0.833]
    """
    negative, positive = (1 - prior) / (1 - prior).sum(), prior / prior.sum()
    first = 1 / (1 + np.exp(epsilon))
    # The curve of a single window rises with slope exp(epsilon), then with exp(-epsilon).
    width = np.concatenate([negative * first, negative * (1 - first)])
    gain = np.concatenate([positive * (1 - first), positive * first])
    order = np.argsort(-gain / np.maximum(width, 1e-300), kind="stable")
    false = np.concatenate([[0.0], np.cumsum(width[order])])
    true = np.concatenate([[0.0], np.cumsum(gain[order])])
    return np.asarray(np.minimum(np.interp(rates, false, true), 1.0))


def measure_detection(truth: Bits, score: Floats, rates: Floats) -> Floats | None:
    """Return the true-positive rate at each false-positive rate, if scores are thresholded.

    Between two thresholds a test may choose at random. None if all truths are equal.

    >>> truth, score = np.array([1, 1, 0, 0], bool), np.array([0.9, 0.4, 0.4, 0.1])
    >>> measure_detection(truth, score, np.array([0.0, 0.25, 0.5])).tolist()
    [0.5, 0.75, 1.0]
    """
    positives = int(truth.sum())
    if positives in (0, len(truth)):
        return None
    order = np.argsort(-score, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(score[order]) != 0, True))
    hits = np.cumsum(truth[order])[ends]
    true = np.concatenate([[0.0], hits / positives])
    false = np.concatenate([[0.0], (ends + 1 - hits) / (len(truth) - positives)])
    # Of equal false-positive rates, the largest true-positive rate counts.
    last = np.append(np.diff(false) > 0, True)
    return np.asarray(np.interp(rates, false[last], true[last]))


def measure_success(truth: Bits, score: Floats, subjects: NDArray[np.int64]) -> tuple[float, float]:
    """Return the share of right guesses, and its standard error; subjects are independent.

    A probability of one half is guessed right half of the time.
    """
    right = np.where(score == 0.5, 0.5, (score > 0.5) == truth)
    mean = float(right.mean())
    residual = np.bincount(subjects, right - mean)
    return mean, float(np.sqrt((residual**2).sum())) / len(truth)
