"""Released answers of one run, for pages, streams and downloads.

The feed is a sink of the run, so it gets every release as soon as it is committed. What it
returns comes from the ledger, by id, with the same rows for every request. Each reader has its own
position: a slow one does not delay others, and no queue grows. The last releases stay unpacked in
memory, since most readers want those. For streams they are formatted once for all readers.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tacit.answers.codec import unpack
from tacit.answers.rows import answer_schema
from tacit.errors import LedgerError
from tacit.ledger.alchemy import sa
from tacit.ledger.chain import digest
from tacit.ledger.directory import Directory
from tacit.ledger.ledger import Ledger
from tacit.ledger.registry import Registry
from tacit.ledger.tables import BODIES, RELEASES
from tacit.pipeline.sinks import ReleaseBatch, Sink
from tacit.service.coded_rows import CodedRows
from tacit.service.recent_values import RecentValues

_MOST_BYTES: Final = 128 << 20
"""How much of unpacked releases stays in memory."""
_MOST_SHOWN: Final = 2_000_000
"""The most answers that are read for a page of the console."""
_MOST_CHOSEN: Final = 1 << 21
"""How many places of selected answers stay in memory."""
_CODED: Final = ("consumer", "query", "subject")


@dataclass(frozen=True, slots=True)
class FeedSelection:
    """Which answers a reader gets; None selects all."""

    consumer: str | None = None
    queries: tuple[str, ...] | None = None
    subjects: tuple[str, ...] | None = None
    since: int | None = None
    """Select windows that start at this time or later, in microseconds since 1970."""
    until: int | None = None
    """Select windows that start before this time."""


@dataclass
class SelectionCache:
    """The places of the answers that readers choose by name, while names stay where they are."""

    rows: dict[tuple[Any, ...], NDArray[np.int64]] = field(default_factory=dict)
    size: int = 0

    def keep(self, key: tuple[Any, ...], rows: NDArray[np.int64]) -> None:
        """Keep the places of a selection; forget all others if they become too many.

        One that takes most of the room is not worth the others.
        """
        if rows.size > _MOST_CHOSEN // 2:
            return
        if self.size + rows.size > _MOST_CHOSEN:
            self.rows, self.size = {}, 0
        self.rows[key] = rows
        self.size += rows.size


@dataclass(frozen=True)
class UnpackedRelease:
    """The answers of a release, ready to be selected from."""

    number: int
    follows: int
    """No answer of the run has an id after this one and before the release."""
    first_id: int
    last_id: int
    first: int
    end: int
    """Its windows start from `first` on and before `end`."""
    rows: CodedRows
    chosen: SelectionCache
    """Shared by releases in which the same names have the same places."""

    def select(self, selection: FeedSelection, after: int) -> pa.Table:
        """Return the selected answers with ids larger than `after`."""
        rows, table = self._find_rows(selection, after, again=False), self.rows.table
        return table if rows.size == table.num_rows else table.take(pa.array(rows))

    def format_event(self, selection: FeedSelection, after: int, most: int) -> tuple[int, bytes]:
        """Format at most so many of the selected answers after an id as a server-sent event.

        Returns the id to continue after, and nothing if no answer is left.
        """
        rows = self._find_rows(selection, after, again=True)
        part = rows[:most]
        last = self.last_id if part.size == rows.size else self.first_id + int(part[-1])
        return last, self.rows.format_event("answers", last, part)

    def _find_rows(self, selection: FeedSelection, after: int, *, again: bool) -> NDArray[np.int64]:
        """Return the places of the selected answers after an id, in order.

        With `again`, they are kept: a stream asks for each of its events.
        """
        key = selection.consumer, selection.queries, selection.subjects
        rows = self.chosen.rows.get(key)
        if rows is None:
            rows = self._choose(selection)
            if again:
                self.chosen.keep(key, rows)
        begin = max(after + 1 - self.first_id, 0)
        if begin:
            rows = rows[np.searchsorted(rows, begin) :]
        if selection.since is not None or selection.until is not None:
            starts = np.asarray(self.rows.table["window_start"].cast(pa.int64()))[rows]
            since = self.first if selection.since is None else selection.since
            until = self.end if selection.until is None else selection.until
            rows = rows[(starts >= since) & (starts < until)]
        return rows

    def _choose(self, selection: FeedSelection) -> NDArray[np.int64]:
        """Return the places of the answers that are selected by name, in order."""
        if selection.subjects is None:
            rows = np.arange(self.rows.table.num_rows)
        else:
            rows = self._find_subjects(selection.subjects)
        consumers = None if selection.consumer is None else (selection.consumer,)
        rows = self.rows.choose(rows, "consumer", consumers)
        return self.rows.choose(rows, "query", selection.queries)

    def _find_subjects(self, names: Sequence[str]) -> NDArray[np.int64]:
        """Return the places of the answers about these subjects, in order."""
        order, starts = self._by_subject
        codes = np.unique(self.rows.find_codes("subject", names))
        lengths = starts[codes + 1] - starts[codes]
        shifts = np.repeat(starts[codes] - np.cumsum(lengths) + lengths, lengths)
        return np.sort(order[shifts + np.arange(shifts.size)])

    @cached_property
    def _by_subject(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """All places sorted by subject, and where each subject's begin."""
        numbers, known = self.rows.codes["subject"]
        counts = np.bincount(numbers, minlength=len(known))
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        return np.argsort(numbers, kind="stable"), starts


class AnswerFeed(Sink):
    """Reads the released answers of a run, and tells listeners of new ones."""

    name = "http"
    once = True

    def __init__(self, ledger: Ledger, run: str) -> None:
        self._ledger = ledger
        self._run = run
        self._names = Directory(ledger)
        self._registry = Registry()
        self._lock = threading.Lock()
        self._recent = RecentValues[UnpackedRelease](_MOST_BYTES)
        self._places: list[tuple[int, int]] = []
        """What each of them follows, and its number, in order."""
        self._latest = -1
        """The last id of the last release that was delivered; -1 if there was none yet."""
        self._last: UnpackedRelease | None = None
        self._streams = 0
        self._listeners: list[Callable[[], None]] = []
        self.consumers: dict[str, str] = {}
        """The consumer of each query in the releases that were read so far."""

    def listen(self, listener: Callable[[], None]) -> None:
        """Call this after every release, in the thread that delivers it."""
        self._listeners.append(listener)

    def deliver(self, batch: ReleaseBatch) -> None:
        """Keep the last release in memory, and tell that it is there."""
        self.consumers |= batch.consumers
        row = self._next_row(batch.release, body=False)
        if row is not None and row["number"] == batch.release:
            follows = self._latest if 0 <= self._latest < row["first_id"] else row["first_id"] - 1
            release = unpack_release(row, batch.table, follows, self._last)
            self._last = release
            if self._streams:
                release.rows.lines  # noqa: B018 - in this thread, before all streams ask for it
            self._keep(release)
            self._latest = release.last_id
        for listener in self._listeners:
            listener()

    def close(self) -> None:
        """Do nothing: everything is in the ledger."""

    def knows(self, subject: str) -> bool:
        """Return whether the ledger has a subject of this name."""
        with self._ledger.database.reading() as connection:
            self._registry.refresh(connection)
        names = pa.array([subject], pa.large_string())
        return bool(self._registry.find_ids(names)[0] >= 0)

    def last_id(self) -> int:
        """Return the id of the run's last answer; -1 if there is none."""
        query = sa.select(RELEASES.c.first_id + RELEASES.c.answers - 1)
        query = query.where(RELEASES.c.run == self._run)
        with self._ledger.database.reading() as connection:
            last = query.order_by(RELEASES.c.number.desc()).limit(1)
            found: int | None = connection.execute(last).scalar()
        return -1 if found is None else found

    def first_id(self) -> int | None:
        """Return the id of the run's first answer that is still stored; None if there is none."""
        row = self._next_row(0, body=False)
        return None if row is None else int(row["first_id"])

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """Format releases as they come, for a reader that streams them."""
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1

    def is_latest(self, after: int) -> bool:
        """Return whether no release that was delivered has answers after this id."""
        return 0 <= self._latest <= after

    def recall_event(
        self, selection: FeedSelection, after: int, most: int
    ) -> tuple[int, bytes] | None:
        """Do what `UnpackedRelease.format_event` does, if the next release is in memory."""
        with self._lock:
            place = bisect_right(self._places, (after, math.inf)) - 1
            release = self._recent.find(self._places[place][1]) if place >= 0 else None
        if release is None or release.last_id <= after or not release.rows.formatted:
            return None
        return release.format_event(selection, after, most)

    def read_event(
        self, selection: FeedSelection, after: int, most: int
    ) -> tuple[int, bytes] | None:
        """Do the same from the ledger; return None if there is no later release."""
        release = self._read_release(self._find_release(after))
        if release is None:
            return None
        event = release.format_event(selection, after, most)
        self._keep(release)  # it may have grown
        return event

    def read(self, selection: FeedSelection, after: int = -1) -> Iterator[tuple[int, pa.Table]]:
        """Yield the selected answers with ids larger than `after`, one table per release.

        Ids begin at 0. Each table comes with the last id of its release, after which a reader
        continues. Tables may be empty.
        """
        number = self._find_release(after)
        while (release := self._read_release(number)) is not None:
            later = selection.until is not None and release.first >= selection.until
            if later:
                return
            if selection.since is None or release.end > selection.since:
                yield release.last_id, release.select(selection, after)
            number = release.number + 1

    def read_last(self, selection: FeedSelection, windows: int) -> list[pa.Table]:
        """Return the selected answers of the last releases, the oldest first."""
        query = sa.select(RELEASES.c.number, RELEASES.c.answers)
        query = query.join(BODIES, BODIES.c.release == RELEASES.c.number)
        query = query.where(RELEASES.c.run == self._run).order_by(RELEASES.c.number.desc())
        with self._ledger.database.reading() as connection:
            rows = connection.execute(query.limit(windows)).all()
        fits = np.cumsum([row.answers for row in rows]) <= _MOST_SHOWN
        numbers = [row.number for row, fit in zip(rows, fits, strict=True) if fit or row is rows[0]]
        found = [self._read_release(number) for number in reversed(numbers)]
        return [release.select(selection, -1) for release in found if release is not None]

    def _read_release(self, number: int) -> UnpackedRelease | None:
        """Return the first stored release from this number on."""
        with self._lock:
            found = self._recent.find(number)
        if found is not None:
            return found
        row = self._next_row(number, body=False)
        if row is None:
            return None
        with self._lock:
            found = self._recent.find(row["number"])
        if found is not None:
            return found
        row = self._next_row(number, body=True)
        if row is None:
            return None  # deleted since
        table, consumers = unpack(check_body(row), row["first_id"], self._names)
        self.consumers |= consumers
        return self._keep(unpack_release(row, table, row["first_id"] - 1))

    def _keep(self, release: UnpackedRelease) -> UnpackedRelease:
        with self._lock:
            kept = self._recent.find(release.number)
            if kept is None:
                insort(self._places, (release.follows, release.number))
                kept = release
            for oldest in self._recent.keep(kept.number, kept, kept.rows.size):
                self._places.remove((oldest.follows, oldest.number))
            return kept

    def _next_row(self, number: int, *, body: bool) -> Any:
        return next_release(self._ledger, self._run, number, body=body)

    def _find_release(self, after: int) -> int:
        """Return the number of the run's first release that ends behind an id, by bisection."""
        mine = RELEASES.c.run == self._run
        ends = sa.select(sa.func.min(RELEASES.c.number), sa.func.max(RELEASES.c.number))
        columns = RELEASES.c["number", "first_id", "answers"]
        step = sa.select(*columns).where(mine).order_by(RELEASES.c.number).limit(1)
        with self._ledger.database.reading() as connection:
            low, high = connection.execute(ends.where(mine)).one()
            if low is None:
                return 0
            high += 1
            while low < high:
                middle = (low + high) // 2
                row = connection.execute(step.where(RELEASES.c.number >= middle)).one_or_none()
                if row is None or row.first_id + row.answers - 1 > after:
                    high = middle
                else:
                    low = row.number + 1
        return int(low)


def next_release(
    ledger: Ledger,
    run: str,
    number: int,
    *conditions: sa.ColumnElement[bool],
    body: bool,
) -> Any:
    """Return a run's first stored release from this number on; None if there is none."""
    stored = RELEASES.join(BODIES, BODIES.c.release == RELEASES.c.number)
    columns = [
        *RELEASES.c["number", "first", "windows", "slide", "first_id", "answers", "digest"],
        *([BODIES.c.body] if body else []),
    ]
    query = sa.select(*columns).select_from(stored).where(RELEASES.c.run == run, *conditions)
    query = query.where(RELEASES.c.number >= number).order_by(RELEASES.c.number).limit(1)
    with ledger.database.reading() as connection:
        return connection.execute(query).mappings().one_or_none()


def check_body(row: Any) -> bytes:
    """Return what a release stores; raise LedgerError if it was changed."""
    if digest(row["body"]) != row["digest"]:
        raise LedgerError(
            f"the answers of release {row['number']} were changed since they were released;"
            " run tacit ledger verify, and restore a backup"
        )
    body: bytes = row["body"]
    return body


def unpack_release(
    row: Any, table: pa.Table, follows: int, last: UnpackedRelease | None = None
) -> UnpackedRelease:
    """Make a release ready to be selected from; `last` is the one before it, if it is in memory."""
    if "exhausted" not in table.column_names:  # without limits nobody is exhausted
        place = table.column_names.index("confidence") + 1
        none = pa.array(np.zeros(table.num_rows, np.bool_))
        table = table.add_column(place, "exhausted", none)
    if "value" not in table.column_names:  # all answers are yes or no
        place = table.column_names.index("detected") + 1
        kind = answer_schema(valued=True).field("value")
        table = table.add_column(place, kind, pa.nulls(table.num_rows, kind.type))
    rows = CodedRows.of(table, _CODED)
    same = last is not None and rows.has_same_names(last.rows)
    return UnpackedRelease(
        int(row["number"]),
        int(follows),
        int(row["first_id"]),
        int(row["first_id"] + row["answers"] - 1),
        int(row["first"]),
        int(row["first"] + row["windows"] * row["slide"]),
        rows,
        last.chosen if same and last is not None else SelectionCache(),
    )
