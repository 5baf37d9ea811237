"""The state of some subjects: their open windows, and the answers when these close.

A shard stands alone. It needs to be told only which tuples were taken and which windows
are closed, so that a distributed engine can keep one shard's snapshot as its keyed state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tacit.answers.answers import Answers
from tacit.events.subjects import Subjects
from tacit.patterns.lists import EventLists
from tacit.pipeline.batches import MergedBatch
from tacit.pipeline.evaluators import Evaluator
from tacit.privacy.policies import Policies
from tacit.windows.clock import NEVER, NONE, TAKEN, Verdicts
from tacit.windows.panes import ClosedPanes, Panes
from tacit.windows.sliding import SlidingWindows
from tacit.windows.tuples import Tuples

Part = TypeVar("Part")

_COLUMN_BYTES = 64 << 20
"""What the bit columns of the windows that close together may take."""


@dataclass(frozen=True, slots=True)
class ClosedWindows:
    """Windows that are closed: what they hold, for the subjects that were known then."""

    closed: ClosedPanes
    rows: Mapping[str, pl.DataFrame]
    since: NDArray[np.int64]

    def widened(self, since: NDArray[np.int64], initial: np.uint64) -> ClosedWindows:
        """The same windows for a registry that has grown: newcomers sent nothing in them.

        `initial` is the state of the automaton before the first event.
        """
        closed, before, now = self.closed, len(self.since), len(since)
        windows, _, words = closed.words.shape
        new = now - before
        silent = np.zeros((windows, new, words), np.uint64)
        states = closed.states
        if states is not None:
            states = np.concatenate([states, np.full((windows, new), initial)], axis=1)
        wider = replace(
            closed,
            words=np.concatenate([closed.words, silent], axis=1),
            keys=closed.keys + closed.keys // max(1, before) * new,
            states=states,
        )
        bucket = pl.col("bucket") + pl.col("bucket") // max(1, before) * new
        rows = {stream: frame.with_columns(bucket) for stream, frame in self.rows.items()}
        return ClosedWindows(wider, rows, since)

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """All of it but the rows and the first window's number, as plain arrays."""
        closed = self.closed
        states = {} if closed.states is None else {"states": closed.states}
        return {
            "words": closed.words,
            "keys": closed.keys,
            "starts": closed.lists.starts,
            "times": closed.lists.times,
            "masks": closed.lists.masks,
            "since": self.since,
            **states,
        }

    @classmethod
    def from_state(
        cls,
        first: int,
        arrays: Mapping[str, NDArray[np.generic]],
        rows: Mapping[str, pl.DataFrame],
    ) -> ClosedWindows:
        """What `arrays` gave."""
        kept = cast("Mapping[str, NDArray[Any]]", arrays)
        lists = EventLists(kept["starts"], kept["times"], kept["masks"])
        closed = ClosedPanes(first, kept["words"], kept["keys"], lists, kept.get("states"))
        return cls(closed, rows, kept["since"])


class WindowState:
    """Open windows of a set of subjects, and the queries that are asked about them."""

    def __init__(
        self,
        evaluator: Evaluator,
        policies: Policies,
        subjects: Subjects,
        size: int,
        capacity: int,
        panes: int = 1,
    ) -> None:
        self.evaluator = evaluator
        self.policies = policies
        self.subjects = subjects
        self.size = size
        """How far apart windows begin: a pane's size, and a window's where that is one pane."""
        self.sliding = SlidingWindows(panes, size) if panes > 1 else None
        self.since = np.full(len(subjects), NONE, dtype=np.int64)
        self.settled = True
        """Whether all subjects are registered for the whole schedule."""
        walked = evaluator.automaton if self.sliding is None else None
        self.panes = Panes(size, capacity, len(subjects), evaluator.ordered_types, walked)
        self.tuples = Tuples(size, evaluator.attributes, evaluator.compared_types)
        self._numbers = np.empty(0, np.int32)
        """The number of each subject's policy, as far as they were needed."""
        self.order: NDArray[np.int64] | None = None
        """The slots of subjects in the order of answers, where that is not the slots' own."""

    @property
    def registered(self) -> pa.Array:
        """The names of all who have answers, now or in a window to come."""
        return self.subjects.names[: len(self.since)].filter(pa.array(self.since < NEVER))

    def register(self, names: Sequence[str], since: int) -> None:
        """Register more subjects; they have answers from the window `since` on, in this order.

        Whether one of them was heard of before, too late to be learned, changes nothing.
        """
        slots = self.subjects.enrol(names)
        self.make_room()
        slots = slots[np.sort(np.unique(slots, return_index=True)[1])]
        new = slots[self.since[slots] == NEVER]
        self.since[new] = since
        if self.order is not None:
            self.order = np.append(self.order, new)

    def announce(self) -> None:
        """Subjects were learned: answer from now on in order of name, and only the registered.

        The order in which they were first heard of is nobody's business, nor is who was heard
        of too late.
        """
        names = self.subjects.names
        ranked = pc.sort_indices(names).to_numpy().astype(np.int64)
        self.order = ranked[self.since[ranked] < NEVER]

    def make_room(self, since: int = NEVER) -> None:
        """Give every subject that the registry has come to know a slot."""
        new = len(self.subjects) - len(self.since)
        if new:
            self.since = np.concatenate([self.since, np.full(new, since, dtype=np.int64)])
            self.settled = False
            self.panes.grow(len(self.subjects))

    def insert(self, arrivals: MergedBatch, verdicts: Verdicts, begin: int, end: int) -> None:
        """Lay the tuples from `begin` to `end` that were taken into their windows."""
        slots, times, masks = arrivals.slots, arrivals.times, arrivals.masks
        self.panes.insert(slots, times, masks, verdicts, begin, end)
        if not self.tuples.attributes:
            return
        taken = begin + np.flatnonzero(
            (verdicts.each[begin:end] == TAKEN) & (masks[begin:end] & self.tuples.types).any(axis=1)
        )
        for rows, chosen, places in arrivals.trace(taken):
            self.tuples.keep(
                rows.stream, rows.table, chosen, slots[places], times[places], masks[places]
            )

    def close(self, first: int, stop: int, most: int | None = None) -> Iterator[ClosedWindows]:
        """Hand on the windows from `first` up to `stop`, as many at a time as are cheap.

        Not more than `most` at a time, where that is told. Where windows slide, these are
        panes: one window is closed with each.
        """
        columns = 64 * len(self.panes.ordered_types) + len(self.evaluator.names)
        affordable = max(1, _COLUMN_BYTES // max(1, columns * -(-self.panes.slots // 8)))
        step = min(self.panes.capacity, affordable, most or affordable)
        if self.sliding is not None:
            step = max(1, step // self.sliding.panes)  # each event will be in so many windows
        for begin in range(first, stop, step):
            count = min(step, stop - begin)
            closed = self.panes.pop(begin, count)
            rows = self.tuples.pop(begin, count, self.panes.slots)
            # Only the clock writes to it, and only while subjects are learned.
            since = self.since if self.settled else self.since.copy()
            yield ClosedWindows(closed, rows, since)

    def widened(self, handed: ClosedWindows) -> ClosedWindows:
        """Windows that were handed on before, for the subjects that are known now."""
        walk = self.evaluator.automaton
        initial = np.uint64(0) if walk is None else walk.initial[0]
        return handed.widened(self.since.copy(), initial)

    def skip(self, handed: ClosedWindows) -> None:
        """Keep what later windows need of panes whose own windows are not asked for."""
        if self.sliding is not None:
            self.sliding.windows(handed.closed, handed.rows)

    def policy_numbers(self) -> NDArray[np.int32]:
        """The number of each subject's policy, by slot."""
        if len(self._numbers) != len(self.subjects):
            self._numbers = self.policies.assign(self.subjects)
        return self._numbers

    def answer(
        self,
        handed: ClosedWindows,
        exhausted: NDArray[np.bool_] | None = None,
        *,
        public_only: bool = False,
    ) -> Answers:
        """The answers of windows that were handed on.

        `exhausted` says, where subjects have limits, whose is reached in all these windows:
        they are answered from public events and the prior alone. It must not depend on what
        anybody sent. With `public_only` all are answered so.
        """
        numbers = self.policy_numbers()
        if public_only:
            numbers = numbers + np.int32(len(self.policies))
        elif exhausted is not None and exhausted.any():
            numbers = np.where(exhausted, numbers + np.int32(len(self.policies)), numbers)
        closed, rows, panes = handed.closed, handed.rows, 1
        if self.sliding is not None:
            panes = self.sliding.panes
            closed, rows = self.sliding.windows(closed, rows)
        bits, certainty = self.evaluator.answer(closed, rows, numbers)
        answers = Answers(
            self.evaluator.names,
            panes * self.size,
            closed.first,
            self.subjects.names,
            handed.since,
            bits,
            certainty,
            private=self.evaluator.private,
            exhausted=exhausted,
            slide=self.size,
            consumers=self.evaluator.consumers,
        )
        return answers if self.order is None else answers.ordered(self.order)

    def state(self) -> tuple[dict[str, NDArray[np.generic]], dict[str, pl.DataFrame]]:
        """The state as plain arrays and frames."""
        arrays: dict[str, NDArray[np.generic]] = {"since": self.since}
        if self.order is not None:
            arrays["order"] = self.order
        arrays |= {f"subjects.{name}": part for name, part in self.subjects.state().items()}
        arrays |= {f"panes.{name}": part for name, part in self.panes.state().items()}
        frames = self.tuples.state()
        if self.sliding is not None:
            kept, rows = self.sliding.state()
            arrays |= {f"sliding.{name}": part for name, part in kept.items()}
            frames |= {f"sliding.{stream}": frame for stream, frame in rows.items()}
        return arrays, frames

    def restore(
        self, arrays: Mapping[str, NDArray[np.generic]], frames: Mapping[str, pl.DataFrame]
    ) -> None:
        """Take up a state that `state` gave."""
        self.since = np.array(arrays["since"], dtype=np.int64)
        self.settled = bool((self.since == NONE).all())
        self.order = np.array(arrays["order"], np.int64) if "order" in arrays else None
        self.subjects = Subjects.from_state(below("subjects.", arrays))
        self._numbers = np.empty(0, np.int32)
        self.panes.restore(below("panes.", arrays))
        self.tuples.restore(frames)
        if self.sliding is not None:
            self.sliding.restore(below("sliding.", arrays), below("sliding.", frames))


def below(prefix: str, parts: Mapping[str, Part]) -> dict[str, Part]:
    """The parts of a state whose names begin so, by the rest of their names."""
    return {
        name.removeprefix(prefix): part for name, part in parts.items() if name.startswith(prefix)
    }
