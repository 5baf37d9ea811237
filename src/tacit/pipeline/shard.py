"""The state of some subjects: their open windows, and the answers when these close.

A shard stands alone. It needs to be told only which tuples were taken and which windows
are closed, so that a distributed engine can keep one shard's snapshot as its keyed state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tacit.answers.answers import Answers
from tacit.events.subjects import Subjects
from tacit.pipeline.arrivals import Arrivals
from tacit.pipeline.queries import Queries
from tacit.windows.clock import NEVER, NONE, TAKEN
from tacit.windows.panes import Panes
from tacit.windows.tuples import Tuples

_COLUMN_BYTES = 64 << 20
"""What the bit columns of the windows that close together may take."""


class Shard:
    """Open windows of a set of subjects, and the queries that are asked about them."""

    def __init__(
        self,
        names: Sequence[str],
        queries: Queries,
        subjects: Subjects,
        size: int,
        capacity: int,
    ) -> None:
        self.names = names
        self.queries = queries
        self.subjects = subjects
        self.size = size
        self.since = np.full(len(subjects), NONE, dtype=np.int64)
        self.settled = True
        """Whether all subjects are registered for the whole schedule."""
        matcher = queries.matcher
        self.panes = Panes(size, capacity, len(subjects), matcher.ordered_types, matcher.automaton)
        self.tuples = Tuples(size, queries.attributes, queries.compared_types)

    def register(self, names: Sequence[str] | Sequence[int], since: int) -> None:
        """Give more subjects a slot; they have answers from the window `since` on."""
        self.subjects.add(names)
        self.make_room(since)

    def make_room(self, since: int = NEVER) -> None:
        """Give every subject that the registry has come to know a slot."""
        new = len(self.subjects) - len(self.since)
        if new:
            self.since = np.concatenate([self.since, np.full(new, since, dtype=np.int64)])
            self.settled = False
            self.panes.grow(len(self.subjects))

    def lay(self, arrivals: Arrivals, verdicts: NDArray[np.uint8], begin: int, end: int) -> None:
        """Lay the tuples from `begin` to `end` that were taken into their windows."""
        slots, times, masks = arrivals.slots, arrivals.times, arrivals.masks
        self.panes.lay(slots, times, masks, verdicts, begin, end)
        if not self.queries.conditions:
            return
        taken = begin + np.flatnonzero(
            (verdicts[begin:end] == TAKEN) & (masks[begin:end] & self.tuples.types).any(axis=1)
        )
        for rows, chosen, places in arrivals.trace(taken):
            self.tuples.keep(
                rows.stream, rows.table, chosen, slots[places], times[places], masks[places]
            )

    def answers(self, first: int, since: NDArray[np.int64], bits: NDArray[np.uint64]) -> Answers:
        """Answers for the subjects that are known now."""
        return Answers(self.names, self.size, first, self.subjects.names, since, bits)

    def close(self, first: int, stop: int) -> Iterator[Answers]:
        """The answers of the windows from `first` up to `stop`, as many at a time as are cheap."""
        columns = len(self.queries.types) + len(self.names)
        affordable = max(1, _COLUMN_BYTES // max(1, columns * -(-self.panes.slots // 8)))
        step = min(self.panes.capacity, affordable)
        for begin in range(first, stop, step):
            count = min(step, stop - begin)
            closed = self.panes.hand_on(begin, count)
            rows = self.tuples.hand_on(begin, count, self.panes.slots)
            yield self.answers(begin, self.since.copy(), self.queries.answer(closed, rows))

    def state(self) -> tuple[dict[str, NDArray[np.generic]], dict[str, pl.DataFrame]]:
        """The state as plain arrays and frames."""
        arrays: dict[str, NDArray[np.generic]] = {"since": self.since}
        arrays |= {f"subjects.{name}": part for name, part in self.subjects.state().items()}
        arrays |= {f"panes.{name}": part for name, part in self.panes.state().items()}
        return arrays, self.tuples.state()

    def restore(
        self, arrays: Mapping[str, NDArray[np.generic]], frames: Mapping[str, pl.DataFrame]
    ) -> None:
        """Take up a state that `state` gave."""
        self.since = np.array(arrays["since"], dtype=np.int64)
        self.settled = bool((self.since == NONE).all())
        self.subjects = Subjects.from_state(_below("subjects.", arrays))
        self.panes.restore(_below("panes.", arrays))
        self.tuples.restore(frames)


def _below(
    prefix: str, arrays: Mapping[str, NDArray[np.generic]]
) -> dict[str, NDArray[np.generic]]:
    return {
        name.removeprefix(prefix): part for name, part in arrays.items() if name.startswith(prefix)
    }
