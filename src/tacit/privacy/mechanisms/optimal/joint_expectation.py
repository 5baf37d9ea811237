"""Count the answers to queries with parts in several components, on whole windows of history.

What components do is not independent, so their counts do not tell how often parts are true
together. Symbols are drawn with a seed for whole windows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

import numpy as np

from tacit.privacy.components import Exposure
from tacit.privacy.joint_counts import JointCounts
from tacit.privacy.mechanisms.optimal.contexts import Contexts, DrawnSymbols
from tacit.privacy.mechanisms.optimal.part_tables import Floats, Whole, Words
from tacit.privacy.mechanisms.optimal.symbol_readings import PriorReadings
from tacit.privacy.thresholds import PosteriorCounts

_MOST_DRAWN: Final = 64
"""The largest number of draws for a window."""
_TOGETHER: Final = 1 << 14
"""The number of windows that are drawn together."""


class PartReader(Protocol):
    """How likely the parts of one component are, in some windows."""

    def weigh(self, part: int, likely: Floats, *, true: bool) -> None:
        """Multiply `likely` by the probability that a part is true (or false)."""


Reading: TypeAlias = Callable[[int, Words, Words], PartReader]
"""Given a component, and its signals and values in some windows, how likely its parts are."""


def count_several(
    exposure: Exposure,
    joint: JointCounts,
    windows: float,
    work: int,
    read: Reading,
    counts: PosteriorCounts,
) -> None:
    """Count the windows of queries over several components by posterior.

    `windows` is the number of all windows. About `work` parts are read.
    """
    several = {query: exposure.questions[query] for query in joint.columns.queries}
    parts = sum(len(question.parts) for question in several.values())
    rows = _choose_rows(joint.windows, work // max(1, parts))
    for begin in range(0, len(rows), _TOGETHER):
        some = joint.choose_rows(rows[begin : begin + _TOGETHER])
        readers = {
            component: read(component, some.signals(component), some.values(component))
            for component in joint.columns.signals
        }
        weight = windows / len(rows)
        for query, question in several.items():
            likely = np.ones(len(some.words))
            for component, part in question.parts:
                readers[component].weigh(part, likely, true=question.every)
            true: Floats = np.where(some.answers(query), weight, 0.0)
            posterior = likely if question.every else 1 - likely
            counts.add(query, posterior, true, weight - true)


def _choose_rows(windows: Floats, draws: int) -> Whole:
    """Choose rows in proportion to their windows: each window several times, or some windows."""
    total = int(windows.sum())
    number = min(_MOST_DRAWN, draws // total) * total if total and draws >= total else draws
    places = (np.arange(max(1, number)) + 0.5) * (total / max(1, number))
    return np.searchsorted(np.cumsum(windows), places, side="right")[: number if total else 0]


class DrawnParts:
    """The probabilities of parts, given drawn symbols; `literal` ones are 0 or 1."""

    def __init__(self, contexts: Contexts, drawn: DrawnSymbols, *, literal: bool) -> None:
        self._contexts = contexts
        self._drawn = drawn
        self._words = contexts.words(drawn) if literal else None

    def weigh(self, part: int, likely: Floats, *, true: bool) -> None:
        """Multiply `likely` by the probability that a part is true (or false)."""
        if self._words is None:
            self._contexts.weigh(self._drawn, part, likely, true=true)
        else:
            bits = (self._words[:, part >> 6] >> np.uint64(part & 63)) & np.uint64(1)
            likely *= bits if true else 1 - bits.astype(np.float64)


class PriorParts:
    """The probabilities of parts by the prior, without symbols."""

    def __init__(self, readings: PriorReadings, signals: Words) -> None:
        self._readings = readings
        self._signals = signals
        self._codes = readings.read(signals)
        self._rows = np.arange(len(signals))

    def weigh(self, part: int, likely: Floats, *, true: bool) -> None:
        """Multiply `likely` by the probability that a part is true (or false)."""
        self._readings.weigh(self._rows, self._signals, self._codes, part, likely, true=true)
