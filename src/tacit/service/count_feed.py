"""Released counts of one run, for pages, streams, downloads and the console.

Which rows there are follows the public schedule: every window, count query and group has one. A
reader's place is a window, not a release: how many windows a release has may depend on when tuples
arrive.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tacit.answers.codec import unpack_counts
from tacit.answers.counts import count_schema
from tacit.ledger.alchemy import sa
from tacit.ledger.ledger import Ledger
from tacit.ledger.tables import BODIES, RELEASES
from tacit.service.coded_rows import CodedRows, estimate_size
from tacit.service.feed import check_body, next_release
from tacit.service.recent_values import RecentValues

Starts = NDArray[np.int64]
"""When windows start, in microseconds since 1970."""
EARLIEST: Final = -(2**62)
"""A place before every window."""
_CODED: Final = ("consumer", "query", "group")
_MOST_BYTES: Final = 16 << 20
"""How much of unpacked counts stays in memory."""


@dataclass(frozen=True, slots=True)
class CountSelection:
    """Which counts a reader gets; None selects all."""

    consumer: str | None = None
    queries: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None
    since: int | None = None
    """Select windows that start at this time or later, in microseconds since 1970."""
    until: int | None = None
    """Select windows that start before this time."""

    def select(self, table: pa.Table) -> pa.Table:
        """Return the selected rows."""
        names = {
            "consumer": None if self.consumer is None else (self.consumer,),
            "query": self.queries,
            "group": self.groups,
        }
        mask = self.includes(np.asarray(table["window_start"].cast(pa.int64())))
        for column, wanted in names.items():
            if wanted is not None:
                known = table[column].cast(pa.string())
                mask &= np.asarray(pc.is_in(known, value_set=pa.array(wanted, pa.string())))
        return table.filter(pa.array(mask))

    def includes(self, starts: Starts) -> NDArray[np.bool_]:
        """Return which windows are selected."""
        mask = np.ones(len(starts), np.bool_)
        if self.since is not None:
            mask &= starts >= self.since
        if self.until is not None:
            mask &= starts < self.until
        return mask

    def conditions(self) -> list[sa.ColumnElement[bool]]:
        """Return the conditions for releases that have windows in this time."""
        end = RELEASES.c.first + RELEASES.c.windows * RELEASES.c.slide
        found: list[sa.ColumnElement[bool]] = []
        if self.since is not None:
            found.append(end > self.since)
        if self.until is not None:
            found.append(RELEASES.c.first < self.until)
        return found


@dataclass(frozen=True, slots=True)
class CountedWindow:
    """The counts of a window, ready to be streamed."""

    start: int
    rows: CodedRows

    def format_event(self, selection: CountSelection) -> bytes:
        """Format the selected counts as a server-sent event; nothing if there are none."""
        if not selection.includes(np.array([self.start]))[0]:
            return b""
        consumers = None if selection.consumer is None else (selection.consumer,)
        rows = self.rows.choose(np.arange(self.rows.table.num_rows), "consumer", consumers)
        rows = self.rows.choose(rows, "query", selection.queries)
        rows = self.rows.choose(rows, "group", selection.groups)
        return self.rows.format_event("counts", self.start, rows)


class CountFeed:
    """Reads the released counts of a run from the ledger; the last ones stay in memory.

    A reader's place is the start of the last window that it has.
    """

    def __init__(self, ledger: Ledger, run: str) -> None:
        self._ledger = ledger
        self._run = run
        self._lock = threading.Lock()
        self._recent = RecentValues[pa.Table](_MOST_BYTES)
        self._windows: list[CountedWindow] = []
        """The last windows of releases that were announced, without a gap."""
        self._size = 0
        """About how many bytes they take."""
        self._follows: int | None = None
        """No window is between this one and the first of them."""
        self._latest: int | None = None
        """The last window that was announced."""
        self._streams = 0
        self.consumers: dict[str, str] = {}
        """The consumer of each count query in the releases that were read so far."""

    def read(self, selection: CountSelection, number: int = 0) -> Iterator[tuple[Starts, pa.Table]]:
        """Yield the selected counts, with the starts of the windows that they may be in.

        There is one table for each release with such windows, from a number on. Tables may be
        empty.
        """
        conditions = selection.conditions()
        while True:
            row = next_release(self._ledger, self._run, number, *conditions, body=False)
            if row is None:
                return
            number = int(row["number"]) + 1
            starts = row["first"] + row["slide"] * np.arange(row["windows"])
            chosen = starts[selection.includes(starts)]
            table = self._unpack(number - 1)
            if table is not None and len(chosen):
                yield chosen, selection.select(table)

    def read_last(self, selection: CountSelection, windows: int) -> pa.Table:
        """Return the selected counts of the last windows."""
        columns = RELEASES.c["number", "first", "windows", "slide"]
        stored = RELEASES.join(BODIES, BODIES.c.release == RELEASES.c.number)
        query = sa.select(*columns).select_from(stored).where(RELEASES.c.run == self._run)
        query = query.order_by(RELEASES.c.number.desc()).limit(windows)
        with self._ledger.database.reading() as connection:
            rows = connection.execute(query).all()
        if not rows:
            return count_schema().empty_table()
        starts = [row.first + row.slide * np.arange(row.windows) for row in reversed(rows)]
        since = int(np.concatenate(starts)[-windows:][0])
        found = self.read(replace(selection, since=since), rows[-1].number)
        tables = [table for _, table in found]
        return pa.concat_tables([count_schema().empty_table(), *tables], promote_options="default")

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """Keep windows as they come, for a reader that streams them."""
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1

    def announce(self) -> None:
        """Keep the windows that were released since the last call, formatted for all streams."""
        if not self._streams:
            with self._lock:  # start again when they are read
                self._windows.clear()
                self._size = 0
                self._latest = self._follows = None
            return
        begin = self._latest
        if begin is None:
            begin = self._follows = self.last_start()
            if begin is None:
                return
        found = [
            window
            for starts, table in self.read(CountSelection(since=begin + 1))
            for window in _cut(starts, table)
        ]
        for window in found:
            window.rows.lines  # noqa: B018 - in this thread, before all streams ask for it
        with self._lock:
            self._windows += found
            self._latest = found[-1].start if found else begin
            self._size += sum(one.rows.size for one in found)
            while self._windows and self._size > _MOST_BYTES:
                oldest = self._windows.pop(0)
                self._follows = oldest.start
                self._size -= oldest.rows.size

    def is_latest(self, after: int) -> bool:
        """Return whether no window that was announced begins after this time."""
        return self._latest is not None and self._latest <= after

    def recall_event(
        self, selection: CountSelection, after: int, _most: int
    ) -> tuple[int, bytes] | None:
        """Return the next window and its event, if it is in memory; the event may be empty."""
        with self._lock:
            if self._follows is None or after < self._follows:
                return None
            place = bisect_right(self._windows, after, key=lambda window: window.start)
            found = self._windows[place : place + 1]
        return (found[0].start, found[0].format_event(selection)) if found else None

    def read_event(
        self, selection: CountSelection, after: int, _most: int
    ) -> tuple[int, bytes] | None:
        """Return the last window of the next release and the events of all its windows after this
        time, from the ledger; None if there is no later release."""
        begin = replace(selection, since=max(after + 1, selection.since or after + 1))
        found = next(self.read(begin), None)
        if found is None:
            return None
        starts, table = found
        events = [window.format_event(selection) for window in _cut(starts, table)]
        return int(starts[-1]), b"".join(events)

    def last_start(self) -> int | None:
        """Return when the last released window starts; None if there is none."""
        last = RELEASES.c.first + (RELEASES.c.windows - 1) * RELEASES.c.slide
        query = sa.select(sa.func.max(last)).where(RELEASES.c.run == self._run)
        with self._ledger.database.reading() as connection:
            found: int | None = connection.execute(query).scalar()
        return found

    def _unpack(self, number: int) -> pa.Table | None:
        """Return the counts of a release; None if they were deleted."""
        with self._lock:
            found = self._recent.find(number)
        if found is not None:
            return found
        same = RELEASES.c.number == number
        row = next_release(self._ledger, self._run, number, same, body=True)
        if row is None:
            return None
        table, consumers = unpack_counts(check_body(row))
        with self._lock:
            self.consumers |= consumers
            self._recent.keep(number, table, estimate_size(table))
        return table


def _cut(starts: Starts, table: pa.Table) -> Iterator[CountedWindow]:
    """Cut counts into windows; also those without rows."""
    times = np.asarray(table["window_start"].cast(pa.int64()))
    for start in starts.tolist():
        rows = table.filter(pa.array(times == start))
        yield CountedWindow(start, CodedRows.of(rows, _CODED))
