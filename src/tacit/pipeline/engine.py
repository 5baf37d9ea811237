"""Tuples in, closed windows out: one clock, and the open windows of all subjects.

tuples  --extract-->  slots, times, event types   (events/)
        --judge---->  taken, or refused with a reason   (windows/clock)
        --insert--->  open windows   (windows/panes)
        --close---->  answers to every query   (patterns/, answers/)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tacit.answers.answers import Answers
from tacit.errors import StateError
from tacit.events.columntypes import ColumnTypes
from tacit.events.subjects import Subjects
from tacit.pipeline.batches import EventBatch, MergedBatch, Rows
from tacit.pipeline.compiled_spec import CompiledSpec, SourceColumns
from tacit.pipeline.definitions import public_before
from tacit.pipeline.openwindows import NextVersion, OpenWindows, make_shard
from tacit.pipeline.snapshots import WindowSnapshot
from tacit.pipeline.versions import SpecVersion
from tacit.pipeline.window_state import ClosedWindows, WindowState
from tacit.privacy.noise import Noise
from tacit.spec.subjects import listed
from tacit.windows.clock import REASONS, TAKEN, Clock, Verdicts
from tacit.windows.jumps import Jumps

_FORMAT: Final = 2


@dataclass(frozen=True, slots=True)
class RefusedRows:
    """Rows that were not taken, for the operator's dead letters alone."""

    rows: Rows
    chosen: NDArray[np.int64]
    """Which rows of the table."""
    times: NDArray[np.int64]
    reasons: NDArray[np.uint8]
    """For each a key of `REASONS`."""


class Engine:
    """Takes tuples in order of arrival and gives windows as they close.

    The registry of subjects is given, or, with `learn` (microseconds), learned from the first
    stretch of the stream; windows are held back until it is complete. One that is `ticking` closes
    windows by the wall clock, which `tick` tells it. `refused` is called with rows that are not
    taken.

    With a `version` the specification can change while it runs: `offer` another version, and call
    `advance` when it is `due`. Nothing must be on its way between `extract` and `insert` then:
    stop reading, advance, and read on, since other columns may be needed.
    """

    def __init__(
        self,
        flow: CompiledSpec,
        subjects: Subjects,
        *,
        version: SpecVersion | None = None,
        noise: Noise | None = None,
        learn: int = 0,
        refused: Callable[[RefusedRows], None] | None = None,
        ticking: bool = False,
    ) -> None:
        if version is not None:
            version.check()
        windows = flow.spec.windows
        self.refused = refused
        self._noise = noise or Noise()
        self.windows = OpenWindows(flow, make_shard(flow, subjects), version)
        self.clock = Clock.at_rest(
            windows.pane,
            windows.lateness,
            windows.future if ticking else windows.jumps[1],
            windows.start_time,
            self.windows.capacity,
            ticking=ticking,
        )
        # Shorter, and it would depend on the order of arrival who is learned.
        whole = -(-max(learn, windows.size + windows.lateness) // windows.pane) * windows.pane
        self.learning = whole if learn else 0
        self.counts = np.zeros(len(REASONS) + 1, dtype=np.int64)
        self.inserted = 0
        """How many of the tuples that are being taken are in their windows."""
        self.most_windows: int | None = None
        """How many windows close together at most, where that is given."""
        self.warnings: list[str] = []
        """What the operator should look at in the registry, once it is complete."""
        self._named = False
        """Whether it is known that all subjects are registered whom private patterns name."""
        self._held: list[ClosedWindows] = []
        self._offered: SpecVersion | None = None

    @property
    def flow(self) -> CompiledSpec:
        """What the version in use asks for."""
        return self.windows.flow

    @property
    def shard(self) -> WindowState:
        """The open windows of the version in use."""
        return self.windows.shard

    @property
    def subjects(self) -> Subjects:
        """The registry."""
        return self.shard.subjects

    @property
    def jumps(self) -> Jumps | None:
        """How far the time of a source may jump; None where the wall clock closes windows.

        Sources are checked for it before they are merged, so that an engine judges what is left.
        """
        if self.clock.ticking:
            return None
        alone = len(self.subjects) == 1 and not self.learning
        return Jumps.of(self.flow.spec.windows, alone=alone)

    # From rows to answers

    def columns(self, stream: str) -> tuple[str, ...]:
        """The columns of a stream that are read."""
        return self.windows.columns(stream)

    def column_types(self, stream: str, source: SourceColumns) -> ColumnTypes:
        """The types that the columns of a source get."""
        return self.windows.column_types(stream, source)

    def extract(self, rows: Rows) -> EventBatch:
        """The events that rows of a stream give."""
        return self.windows.extract(rows, learn=self.learning > 0)

    def push(self, rows: Rows) -> Iterator[Answers]:
        """Take rows in; the answers of the windows that this closes.

        The rows are taken in as the answers are read: read them to the end.
        """
        return map(self.answer, self.insert(MergedBatch.of_one(self.extract(rows))))

    def insert(self, batch: MergedBatch) -> Iterator[ClosedWindows]:
        """Take tuples in, in order of arrival; the windows that this closes, not yet answered.

        Whenever it gives windows, the state is that after the first `inserted` tuples: an engine
        that is restored from a snapshot of then goes on with the tuples after them.
        """
        self.inserted = 0
        self.shard.make_room()
        due, before = self.clock.glance()
        if self._held or due:
            yield from self._close_overdue()
        verdicts = Verdicts.blank(len(batch))
        while self.inserted < len(batch):
            begin = self.inserted
            end = self._judge(batch, begin, verdicts)
            self.windows.insert(batch, verdicts, begin, end)
            due, refused = self.clock.glance()
            if refused == before:
                self.counts[TAKEN] += end - begin
            else:
                self._refuse(batch, verdicts.each, begin, end)
            self.inserted, before = end, refused
            if due:
                yield from self._close(self.clock.closed)

    def tick(self, now: int, *, catching_up: bool = False) -> Iterator[ClosedWindows]:
        """Tell the time, where windows close by the clock; the windows that this closes.

        While `catching_up`, as after an outage, these are only as many as must be.
        """
        self.clock.tick(now, catching_up=catching_up)
        yield from self._close_overdue()

    def flush(self) -> Iterator[ClosedWindows]:
        """The end of input: all windows that are still open, not yet answered."""
        yield from self._close_overdue()
        ended = self.clock.ended
        if self.clock.newest is not None:
            ended += self.flow.spec.windows.panes - 1  # panes to come complete the last windows
        yield from self._close(ended)
        yield from self._complete_registry()

    def finish(self) -> Iterator[Answers]:
        """The end of input: the answers of all windows that are still open."""
        return map(self.answer, self.flush())

    def answer(self, closed: ClosedWindows, exhausted: NDArray[np.bool_] | None = None) -> Answers:
        """The answers of closed windows; `exhausted` as a shard has it."""
        return self.windows.answer(closed, exhausted)

    def _judge(self, batch: MergedBatch, begin: int, verdicts: Verdicts) -> int:
        slots, times, shard = batch.slots, batch.times, self.shard
        return self.clock.judge(
            slots, times, shard.since, begin, self.learning, shard.settled, verdicts
        )

    def _close_overdue(self) -> Iterator[ClosedWindows]:
        """Windows that are closed and were not given yet, as after a restore in their midst."""
        self.shard.make_room()
        if not self.learning:
            yield from self._complete_registry()
        yield from self._close(self.clock.closed)

    def _close(self, stop: int) -> Iterator[ClosedWindows]:
        """Close the windows before `stop`; the schedule begins with the first that was used."""
        first_window = self.clock.first_window
        if first_window is None or stop <= self.clock.next_window:
            return
        if not self.learning:
            self._check_protected()
        first = max(first_window, self.clock.next_window)
        for closed in self.windows.close(first, stop, self.most_windows):
            self.clock.mark_closed(closed.closed.first + len(closed.closed.words))
            if self.learning:
                self._held.append(closed)
            else:
                yield closed
        self.clock.mark_closed(stop)
        if self.learning and (stop - first_window) * self.clock.size >= self.learning:
            yield from self._complete_registry()

    def _refuse(
        self, batch: MergedBatch, verdicts: NDArray[np.uint8], begin: int, end: int
    ) -> None:
        self.counts += np.bincount(verdicts[begin:end], minlength=len(self.counts))
        if self.refused is None:
            return
        for rows, chosen, places in batch.trace(begin + np.flatnonzero(verdicts[begin:end])):
            self.refused(RefusedRows(rows, chosen, batch.times[places], verdicts[places]))

    # The registry

    def register(self, names: Sequence[str]) -> None:
        """Add subjects to the registry; they have answers from the next window on."""
        self.windows.register(names, self.clock.ended)

    def check_names(self) -> None:
        """Raise SpecificationError if a private pattern names a subject that is not registered.

        The registry must be complete. What else the operator should look at is in `warnings`.
        """
        self.warnings = self.windows.check_names(self._offered)
        self._named = True

    def _check_protected(self) -> None:
        """Before anything is released: check the names, unless that was done."""
        if self.flow.evaluator.protects and not self._named:
            self.check_names()

    def _complete_registry(self) -> Iterator[ClosedWindows]:
        """The registry is complete: give what was held back, for all its subjects."""
        if self.learning:
            self.shard.announce()
            self._check_protected()
        self.learning = 0
        while self._held:
            yield self.shard.widened(self._held.pop(0))

    # Versions of the specification

    def offer(self, version: SpecVersion) -> None:
        """Another version, to be taken up as soon as possible; raises where it cannot be."""
        self.windows.check_version(version, learning=self.learning > 0)
        self._offered = version

    @property
    def due(self) -> bool:
        """Whether `advance` would do anything."""
        waiting = self.windows.next is None and self._offered is not None and not self.learning
        return self._passed or waiting

    def advance(self) -> None:
        """Take the next step: give up the old version, or begin to take up the new one."""
        if not self.due:
            return
        if self.windows.next is not None:
            self.windows.finish_version()
        elif self._offered is not None:
            version, self._offered = self._offered, None
            self._begin(version)
        self.clock = replace(self.clock, capacity=self.windows.capacity)

    def _begin(self, version: SpecVersion) -> None:
        # The first pane that no tuple has reached; by the clock, that none can have reached.
        begin = self.clock.reachable if self.clock.ticking else self.clock.ended
        current = self.windows.version
        if current is not None and version.digest != current.digest:
            flow = version.flow(self._noise)
            self.windows.start_version(self.windows.prepare_version(version, flow, begin))
        names = listed(version.spec.subjects, version.spec.folder)
        if names:
            self.windows.register(names, begin)
        if self._passed:  # no window of the old version is open
            self.windows.finish_version()

    @property
    def crossing(self) -> bool:
        """Whether the last window of the old version is closed, and it is not yet given up.

        Then the windows that close next are under another version.
        """
        following = self.windows.next
        return following is not None and self.clock.next_window >= following.boundary

    @property
    def _passed(self) -> bool:
        """Whether the old version is not needed any more: no open pane has anything to hide."""
        following = self.windows.next
        return following is not None and self.clock.next_window >= following.clear

    @property
    def latest(self) -> SpecVersion | None:
        """The version that was given last."""
        return self._offered or next(reversed(self.windows.versions), None)

    # State

    def snapshot(self) -> bytes:
        """The whole state as bytes, to be taken up by `restore`, in any process.

        With a version it holds the specification and the plan: they may be gone by then.
        """
        windows, version = self.windows, self.windows.version
        state = self._window_snapshot(windows.flow, windows.shard, held=self._held)
        if version is None:
            return state
        parts = [version.packed, state]
        following = windows.next
        if following is not None:
            state = self._window_snapshot(following.flow, following.shard)
            parts += [following.version.packed, state]
        head = {
            "succession": _FORMAT,
            "boundary": None if following is None else following.boundary,
            "sighted": windows.protected_from,
            "consumers": windows.consumers,
            "sizes": [len(part) for part in parts],
        }
        return b"".join([json.dumps(head).encode(), b"\n", *parts])

    def _window_snapshot(
        self, flow: CompiledSpec, shard: WindowState, held: Sequence[ClosedWindows] = ()
    ) -> bytes:
        fingerprint, clock = flow.spec.fingerprint, self.clock.state
        return WindowSnapshot(fingerprint, self.learning, clock, self.counts, held).to_bytes(shard)

    def restore(self, snapshot: bytes) -> None:
        """Take up a state, under the version that it was made with.

        If that is not the version of this engine, this engine's version is offered to it.
        """
        wanted = self.windows.version
        if wanted is None:
            self._restore_windows(snapshot, self.windows)
            return
        head, parts = _unpack(snapshot)
        versions = [wanted.or_unpacked(packed) for packed in parts[::2]]
        if versions[0] is not wanted:
            flow = versions[0].flow(self._noise)
            self.windows = OpenWindows(flow, make_shard(flow, Subjects()), versions[0])
        self._restore_windows(parts[1], self.windows)
        self._restore_versions(head, versions[1:], parts[3:])
        self._offered = None
        if self.latest is not wanted:
            self.offer(wanted)

    def _restore_windows(self, snapshot: bytes, windows: OpenWindows) -> None:
        found = WindowSnapshot.from_bytes(snapshot, windows.flow.spec.fingerprint, windows.shard)
        self._held = list(found.held)
        self._named = False
        self.clock = replace(self.clock, capacity=windows.capacity, state=found.clock)
        self.counts = np.zeros(len(REASONS) + 1, dtype=np.int64)
        self.counts[: len(found.counts)] = found.counts
        self.learning = found.learning

    def _restore_versions(
        self, head: Mapping[str, Any], versions: Sequence[SpecVersion], states: Sequence[bytes]
    ) -> None:
        windows = self.windows
        windows.next = None
        windows.consumers = head["consumers"]
        windows.protected_from = int(head["sighted"])
        for version, state in zip(versions, states, strict=True):
            flow = version.flow(self._noise)
            shard = make_shard(flow, Subjects())
            WindowSnapshot.from_bytes(state, flow.spec.fingerprint, shard)
            shard.subjects = self.subjects
            assert windows.version is not None
            public = public_before(windows.version.columns, version.columns)
            windows.start_version(NextVersion(version, flow, shard, int(head["boundary"]), public))
            self.clock = replace(self.clock, capacity=windows.capacity)


def _unpack(snapshot: bytes) -> tuple[dict[str, Any], list[bytes]]:
    line, _, rest = snapshot.partition(b"\n")
    try:
        head = json.loads(line)
        if head["succession"] != _FORMAT or sum(head["sizes"]) != len(rest):
            raise ValueError
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(
            "this is not a checkpoint of an engine, or it is damaged, or of another version"
        ) from error
    ends = np.cumsum([0, *head["sizes"]]).tolist()
    return head, [rest[begin:end] for begin, end in pairwise(ends)]
