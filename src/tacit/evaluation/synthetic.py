"""Algorithm 2 of the paper: windows of independent events, and patterns of three events.

Its loops never advance as printed; this is the obvious correction. A data set is drawn again if no
target pattern is true in its history or test windows.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tacit.events.streams import Stream
from tacit.events.types import EventType
from tacit.patterns.tree import And
from tacit.spec.specification import Private, Query, Specification
from tacit.windows.schedule import Windows

Presence = NDArray[np.bool_]
"""`[window][event type]`"""

LARGEST_EPSILON: Final = Decimal(10)


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a data set; the defaults are those of the paper."""

    types: int = 20
    windows: int = 1000
    patterns: int = 20
    length: int = 3
    private: int = 3
    targets: int = 5
    alpha: float = 0.5


@dataclass(frozen=True, slots=True)
class DataSet:
    """A specification, windows to plan from, and others to test on."""

    spec: Specification
    history: Presence
    test: Presence


def draw_data_set(seed: int, shape: Shape = Shape()) -> DataSet:  # noqa: B008 - it is frozen
    """Draw a data set; the same for the same seed.

    >>> drawn = draw_data_set(1)
    >>> drawn.history.shape, len(drawn.spec.queries), len(drawn.spec.private)
    ((1000, 20), 5, 3)
    """
    random = np.random.default_rng([seed, 2])
    while True:
        rates = random.random(shape.types)
        history, test = (random.random((2, shape.windows, shape.types)) < rates).astype(np.bool_)
        patterns = [
            random.choice(shape.types, shape.length, replace=False) for _ in range(shape.patterns)
        ]
        private = random.choice(shape.patterns, shape.private, replace=False)
        targets = random.choice(shape.patterns, shape.targets, replace=False)
        found = [history[:, patterns[n]].all(axis=1).any() for n in targets]
        again = [test[:, patterns[n]].all(axis=1).any() for n in targets]
        if any(found) and any(again):
            return DataSet(_specification(shape, patterns, private, targets), history, test)


def _specification(
    shape: Shape,
    patterns: list[NDArray[np.int64]],
    private: NDArray[np.int64],
    targets: NDArray[np.int64],
) -> Specification:
    written = [And(*(f"e{n + 1}" for n in sorted(pattern.tolist()))) for pattern in patterns]
    kept_private = dict.fromkeys(written[n] for n in private)  # the same events may be drawn twice
    return Specification(
        streams={"events": Stream(subject="subject", time="time")},
        windows=Windows(size="1 min"),
        events={
            f"e{n + 1}": EventType(stream="events", where=f"kind = {n + 1}")
            for n in range(shape.types)
        },
        private=tuple(Private(pattern=one, epsilon=LARGEST_EPSILON) for one in kept_private),
        queries=tuple(
            Query(name=f"t{place + 1}", consumer="all", pattern=written[n], alpha=shape.alpha)
            for place, n in enumerate(targets)
        ),
    )
