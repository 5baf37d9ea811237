"""Counts from released answers: what the answers to the same question say about how many.

An answer about one subject is its level: yes or no, and its confidence. Where channels identify the
truth, each level has a weight, and the sum of weights is unbiased (`privacy/answer_tables.py`).
Elsewhere a line is used that history fits best: so many subjects for each yes, and so many for each
open answer.

Everything here is a function of released answers, public events and the plan: it costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import erf, exp, pi, sqrt
from statistics import NormalDist
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacit.privacy.answer_tables import AnswerTable, AnswerWeights, number_levels, weigh_answers
from tacit.privacy.count_memory import CountEstimate, CountHistory
from tacit.privacy.mechanisms.mechanism import Mechanism

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

_REACH: Final = NormalDist().inv_cdf(0.975)
"""Standard deviations to each side of an interval that covers 95 %."""


class AnswerRates(NamedTuple):
    """How open answers to a query come about, on average over history."""

    hit: float
    """How likely a yes is if the query is true."""
    false_alarm: float
    """How likely a yes is if it is not."""


@dataclass(frozen=True, slots=True)
class AnswerCount:
    """How a count follows from the answers to a query with the same pattern."""

    query: str
    """The query that is answered."""
    slope: float
    """How many subjects a yes stands for, beside `base`."""
    base: float
    """How many subjects any open answer stands for."""
    noise: float
    """The variance of what one open answer adds to the count."""
    drift: float
    """How far the rate is off in a window, as a standard deviation."""
    error: float
    """The expected mean absolute error of a count."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {name: getattr(self, name) for name in ("query", *_NUMBERS)}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> AnswerCount:
        """Read what `to_dict` wrote; raise ValueError if it is malformed."""
        numbers = [float(plain[name]) for name in _NUMBERS]
        if not np.isfinite(numbers).all() or min(numbers[2:]) < 0:
            raise ValueError("answers")
        return cls(str(plain["query"]), *numbers)


_NUMBERS: Final = ("slope", "base", "noise", "drift", "error")


def fit_answers(
    query: str, history: CountHistory, rates: AnswerRates, tables: Sequence[Sequence[AnswerTable]]
) -> AnswerCount:
    """Fit the line to history in closed form, for answers that come about at the given rates.

    `tables` are those of the mechanisms that answer, if all of them identify the truth; then the
    expected error is that of weights.
    """
    opened, true = history.opened.ravel(), history.detected.ravel()
    mean, variance = _spread(opened, true, rates.hit, rates.false_alarm)
    size = np.maximum(opened, 1)
    # Of all lines, the one with the least expected square, relative to the number of answers.
    moments = np.array(
        [[((mean**2 + variance) / size).sum(), mean.sum()], [mean.sum(), opened.sum()]]
    )
    slope, base = np.linalg.lstsq(
        moments, np.array([(true * mean / size).sum(), true.sum()]), rcond=1e-12
    )[0].tolist()
    bias = slope * mean + base * opened - true
    noise = slope**2 * variance
    error = _fold(bias, noise)
    if tables:
        error = _fold(np.zeros(len(opened)), _weigh_variance(opened, true, tables))
    some = opened > 0
    drift = float(np.sqrt(((bias / size)[some] ** 2).mean())) if some.any() else 0.0
    return AnswerCount(query, slope, base, float(noise.sum() / max(1, opened.sum())), drift, error)


def _spread(opened: Any, true: Any, hit: float, false_alarm: float) -> tuple[Floats, Floats]:
    """Return the expected number of yes among open answers, and its variance."""
    false = opened - true
    return (
        hit * true + false_alarm * false,
        hit * (1 - hit) * true + false_alarm * (1 - false_alarm) * false,
    )


def _weigh_variance(opened: Any, true: Any, tables: Sequence[Sequence[AnswerTable]]) -> Floats:
    """Return the variance of the sum of weights, on average over contexts."""
    spreads: dict[bool, list[float]] = {False: [], True: []}
    for own in tables:
        weighed = weigh_answers(own)
        for table in own:
            place = np.searchsorted(weighed.levels, table.levels)
            squares = table.probabilities @ weighed.weights[place] ** 2
            for truth in spreads:
                spreads[truth] += (squares - table.truth)[table.truth == truth].tolist()
    if_false, if_true = (float(np.mean(spreads[truth] or [0.0])) for truth in (False, True))
    return np.asarray(np.maximum(0.0, if_true * true + if_false * (opened - true)), np.float64)


def _fold(bias: Floats, variance: Floats) -> float:
    """Return the mean absolute error of normal errors with these biases and variances."""
    if not len(bias):
        return 0.0
    return float(
        np.mean(
            [
                abs(off)
                if spread <= 0
                else sqrt(2 * spread / pi) * exp(-(off**2) / (2 * spread))
                + off * erf(off / sqrt(2 * spread))
                for off, spread in zip(bias.tolist(), variance.tolist(), strict=True)
            ]
        )
    )


def find_tables(mechanisms: Sequence[Mechanism], query: int, panes: int) -> list[list[AnswerTable]]:
    """Return the tables of all mechanisms that add noise to a query; none if one has no weights."""
    found = []
    for mechanism in mechanisms:
        tables = list(mechanism.answer_tables(query, panes))
        if not tables and mechanism.kind != "open":
            return []
        levels = weigh_answers(tables).levels
        if any(not np.isin(table.levels, levels).all() for table in tables):
            return []
        found.append(tables)
    return found


class AnswerEstimator:
    """Estimates a count from the answers of closed windows."""

    def __init__(
        self, plan: AnswerCount, query: int, mechanisms: Sequence[Mechanism], panes: int
    ) -> None:
        self.query = query
        """The number of the query that is answered."""
        self._plan = plan
        self._weights = [weigh_answers(one.answer_tables(query, panes)) for one in mechanisms]

    def estimate(
        self,
        detected: Flags,
        confidence: NDArray[np.float32],
        policies: NDArray[np.int32],
        rows: NDArray[np.int64],
        number: int,
    ) -> tuple[CountEstimate, Flags]:
        """Return `[window][row]`: estimates, and where they rest on the line.

        Answers are `[window][slot]`. `policies` has another number for subjects that do not pay.
        `rows` has the row of each answer, and -1 where there is none.
        """
        plan, opened = self._plan, (confidence < 1) & (rows >= 0)
        values = np.where(opened, plan.base + plan.slope * detected, detected)
        variances, unknown = np.where(opened, plan.noise, 0.0), opened.copy()
        for policy, weighed in enumerate(self._weights):
            if len(weighed.levels):
                self._weigh(weighed, policies == policy, detected, confidence, values, variances,
                            unknown)  # fmt: skip
        windows = len(rows)
        places = (np.arange(windows)[:, np.newaxis] * number + rows)[rows >= 0]

        def add(part: NDArray[Any]) -> Floats:
            found = np.bincount(places, part[rows >= 0], windows * number)
            return np.asarray(found, np.float64).reshape(windows, number)

        total, modelled = add(values), add(unknown)
        half = _REACH * np.sqrt(add(variances) + (plan.drift * modelled) ** 2)
        return CountEstimate(total, total - half, total + half), modelled > 0

    def _weigh(
        self,
        weighed: AnswerWeights,
        own: Flags,
        detected: Flags,
        confidence: NDArray[np.float32],
        values: Floats,
        variances: Floats,
        unknown: Flags,
    ) -> None:
        """Replace the values of answers that have a weight."""
        levels = number_levels(detected, confidence)
        place = np.minimum(np.searchsorted(weighed.levels, levels), len(weighed.levels) - 1)
        same = (weighed.levels[place] == levels) & unknown & own
        values[same] = weighed.weights[place][same]
        variances[same] = weighed.variances[place][same]
        unknown[same] = False
