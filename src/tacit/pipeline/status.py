"""How a run goes, in two parts that never mix.

`PublicStatus` follows the public schedule alone: it may be scraped and shown to anyone. Everything
else in `Status` depends on which tuples came, so it is for the operator alone.
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
    """What takes tuples in: an engine, or several that follow each other."""

    counts: NDArray[np.int64]

    @property
    def clock(self) -> Clock:
        """What judges tuples."""
        ...


@dataclass(slots=True)
class PublicStatus:
    """What follows the public schedule alone.

    Each field is a function of which windows were released, of the specification, of the
    registry, and of what operators and receivers do. None is of what tuples hold.
    """

    subjects: int = 0
    """How many have answers; 0 while they are learned."""
    windows: int = 0
    """Windows released since the run was begun or resumed."""
    until: int | None = None
    """The end of the last window that was released, in microseconds."""
    next_close: int | None = None
    """The event time at which the next window closes, in microseconds."""
    released_at: float | None = None
    """When the last release was made by this machine's clock, in seconds, rounded down to whole
    windows: when exactly depends on how long it took, and so on what came."""
    charged: dict[str, int] = field(default_factory=dict)
    """What was charged to all subjects together, by private pattern, in nano-epsilon."""
    exhausted: int = 0
    """Subjects that had reached a limit in the last window that was released."""
    undelivered: int = 0
    """Releases that have not arrived at every outlet."""
    retries: int = 0
    """Deliveries that failed and were tried again."""
    reloads: int = 0
    """How often a new specification was taken up."""
    reloads_refused: int = 0
    """How often one was refused, and the old one kept."""

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
    ) -> None:
        """Some windows were released, the last of which ends at `until`; one begins each `slide`.

        `charged` is what was charged for them in nano-epsilon, summed over subjects.
        """
        self.windows += windows
        self.until, self.next_close = until, next_close
        self.subjects, self.exhausted = subjects, exhausted
        now = int(time.time() * 1_000_000)
        self.released_at = (now - now % slide) / 1_000_000
        for private, amount in (charged or {}).items():
            self.charged[private] = self.charged.get(private, 0) + amount


@dataclass(slots=True)
class RunStatus:
    """All that is to be known of a run; but for `public` it is for the operator alone."""

    public: PublicStatus = field(default_factory=PublicStatus)
    connecting: bool = False
    """Whether a source is not connected yet, so that a tuple that is sent now may be missed."""
    tuples: int = 0
    """Tuples that came, the refused ones included."""
    late: int = 0
    refused: int = 0
    """Tuples refused for another reason than being late, lines that cannot be read included."""
    newest: int | None = None
    """The largest event time taken, in microseconds."""
    open_windows: int = 0
    commit_seconds: float = 0.0
    """How long the last commit of the ledger took."""

    def look(self, engine: EngineCounters, unreadable: int = 0) -> None:
        """See how far an engine is; `unreadable` lines never came as far as that."""
        counts, clock = engine.counts, engine.clock
        self.tuples = int(counts.sum()) + unreadable
        self.late = int(counts[LATE])
        self.refused = self.tuples - int(counts[0]) - self.late
        self.newest = clock.newest
        self.open_windows = 0 if clock.newest is None else max(0, clock.ended - clock.closed)
