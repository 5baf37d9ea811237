"""The status of a run: a public part and a part for the operator.

`PublicStatus` depends on the public schedule only: you may show it to anyone. Everything else in
`RunStatus` depends on the tuples that arrived, so it is for the operator only.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tacit.windows.clock import LATE, Clock


class EngineCounters(Protocol):
    """The counters of an engine."""

    counts: NDArray[np.int64]

    @property
    def clock(self) -> Clock:
        """The clock that judges tuples."""
        ...


@dataclass(slots=True)
class PublicStatus:
    """The status that depends on the public schedule and on what was released only.

    Each field is a function of the released windows, the specification, the registry, and the
    actions of operators and receivers. None depends on private events, except through what was
    drawn from channels.
    """

    subjects: int = 0
    """How many subjects have answers; 0 while they are learned."""
    windows: int = 0
    """Windows released since the run was started or resumed."""
    until: int | None = None
    """The end of the last window that was released, in microseconds."""
    next_close: int | None = None
    """The event time at which the next window closes, in microseconds."""
    released_at: float | None = None
    """The wall-clock time of the last release in seconds, rounded down to whole windows: the exact
    time depends on how long it took, and so on the tuples."""
    charged: dict[str, int] = field(default_factory=dict)
    """The charges of all subjects together, by private pattern, in nano-epsilon."""
    exhausted: int = 0
    """Subjects that did not pay in the last window that was released: they had reached a limit, or
    saved it for later windows."""
    drift: float | None = None
    """The share of recent changes that history does not predict, from 0 to 1; None without memory.
    """
    undelivered: int = 0
    """Releases that not every sink has yet."""
    retries: int = 0
    """Deliveries that failed and were retried."""
    reloads: int = 0
    """How often a new specification was accepted."""
    reloads_refused: int = 0
    """How often one was refused."""

    def release(
        self,
        windows: int,
        until: int,
        next_close: int,
        *,
        slide: int,
        subjects: int,
        exhausted: int = 0,
        charged: Mapping[str, int] | None = None,
        drift: float | None = None,
    ) -> None:
        """Count released windows; the last one ends at `until`, and one starts every `slide`.

        `charged` is their charge in nano-epsilon, summed over subjects.
        """
        self.windows += windows
        self.until, self.next_close = until, next_close
        self.subjects, self.exhausted, self.drift = subjects, exhausted, drift
        now = int(time.time() * 1_000_000)
        self.released_at = (now - now % slide) / 1_000_000
        for private, amount in (charged or {}).items():
            self.charged[private] = self.charged.get(private, 0) + amount


@dataclass(slots=True)
class RunStatus:
    """The whole status of a run; except for `public` it is for the operator only."""

    public: PublicStatus = field(default_factory=PublicStatus)
    connecting: bool = False
    """Whether a source is not connected yet: a tuple that is sent now may be missed."""
    tuples: int = 0
    """Tuples that arrived, including refused ones."""
    late: int = 0
    refused: int = 0
    """Tuples refused for another reason than being late, including unreadable lines."""
    newest: int | None = None
    """The largest accepted event time, in microseconds."""
    open_windows: int = 0
    commit_seconds: float = 0.0
    """How long the last commit of the ledger took."""

    def update(self, engine: EngineCounters, unreadable: int = 0) -> None:
        """Update from an engine; `unreadable` lines did not reach it."""
        counts, clock = engine.counts, engine.clock
        self.tuples = int(counts.sum()) + unreadable
        self.late = int(counts[LATE])
        self.refused = self.tuples - int(counts[0]) - self.late
        self.newest = clock.newest
        self.open_windows = 0 if clock.newest is None else max(0, clock.ended - clock.closed)
