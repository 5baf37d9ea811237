"""The open windows of a set of subjects, and the answers when these windows close.

A `WindowState` depends on no other one. It needs only the accepted tuples and the number of the
last closed window, so a distributed engine can keep one snapshot per shard as keyed state.
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
from tacit.answers.counts import CountAnswers
from tacit.events.subjects import Subjects
from tacit.patterns.event_lists import EventLists
from tacit.pipeline.batches import MergedBatch
from tacit.pipeline.evaluators import Evaluator
from tacit.privacy.mechanisms.counts import CountBits, CountDraws
from tacit.privacy.mechanisms.mechanism import RunMemory, hash_names
from tacit.privacy.policies import Policies
from tacit.privacy.prices import Claim
from tacit.windows.clock import NEVER, NONE, TAKEN, Verdicts
from tacit.windows.panes import ClosedPanes, Panes
from tacit.windows.sliding import SlidingWindows
from tacit.windows.tuples import Tuples

Part = TypeVar("Part")

_COLUMN_BYTES = 64 << 20
"""The most memory for the bit columns of windows that close together."""


@dataclass(frozen=True, slots=True)
class ClosedWindows:
    """Closed windows with their contents, for the subjects that were known at that time."""

    panes: ClosedPanes
    rows: Mapping[str, pl.DataFrame]
    since: NDArray[np.int64]

    def widen(self, since: NDArray[np.int64], initial: np.uint64) -> ClosedWindows:
        """Extend the windows to a registry that has grown; new subjects have no events in them.

        `initial` is the state of the automaton before the first event.
        """
        panes, before, now = self.panes, len(self.since), len(since)
        windows, _, words = panes.words.shape
        new = now - before
        silent = np.zeros((windows, new, words), np.uint64)
        states = panes.states
        if states is not None:
            states = np.concatenate([states, np.full((windows, new), initial)], axis=1)
        wider = replace(
            panes,
            words=np.concatenate([panes.words, silent], axis=1),
            keys=panes.keys + panes.keys // max(1, before) * new,
            states=states,
        )
        bucket = pl.col("bucket") + pl.col("bucket") // max(1, before) * new
        rows = {stream: frame.with_columns(bucket) for stream, frame in self.rows.items()}
        return ClosedWindows(wider, rows, since)

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return everything except the rows and the first window's number, as plain arrays."""
        panes = self.panes
        states = {} if panes.states is None else {"states": panes.states}
        return {
            "words": panes.words,
            "keys": panes.keys,
            "starts": panes.lists.starts,
            "times": panes.lists.times,
            "masks": panes.lists.masks,
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
        """Read what `to_arrays` returned."""
        kept = cast("Mapping[str, NDArray[Any]]", arrays)
        lists = EventLists(kept["starts"], kept["times"], kept["masks"])
        panes = ClosedPanes(first, kept["words"], kept["keys"], lists, kept.get("states"))
        return cls(panes, rows, kept["since"])


def make_count_answers(
    evaluator: Evaluator, first: int, slide: int, panes: int, draws: CountDraws | None
) -> CountAnswers | None:
    """Return counts with the rows that they belong to; `first` is the number of the first window.

    A window has so many `panes` of the length `slide`.
    """
    layout = evaluator.layout
    if layout is None or draws is None:
        return None
    return CountAnswers(
        layout.queries,
        layout.consumers,
        layout.groups,
        first * slide,
        slide,
        panes * slide,
        draws,
        evaluator.private,
    )


class WindowState:
    """The open windows of a set of subjects, and the evaluator of their queries."""

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
        """The time between the starts of two windows: the size of a pane."""
        self.sliding = SlidingWindows(panes, size) if panes > 1 else None
        self.since = np.full(len(subjects), NONE, dtype=np.int64)
        self.settled = True
        """Whether all subjects are registered for the whole schedule."""
        automaton = evaluator.automaton if self.sliding is None else None
        self.panes = Panes(
            size,
            capacity,
            len(subjects),
            evaluator.ordered_types,
            automaton,
            evaluator.workers,
            presence=evaluator.uses_presence,
        )
        self.tuples = Tuples(size, evaluator.attributes, evaluator.compared_types)
        self._numbers = np.empty(0, np.int32)
        """The number of each subject's policy; computed when it is first needed."""
        self.order: NDArray[np.int64] | None = None
        """The slots of subjects in the order of answers; None for the order of the slots."""
        self._priced: tuple[ClosedWindows, ClosedPanes, Mapping[str, pl.DataFrame]] | None = None
        """The windows that were priced last, assembled: they are answered next."""
        self.memory: Mapping[str, NDArray[Any]] = {}
        """What is remembered from the windows that were answered. Its arrays never change."""
        self._keys = np.empty(0, np.uint8)

    @property
    def registered(self) -> pa.Array:
        """The names of all subjects that have answers, now or in a future window."""
        return self.subjects.names[: len(self.since)].filter(pa.array(self.since < NEVER))

    def register(self, names: Sequence[str], since: int) -> None:
        """Register more subjects, in this order; they get answers from the window `since` on.

        It makes no difference whether a subject occurred before, too late to be learned.
        """
        slots = self.subjects.enrol(names)
        self.make_room()
        slots = slots[np.sort(np.unique(slots, return_index=True)[1])]
        new = slots[self.since[slots] == NEVER]
        self.since[new] = since
        if self.order is not None:
            self.order = np.append(self.order, new)

    def announce(self) -> None:
        """End learning: from now on answer in order of name, and only registered subjects.

        The order of first occurrence is private, and so is which subjects occurred too late.
        """
        names = self.subjects.names
        ranked = pc.sort_indices(names).to_numpy().astype(np.int64)
        self.order = ranked[self.since[ranked] < NEVER]

    def make_room(self) -> None:
        """Add a slot for every new subject in the registry."""
        new = len(self.subjects) - len(self.since)
        if new:
            self.since = np.concatenate([self.since, np.full(new, NEVER, dtype=np.int64)])
            self.settled = False
            self.panes.grow(len(self.subjects))

    def insert(self, batch: MergedBatch, verdicts: Verdicts, begin: int, end: int) -> None:
        """Insert the accepted tuples from `begin` to `end` into their windows."""
        slots, times, masks = batch.slots, batch.times, batch.masks
        self.panes.insert(slots, times, masks, verdicts, begin, end, batch.staged)
        if not self.tuples.attributes:
            return
        taken = begin + np.flatnonzero(
            (verdicts.each[begin:end] == TAKEN)
            & (masks[begin:end].dense & self.tuples.types).any(axis=1)
        )
        for rows, chosen, places in batch.trace(taken):
            self.tuples.add(
                rows.stream, rows.table, chosen, slots[places], times[places], masks[places].dense
            )

    def close(self, first: int, stop: int, most: int | None = None) -> Iterator[ClosedWindows]:
        """Close the windows from `first` up to `stop`, in groups that fit into memory.

        A group has at most `most` windows if that is given. Where windows slide, the units are
        panes: each pane ends one window.
        """
        columns = 64 * len(self.panes.ordered_types) + len(self.evaluator.names)
        affordable = max(1, _COLUMN_BYTES // max(1, columns * -(-self.panes.slots // 8)))
        step = min(self.panes.capacity, affordable, most or affordable)
        if self.sliding is not None:
            step = max(1, step // self.sliding.panes)  # each event will be in so many windows
        for begin in range(first, stop, step):
            count = min(step, stop - begin)
            panes = self.panes.pop(begin, count)
            rows = self.tuples.pop(begin, count, self.panes.slots)
            # Only the clock writes to it, and only while subjects are learned.
            since = self.since if self.settled else self.since.copy()
            yield ClosedWindows(panes, rows, since)

    def widen(self, closed: ClosedWindows) -> ClosedWindows:
        """Extend windows that closed earlier to the subjects that are known now."""
        automaton = self.evaluator.automaton
        initial = np.uint64(0) if automaton is None else automaton.initial[0]
        return closed.widen(self.since.copy(), initial)

    def skip(self, closed: ClosedWindows) -> None:
        """Keep what later windows need from panes whose own windows are not answered."""
        if self.sliding is not None:
            self.sliding.assemble(closed.panes, closed.rows)

    def policy_numbers(self) -> NDArray[np.int32]:
        """Return the number of each subject's policy, by slot."""
        if len(self._numbers) != len(self.subjects):
            self._numbers = self.policies.assign(self.subjects)
        return self._numbers

    def price(
        self, closed: ClosedWindows, claims: Sequence[Claim], *, public_only: bool = False
    ) -> NDArray[np.int64]:
        """Return `[window][claim][slot]`: what answering closed windows costs, in nano-epsilon.

        This depends on public events alone. With `public_only` nothing private is used.
        """
        numbers = self.policy_numbers()
        if public_only:
            return np.zeros((len(closed.panes.words), len(claims), len(numbers)), np.int64)
        panes, rows = self._assemble(closed)
        self._priced = closed, panes, rows
        return self.evaluator.price(panes, rows, numbers, claims, self._remember(closed))

    def price_counts(self, claims: Sequence[Claim]) -> NDArray[np.int64] | None:
        """Return what the counts of the windows that were priced last cost; None without counts.

        This depends on public events, and on what was released before, alone.
        """
        numbers = self.policy_numbers()
        names = self.subjects.names[: len(numbers)]
        return self.evaluator.price_counts(numbers, claims, names)

    def _remember(self, closed: ClosedWindows) -> RunMemory:
        """Return what protectors remember, and what is public about subjects."""
        if not self.evaluator.remembers:
            return RunMemory(self.memory, since=None if self.settled else closed.since)
        if len(self._keys) != len(self.subjects):
            self._keys = hash_names(self.subjects.names)
        return RunMemory(self.memory, since=closed.since, keys=self._keys)

    def gains(self) -> NDArray[np.float64]:
        """Return by slot what the draws of the window that was priced last gain; inf if unknown."""
        return self.evaluator.gains(self.policy_numbers())

    def _assemble(self, closed: ClosedWindows) -> tuple[ClosedPanes, Mapping[str, pl.DataFrame]]:
        """Return the windows that end with closed panes, and their rows."""
        if self._priced is not None and self._priced[0] is closed:
            return self._priced[1:]
        if self.sliding is None:
            return closed.panes, closed.rows
        return self.sliding.assemble(closed.panes, closed.rows, closed.since)

    def answer(
        self,
        closed: ClosedWindows,
        exhausted: NDArray[np.bool_] | None = None,
        uncounted: NDArray[np.bool_] | None = None,
        *,
        public_only: bool = False,
        count: bool = True,
    ) -> Answers:
        """Answer all queries in closed windows.

        `exhausted` marks subjects whose limit is reached in all these windows. They are answered
        from public events and the prior alone. `uncounted` marks those that do not pay for counts.
        Neither may depend on anyone's private events. With `public_only` all subjects are answered
        that way. Without `count` nothing is counted.
        """
        numbers = self._mark(exhausted, public_only=public_only)
        per_window = 1 if self.sliding is None else self.sliding.panes
        panes, rows = self._assemble(closed)
        memory = self._remember(closed)
        bits, certainty = self.evaluator.answer(panes, rows, numbers, memory)
        counted = None
        if count:
            draws = self.evaluator.count_subjects(
                panes,
                rows,
                self._mark(uncounted, public_only=public_only),
                closed.since,
                self.subjects.names[: len(closed.since)],
                memory,
            )
            counted = make_count_answers(self.evaluator, panes.first, self.size, per_window, draws)
        self.memory = memory.after
        answers = Answers(
            self.evaluator.names,
            per_window * self.size,
            panes.first,
            self.subjects.names,
            closed.since,
            bits,
            certainty,
            private=self.evaluator.private,
            exhausted=exhausted,
            slide=self.size,
            consumers=self.evaluator.consumers,
            counted=counted,
        )
        return answers if self.order is None else answers.reorder(self.order)

    def read_counts(self, closed: ClosedWindows) -> CountBits | None:
        """Return what counts of the windows that were answered last are made of; None without."""
        panes, rows = self._assemble(closed)
        return self.evaluator.read_counts(panes, rows, self.policy_numbers())

    def _mark(self, silent: NDArray[np.bool_] | None, *, public_only: bool) -> NDArray[np.int32]:
        """Return the number of each subject's policy; another one for those that do not pay."""
        numbers = self.policy_numbers()
        if public_only:
            return numbers + np.int32(len(self.policies))
        if silent is None or not silent.any():
            return numbers
        return np.where(silent, numbers + np.int32(len(self.policies)), numbers)

    def state(self) -> tuple[dict[str, NDArray[np.generic]], dict[str, pl.DataFrame]]:
        """Return the state as plain arrays and frames."""
        arrays: dict[str, NDArray[np.generic]] = {"since": self.since}
        if self.order is not None:
            arrays["order"] = self.order
        arrays |= {f"subjects.{name}": part for name, part in self.subjects.state().items()}
        arrays |= {f"panes.{name}": part for name, part in self.panes.state().items()}
        arrays |= {f"memory.{name}": part for name, part in self.memory.items()}
        frames = self.tuples.state()
        if self.sliding is not None:
            kept, rows = self.sliding.state()
            arrays |= {f"sliding.{name}": part for name, part in kept.items()}
            frames |= {f"sliding.{stream}": frame for stream, frame in rows.items()}
        return arrays, frames

    def restore(
        self, arrays: Mapping[str, NDArray[np.generic]], frames: Mapping[str, pl.DataFrame]
    ) -> None:
        """Restore a state that `state` returned."""
        self.since = np.array(arrays["since"], dtype=np.int64)
        self.settled = bool((self.since == NONE).all())
        self.order = np.array(arrays["order"], np.int64) if "order" in arrays else None
        self.subjects = Subjects.from_state(select_prefix("subjects.", arrays))
        self._numbers = np.empty(0, np.int32)
        self.memory = select_prefix("memory.", arrays)
        self.panes.restore(select_prefix("panes.", arrays))
        self.tuples.restore(frames)
        if self.sliding is not None:
            self.sliding.restore(
                select_prefix("sliding.", arrays), select_prefix("sliding.", frames)
            )


def select_prefix(prefix: str, parts: Mapping[str, Part]) -> dict[str, Part]:
    """Select the parts of a state whose names start with `prefix`, and remove the prefix."""
    return {
        name.removeprefix(prefix): part for name, part in parts.items() if name.startswith(prefix)
    }
