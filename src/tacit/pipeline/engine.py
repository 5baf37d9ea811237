"""The whole flow: tuples, events, windows, answers.

tuples  --extract-->  slots, times, event types   (events/)
        --judge---->  taken, or refused with a reason   (windows/clock)
        --lay------>  open windows   (windows/panes)
        --close---->  answers to every query   (patterns/, answers/)
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tacit.answers.answers import Answers
from tacit.errors import StateError
from tacit.events.columntypes import ColumnTypes
from tacit.events.subjects import Subjects
from tacit.pipeline.arrivals import Arrivals, Rows
from tacit.pipeline.flow import Flow, SourceColumns
from tacit.pipeline.shard import Handed, Shard, below
from tacit.privacy.naming import check_names
from tacit.windows.clock import REASONS, TAKEN, Clock, Verdicts
from tacit.windows.jumps import Jumps
from tacit.windows.panes import ring_capacity

_FORMAT: Final = 3


@dataclass(frozen=True, slots=True)
class Refused:
    """Rows that were not taken, for the operator's dead letters alone."""

    rows: Rows
    chosen: NDArray[np.int64]
    """Which rows of the table."""
    times: NDArray[np.int64]
    reasons: NDArray[np.uint8]
    """For each a key of `REASONS`."""


class Engine:
    """Takes tuples in order of arrival and gives the answers of windows as they close.

    The registry of subjects is given, or, with `learn` (microseconds), learned from the
    first stretch of the stream; answers are held back until it is complete. One that is
    `ticking` closes windows by the clock on the wall, which it is told by `tick`.
    """

    def __init__(
        self,
        flow: Flow,
        subjects: Subjects,
        *,
        learn: int = 0,
        refused: Callable[[Refused], None] | None = None,
        ticking: bool = False,
    ) -> None:
        windows = flow.spec.windows
        self.flow = flow
        self.refused = refused
        words = len(flow.asking.ordered_types)
        pane = windows.pane
        capacity = ring_capacity(
            pane, windows.lateness, len(subjects) or 10_000, words, windows.panes
        )
        self.shard = Shard(flow.asking, flow.policies, subjects, pane, capacity, windows.panes)
        self.clock = Clock.at_rest(
            pane,
            windows.lateness,
            windows.future if ticking else windows.jumps[1],
            windows.start_time,
            capacity,
            ticking=ticking,
        )
        # Shorter, and it would depend on the order of arrival who is learned.
        whole = -(-max(learn, windows.size + windows.lateness) // pane) * pane
        self.learning = whole if learn else 0
        self.counts = np.zeros(len(REASONS) + 1, dtype=np.int64)
        self.laid = 0
        """How many of the tuples that are being taken are in their windows."""
        self.most_windows: int | None = None
        """How many windows are handed on together at most, where that is told."""
        self.warnings: list[str] = []
        """What the operator should look at in the registry, once it is complete."""
        self._named = False
        """Whether it is known that everybody is registered whom private patterns name."""
        self._held: list[Handed] = []

    @property
    def subjects(self) -> Subjects:
        """The registry."""
        return self.shard.subjects

    @property
    def jumps(self) -> Jumps | None:
        """How far the time of a source may jump; None where the clock on the wall closes windows.

        Sources are checked for it before they are merged, so that an engine judges what is left.
        """
        if self.clock.ticking:
            return None
        alone = len(self.subjects) == 1 and not self.learning
        return Jumps.of(self.flow.spec.windows, alone=alone)

    def extract(self, rows: Rows) -> Arrivals:
        """The events that rows of a stream give."""
        return self.flow.extract(rows, self.subjects, learn=self.learning > 0)

    def columns(self, stream: str) -> tuple[str, ...]:
        """The columns of a stream that are read."""
        return self.flow.columns(stream)

    def column_types(self, stream: str, source: SourceColumns) -> ColumnTypes:
        """The types that the columns of a source get."""
        return self.flow.column_types(stream, source)

    def push(self, rows: Rows) -> Iterator[Answers]:
        """Take rows in; the answers of the windows that this closes.

        The rows are taken in as the answers are read: read them to the end.
        """
        return self.take(self.extract(rows))

    def take(self, arrivals: Arrivals) -> Iterator[Answers]:
        """Take tuples in, in order of arrival; the answers of the windows that this closes."""
        return map(self.answer, self.hand(arrivals))

    def hand(self, arrivals: Arrivals) -> Iterator[Handed]:
        """Take tuples in, in order of arrival; the windows that this closes, not yet answered.

        Whenever it gives windows, the state is that after the first `laid` tuples: an engine
        that is restored from a snapshot of then goes on with the tuples after them.
        """
        self.laid = 0
        self.shard.make_room()
        due, before = self.clock.glance()
        if self._held or due:
            yield from self._overdue()
        verdicts = Verdicts.blank(len(arrivals))
        while self.laid < len(arrivals):
            begin = self.laid
            end = self._judge(arrivals, begin, verdicts)
            self._lay(arrivals, verdicts, begin, end)
            due, refused = self.clock.glance()
            if refused == before:
                self.counts[TAKEN] += end - begin
            else:
                self._refuse(arrivals, verdicts.each, begin, end)
            self.laid, before = end, refused
            if due:
                yield from self._close(self.clock.closed)

    def tick(self, now: int, *, catching_up: bool = False) -> Iterator[Handed]:
        """Tell the time, where windows close by the clock; the windows that this closes.

        While `catching_up`, as after an outage, these are only as many as must be.
        """
        self.clock.tick(now, catching_up=catching_up)
        yield from self._overdue()

    def answer(self, handed: Handed, exhausted: NDArray[np.bool_] | None = None) -> Answers:
        """The answers of windows that were handed on; `exhausted` as a shard has it."""
        return self.shard.answer(handed, exhausted)

    def register(self, names: Sequence[str]) -> None:
        """Add subjects to the registry; they have answers from the next window on."""
        self.shard.register(names, self.clock.ended)

    def check_names(self) -> None:
        """Raise SpecificationError if a private pattern names somebody who is not registered.

        The registry must be complete. What else the operator should look at is in `warnings`.
        """
        self.warnings = check_names(self.flow.spec, self.shard.registered)
        self._named = True

    def _check_protected(self) -> None:
        """Before anything is released: check the names, unless that was done."""
        if self.flow.asking.protects and not self._named:
            self.check_names()

    def finish(self) -> Iterator[Answers]:
        """The end of input: close all windows."""
        return map(self.answer, self.hand_rest())

    def hand_rest(self) -> Iterator[Handed]:
        """The end of input: all windows that are still open, not yet answered."""
        yield from self._overdue()
        ended = self.clock.ended
        if self.clock.newest is not None:
            ended += self.flow.spec.windows.panes - 1  # panes to come complete the last windows
        yield from self._close(ended)
        yield from self._announce()

    def _judge(self, arrivals: Arrivals, begin: int, verdicts: Verdicts) -> int:
        slots, times, shard = arrivals.slots, arrivals.times, self.shard
        return self.clock.judge(
            slots, times, shard.since, begin, self.learning, shard.settled, verdicts
        )

    def _lay(self, arrivals: Arrivals, verdicts: Verdicts, begin: int, end: int) -> None:
        self.shard.lay(arrivals, verdicts, begin, end)

    def _shut(self, first: int, stop: int) -> Iterator[Handed]:
        return self.shard.close(first, stop, self.most_windows)

    def _overdue(self) -> Iterator[Handed]:
        """Windows that are closed and were not given yet, as after a restore in their midst."""
        self.shard.make_room()
        if not self.learning:
            yield from self._announce()
        yield from self._close(self.clock.closed)

    def _close(self, stop: int) -> Iterator[Handed]:
        """Hand on the windows before `stop`; the schedule begins with the first that was used."""
        first_window = self.clock.first_window
        if first_window is None or stop <= self.clock.next_window:
            return
        if not self.learning:
            self._check_protected()
        first = max(first_window, self.clock.next_window)
        for handed in self._shut(first, stop):
            self.clock.hand_on(handed.closed.first + len(handed.closed.words))
            if self.learning:
                self._held.append(handed)
            else:
                yield handed
        self.clock.hand_on(stop)
        if self.learning and (stop - first_window) * self.clock.size >= self.learning:
            yield from self._announce()

    def _announce(self) -> Iterator[Handed]:
        """The registry is complete: give what was held back, for all its subjects."""
        if self.learning:
            self.shard.announce()
            self._check_protected()
        self.learning = 0
        while self._held:
            yield self.shard.widened(self._held.pop(0))

    def _refuse(
        self, arrivals: Arrivals, verdicts: NDArray[np.uint8], begin: int, end: int
    ) -> None:
        self.counts += np.bincount(verdicts[begin:end], minlength=len(self.counts))
        if self.refused is None:
            return
        for rows, chosen, places in arrivals.trace(begin + np.flatnonzero(verdicts[begin:end])):
            self.refused(Refused(rows, chosen, arrivals.times[places], verdicts[places]))

    def snapshot(self) -> bytes:
        """The whole state as bytes, to be taken up by `restore`, in any process."""
        arrays, frames = self.shard.state()
        head = {
            "format": _FORMAT,
            "fingerprint": self.flow.spec.fingerprint,
            "learning": self.learning,
            "held": [handed.closed.first for handed in self._held],
        }
        arrays |= {"clock": self.clock.state, "counts": self.counts}
        for number, handed in enumerate(self._held):
            arrays |= {f"held.{number}.{name}": part for name, part in handed.arrays().items()}
            frames |= {f"held.{number}.{name}": frame for name, frame in handed.rows.items()}
        for name, frame in frames.items():
            arrays[f"frame.{name}"] = np.frombuffer(
                frame.write_ipc(None).getvalue(), dtype=np.uint8
            )
        arrays["head"] = np.frombuffer(json.dumps(head).encode(), dtype=np.uint8)
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
        return buffer.getvalue()

    def restore(self, snapshot: bytes) -> None:
        """Take up the state of an engine for the same specification."""
        try:
            with np.load(io.BytesIO(snapshot), allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            head = json.loads(arrays.pop("head").tobytes())
        except (ValueError, OSError, KeyError, zipfile.BadZipFile) as error:
            raise StateError("this is not a snapshot of an engine, or it is damaged") from error
        if head["format"] != _FORMAT or head["fingerprint"] != self.flow.spec.fingerprint:
            raise StateError(
                "this snapshot was made for another specification or by another version; "
                "restore it with the specification that it was made with"
            )
        frames = {
            name.removeprefix("frame."): pl.read_ipc(io.BytesIO(part.tobytes()))
            for name, part in arrays.items()
            if name.startswith("frame.")
        }
        self._held = [
            Handed.from_state(first, below(f"held.{n}.", arrays), below(f"held.{n}.", frames))
            for n, first in enumerate(head["held"])
        ]
        kept = {name: frame for name, frame in frames.items() if not name.startswith("held.")}
        self.shard.restore(arrays, kept)
        self._named = False
        self.clock = replace(self.clock, capacity=self.shard.panes.capacity, state=arrays["clock"])
        self.counts = np.zeros(len(REASONS) + 1, dtype=np.int64)
        self.counts[: len(arrays["counts"])] = arrays["counts"]
        self.learning = head["learning"]
