"""The engine: tuples in, closed windows out. It has one clock and all open windows.

tuples  --extract-->  slots, times, event types   (events/)
        --judge---->  accepted, or refused with a reason   (windows/clock)
        --insert--->  open windows   (windows/panes)
        --close---->  closed windows, not answered yet   (windows/, pipeline/window_state)
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
from tacit.pipeline.definitions import find_public_types
from tacit.pipeline.snapshots import WindowSnapshot
from tacit.pipeline.versioned_windows import NextVersion, VersionedWindows, make_window_state
from tacit.pipeline.versions import SpecVersion
from tacit.pipeline.window_state import ClosedWindows, WindowState
from tacit.privacy.mechanisms.optimal.memory.learning import measure_drift
from tacit.privacy.noise import Noise
from tacit.privacy.randomness import RandomSource
from tacit.spec.subjects import list_subjects
from tacit.windows.clock import REASONS, TAKEN, Clock, Verdicts
from tacit.windows.jumps import Jumps
from tacit.windows.staging import StagedPresence

_FORMAT: Final = 2


@dataclass(frozen=True, slots=True)
class RefusedRows:
    """Refused rows, for the operator's dead letters only."""

    rows: Rows
    chosen: NDArray[np.int64]
    """Which rows of the table."""
    times: NDArray[np.int64]
    reasons: NDArray[np.uint8]
    """A key of `REASONS` for each row."""


class Engine:
    """Accepts tuples in order of arrival and returns windows as they close.

    The registry of subjects is given, or, with `learn` (microseconds), learned from the start of
    the stream; closed windows are held until it is complete. With `ticking`, windows close by the
    wall clock: call `tick` with the time. `refused` is called with refused rows.

    With a `version` the specification can change while it runs: `offer` another version, and call
    `advance` when it is `due`. No batch may be between `extract` and `insert` at that moment: stop
    reading, advance, and continue reading, since other columns may be needed.
    """

    def __init__(
        self,
        compiled: CompiledSpec,
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
        windows = compiled.spec.windows
        self.refused = refused
        self._noise = noise or Noise()
        self._workers = compiled.evaluator.workers
        self.windows = VersionedWindows(compiled, make_window_state(compiled, subjects), version)
        """The open windows; ask them for the prices of closed ones."""
        self.clock = Clock.initial(
            windows.pane,
            windows.lateness,
            windows.future if ticking else windows.jumps[1],
            windows.start_time,
            self.windows.capacity,
            ticking=ticking,
        )
        # If it were shorter, the learned subjects would depend on the order of arrival.
        whole = -(-max(learn, windows.size + windows.lateness) // windows.pane) * windows.pane
        self.learning = whole if learn else 0
        self.counts = np.zeros(len(REASONS) + 1, dtype=np.int64)
        self.inserted = 0
        """How many tuples of the current batch are in their windows."""
        self.most_windows: int | None = None
        """The most windows that close together; None for no limit."""
        self.warnings: list[str] = []
        """Warnings about the registry for the operator, once it is complete."""
        self._names_checked = False
        """Whether `check_names` has passed."""
        self._held: list[ClosedWindows] = []
        self._offered: SpecVersion | None = None

    @property
    def compiled(self) -> CompiledSpec:
        """The compiled specification of the current version."""
        return self.windows.compiled

    @property
    def window_state(self) -> WindowState:
        """The open windows of the current version."""
        return self.windows.window_state

    @property
    def subjects(self) -> Subjects:
        """The registry of subjects."""
        return self.window_state.subjects

    @property
    def jumps(self) -> Jumps | None:
        """How far the time of a source may jump; None if windows close by the wall clock.

        The reader checks this for each source, before it merges them.
        """
        if self.clock.ticking:
            return None
        alone = len(self.subjects) == 1 and not self.learning
        return Jumps.of(self.compiled.spec.windows, alone=alone)

    # From rows to answers

    def columns(self, stream: str) -> tuple[str, ...]:
        """Return the columns of a stream that are read."""
        return self.windows.columns(stream)

    def column_types(self, stream: str, source: SourceColumns) -> ColumnTypes:
        """Return the types to which the columns of a source are converted."""
        return self.windows.column_types(stream, source)

    def extract(self, rows: Rows) -> EventBatch:
        """Extract the events from rows of a stream."""
        return self.windows.extract(rows, learn=self.learning > 0)

    def stages(self, batch: EventBatch, *, ahead: bool) -> bool:
        """Return whether it is of use to find the presence of tuples before they are judged.

        The thread that reads does this `ahead` when the thread that inserts is behind.
        """
        return self.windows.stages(batch, ahead=ahead)

    def stage(self, batch: EventBatch) -> StagedPresence:
        """Find the presence of tuples before they are judged."""
        return self.windows.stage(batch)

    def push(self, rows: Rows) -> Iterator[Answers]:
        """Insert rows and yield the answers of the windows that this closes.

        Rows are inserted while you iterate: read the answers to the end.
        """
        return map(self.answer, self.insert(MergedBatch.from_batch(self.extract(rows))))

    def insert(self, batch: MergedBatch) -> Iterator[ClosedWindows]:
        """Insert tuples in order of arrival and yield the windows that this closes, unanswered.

        At each yield the state is the one after the first `inserted` tuples. An engine that is
        restored from a snapshot of that moment continues with the next tuple.
        """
        self.inserted, count = 0, len(batch)
        self.window_state.make_room()
        due, before = self.clock.read_status()
        if self._held or due:
            yield from self._close_overdue()
        verdicts = Verdicts.allocate(count)
        while self.inserted < count:
            begin = self.inserted
            end = self._judge(batch, begin, verdicts)
            self.windows.insert(batch, verdicts, begin, end)
            due, refused = self.clock.read_status()
            if refused == before:
                self.counts[TAKEN] += end - begin
            else:
                self._refuse(batch, verdicts.each, begin, end)
            self.inserted, before = end, refused
            if due:
                yield from self._close(self.clock.closed)

    def tick(self, now: int, *, catching_up: bool = False) -> Iterator[ClosedWindows]:
        """Set the time, where windows close by the clock, and yield the windows that this closes.

        With `catching_up`, as after an outage, it closes only as many as necessary.
        """
        self.clock.tick(now, catching_up=catching_up)
        yield from self._close_overdue()

    def flush(self) -> Iterator[ClosedWindows]:
        """End the input: close all windows that are still open, without answering them."""
        yield from self._close_overdue()
        ended = self.clock.ended
        if self.clock.newest is not None:
            ended += self.compiled.spec.windows.panes - 1  # panes to come complete the last windows
        yield from self._close(ended)
        yield from self._complete_registry()

    def finish(self) -> Iterator[Answers]:
        """End the input: answer all windows that are still open."""
        return map(self.answer, self.flush())

    def answer(
        self,
        closed: ClosedWindows,
        exhausted: NDArray[np.bool_] | None = None,
        uncounted: NDArray[np.bool_] | None = None,
    ) -> Answers:
        """Answer closed windows; `exhausted` and `uncounted` are as in `WindowState.answer`."""
        return self.windows.answer(closed, exhausted, uncounted)

    @property
    def drift(self) -> float | None:
        """The share of recent changes that history does not predict; None without memory."""
        return measure_drift(self.window_state.memory)

    def find_drift(self, closed: ClosedWindows) -> float | None:
        """Return the same for the version of these windows.

        When a reload drops the old version depends on how tuples come in batches.
        """
        return measure_drift(self.windows.find_memory(closed))

    @property
    def random_source(self) -> RandomSource:
        """The source of randomness of this run."""
        return self._noise.source

    def _judge(self, batch: MergedBatch, begin: int, verdicts: Verdicts) -> int:
        slots, times, window_state = batch.slots, batch.times, self.window_state
        return self.clock.judge(
            slots,
            times,
            window_state.since,
            begin,
            self.learning,
            window_state.settled,
            verdicts,
            batch.extents,
        )

    def _close_overdue(self) -> Iterator[ClosedWindows]:
        """Yield closed windows that were not returned yet, as after a restore."""
        self.window_state.make_room()
        if not self.learning:
            yield from self._complete_registry()
        yield from self._close(self.clock.closed)

    def _close(self, stop: int) -> Iterator[ClosedWindows]:
        """Close the windows before `stop`; the schedule starts with the first window used."""
        first_window = self.clock.first_window
        if first_window is None or stop <= self.clock.next_window:
            return
        if not self.learning:
            self._check_protected()
        first = max(first_window, self.clock.next_window)
        for closed in self.windows.close(first, stop, self.most_windows):
            self.clock.mark_closed(closed.panes.first + len(closed.panes.words))
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
        """Add subjects to the registry; they get answers from the next window on."""
        self.windows.register(names, self.clock.ended)

    def check_names(self) -> None:
        """Raise SpecificationError if a private pattern names a subject that is not registered.

        The registry must be complete. Lesser problems are in `warnings` afterwards.
        """
        self.warnings = self.windows.check_names(self._offered)
        self._names_checked = True

    def _check_protected(self) -> None:
        """Check the names once, before anything is released."""
        if self.compiled.evaluator.protects and not self._names_checked:
            self.check_names()

    def _complete_registry(self) -> Iterator[ClosedWindows]:
        """Complete the registry and yield the windows held until then, for all its subjects."""
        if self.learning:
            self.window_state.announce()
            self._check_protected()
        self.learning = 0
        while self._held:
            yield self.window_state.widen(self._held.pop(0))

    # Versions of the specification

    def offer(self, version: SpecVersion) -> None:
        """Offer another version, to be used as soon as possible; raise if that is not possible."""
        self.windows.check_version(version, learning=self.learning > 0)
        self._offered = version

    @property
    def due(self) -> bool:
        """Whether `advance` would do anything."""
        waiting = self.windows.next is None and self._offered is not None and not self.learning
        return self._old_version_done or waiting

    def advance(self) -> None:
        """Take the next step: drop the old version, or start to use the new one."""
        if not self.due:
            return
        if self.windows.next is not None:
            self.windows.finish_version()
        elif self._offered is not None:
            version, self._offered = self._offered, None
            self._begin(version)
        self.clock = replace(self.clock, capacity=self.windows.capacity)

    def _begin(self, version: SpecVersion) -> None:
        # The first pane with no tuple; with `ticking`, the first that can have none.
        begin = self.clock.reachable if self.clock.ticking else self.clock.ended
        current = self.windows.version
        if current is not None and version.digest != current.digest:
            compiled = version.compile(self._noise, self._workers)
            self.windows.start_version(self.windows.prepare_version(version, compiled, begin))
        names = list_subjects(version.spec.subjects, version.spec.folder)
        if names:
            self.windows.register(names, begin)
        if self._old_version_done:  # no window of the old version is open
            self.windows.finish_version()

    @property
    def between_versions(self) -> bool:
        """Whether the last window of the old version is closed, and the version still in use.

        Then the next windows belong to the new version.
        """
        following = self.windows.next
        return following is not None and self.clock.next_window >= following.boundary

    @property
    def _old_version_done(self) -> bool:
        """Whether the old version can be dropped: no open pane needs its protection."""
        following = self.windows.next
        return following is not None and self.clock.next_window >= following.clear

    @property
    def latest(self) -> SpecVersion | None:
        """The latest version that was accepted or offered."""
        return self._offered or next(reversed(self.windows.versions), None)

    # State

    def snapshot(self) -> bytes:
        """Return the whole state as bytes, for `restore` in any process.

        With a version it includes the specification and the plan: the files may be gone by then.
        """
        windows, version = self.windows, self.windows.version
        state = self._window_snapshot(windows.compiled, windows.window_state, held=self._held)
        if version is None:
            return state
        parts = [version.packed, state]
        following = windows.next
        if following is not None:
            state = self._window_snapshot(following.compiled, following.window_state)
            parts += [following.version.packed, state]
        head = {
            "succession": _FORMAT,  # stored names stay as they were first written
            "boundary": None if following is None else following.boundary,
            "sighted": windows.protected_from,
            "consumers": windows.consumers,
            "sizes": [len(part) for part in parts],
        }
        return b"".join([json.dumps(head).encode(), b"\n", *parts])

    def _window_snapshot(
        self, compiled: CompiledSpec, window_state: WindowState, held: Sequence[ClosedWindows] = ()
    ) -> bytes:
        fingerprint, clock = compiled.spec.fingerprint, self.clock.state
        return WindowSnapshot(fingerprint, self.learning, clock, self.counts, held).to_bytes(
            window_state
        )

    def restore(self, snapshot: bytes) -> None:
        """Restore a state, under the version with which it was made.

        If that is not the version of this engine, the engine's own version is offered next.
        """
        own_version = self.windows.version
        if own_version is None:
            self._restore_windows(snapshot, self.windows)
            return
        head, parts = _unpack(snapshot)
        versions = [own_version.unpack_or_self(packed) for packed in parts[::2]]
        if versions[0] is not own_version:
            compiled = versions[0].compile(self._noise, self._workers)
            self.windows = VersionedWindows(
                compiled, make_window_state(compiled, Subjects()), versions[0]
            )
        self._restore_windows(parts[1], self.windows)
        self._restore_versions(head, versions[1:], parts[3:])
        self._offered = None
        if self.latest is not own_version:
            self.offer(own_version)

    def _restore_windows(self, snapshot: bytes, windows: VersionedWindows) -> None:
        found = WindowSnapshot.from_bytes(
            snapshot, windows.compiled.spec.fingerprint, windows.window_state
        )
        self._held = list(found.held)
        self._names_checked = False
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
            compiled = version.compile(self._noise, self._workers)
            window_state = make_window_state(compiled, Subjects())
            WindowSnapshot.from_bytes(state, compiled.spec.fingerprint, window_state)
            window_state.subjects = self.subjects
            assert windows.version is not None
            public = find_public_types(windows.version.columns, version.columns)
            windows.start_version(
                NextVersion(version, compiled, window_state, int(head["boundary"]), public)
            )
            self.clock = replace(self.clock, capacity=windows.capacity)


def _unpack(snapshot: bytes) -> tuple[dict[str, Any], list[bytes]]:
    line, _, rest = snapshot.partition(b"\n")
    try:
        head = json.loads(line)
        if head["succession"] != _FORMAT or sum(head["sizes"]) != len(rest):
            raise ValueError
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(
            "this is not a checkpoint of an engine, or it is damaged or from another version"
        ) from error
    ends = np.cumsum([0, *head["sizes"]]).tolist()
    return head, [rest[begin:end] for begin, end in pairwise(ends)]
