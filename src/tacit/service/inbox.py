"""Tuples that were received by HTTP: on disk before they are acknowledged, until they are safe.

They are in a folder beside a ledger in SQLite (so that neither waits for the other), and in tables
beside a ledger in PostgreSQL. All requests that wait are written together. The run reads the inbox
as a source. What its checkpoint covers is deleted by the thread that writes, so the run does not
wait for the disk. What was just written is read from memory.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from tacit.errors import LedgerLostError
from tacit.ledger.database import LOCK_TIMEOUT
from tacit.service.ingest_requests import (
    InboxFullError,
    IngestRequest,
    RequestStore,
    StoredRequest,
    weigh,
)
from tacit.service.request_log import RequestLog
from tacit.service.request_tables import RequestTables

SUFFIX: Final = ".inbox"
_MOST_WAITING: Final = 256 << 20
"""Bytes that may wait for the run; more are refused."""
_MOST_WRITTEN: Final = 2 << 20
"""About how many bytes are written together: senders of large requests take turns, so that some
send while those of others are written."""
_CLOSE_SECONDS: Final = 2.0 * LOCK_TIMEOUT
"""Seconds that the last write may take."""
_MOST_REMEMBERED: Final = 64 << 20
"""How many bytes that are on disk stay in memory for the run."""

Waiter: TypeAlias = "Future[bool] | asyncio.Future[bool]"
"""Who waits for a request to be stored: a thread, or a task of an event loop."""


@dataclass(slots=True)
class RecentRequests:
    """The last requests to a stream, in memory."""

    after: int
    """All stored requests with larger numbers are here."""
    requests: deque[StoredRequest] = field(default_factory=deque)

    def pop(self) -> int:
        """Forget the first one; return its size."""
        first = self.requests.popleft()
        self.after = first.number
        return len(first.payload)


class Inbox:
    """Requests on disk. It is safe to use from several threads."""

    def __init__(self, ledger: str, most_waiting: int = _MOST_WAITING) -> None:
        self._store: RequestStore = (
            RequestTables(ledger) if "://" in ledger else RequestLog(ledger + SUFFIX)
        )
        self._most_waiting = most_waiting
        self._changed = threading.Condition()
        self._stored = threading.Condition()
        self._recent: dict[str, RecentRequests] = {}
        self._remembered = 0
        self._pending: list[tuple[IngestRequest, Waiter]] = []
        self._safe: dict[str, int] = {}
        """The last request to each stream that is safe elsewhere and not deleted yet."""
        self._failure: Exception | None = None
        """Why requests could not be deleted."""
        self._closing = False
        self._last = self._store.last
        self._waiting = self._store.size
        self._writer = threading.Thread(target=self._write, name="tacit-inbox", daemon=True)
        self._writer.start()

    @property
    def waiting(self) -> int:
        """About how many bytes wait to be written or read."""
        return self._waiting

    def put(self, request: IngestRequest) -> Future[bool]:
        """Store a request; when the result is there, it is on disk.

        The result is whether it is new: false if the producer sent this number before.
        """
        result: Future[bool] = Future()
        result.set_running_or_notify_cancel()  # what is written cannot be taken back
        self._add(request, result)
        return result

    async def store(self, request: IngestRequest) -> bool:
        """Do what `put` does, and wait: the event loop wakes up once for all that is written."""
        result: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._add(request, result)
        return await result

    def _add(self, request: IngestRequest, result: Waiter) -> None:
        size = weigh(len(request.payload))
        with self._changed:
            if self._waiting + size > self._most_waiting or self._closing:
                raise InboxFullError("too many tuples wait to be read; try again later")
            self._waiting += size
            self._pending.append((request, result))
            self._changed.notify()

    def gather(self, stream: str, after: int, enough: int, seconds: float) -> None:
        """Wait so many seconds, or until `enough` bytes were stored here after this number."""

        def is_enough() -> bool:
            found = self._recent.get(stream)
            waiting = () if found is None else found.requests
            return sum(len(one.payload) for one in waiting if one.number > after) >= enough

        with self._stored:
            self._stored.wait_for(is_enough, seconds)

    def read(self, stream: str, after: int, most: int, seconds: float = 0.0) -> list[StoredRequest]:
        """Read requests to a stream after this number: about `most` bytes, at least one.

        If there is none, wait so many seconds for it. Those that another process stores are found
        when the time is over.
        """
        found = self._recall(stream, after, most)
        if not found and not self._remembers(stream, after):
            found = self._store.read(stream, after, most)
        if not found:
            self._wait(stream, after, seconds)
            found = self._recall(stream, after, most) or self._store.read(stream, after, most)
        return found

    def _wait(self, stream: str, after: int, seconds: float) -> None:
        """Wait for a request to a stream after this number that is stored here."""

        def is_there() -> bool:
            found = self._recent.get(stream)
            return bool(found and found.requests and found.requests[-1].number > after)

        with self._stored:
            self._stored.wait_for(is_there, seconds)

    def _remembers(self, stream: str, after: int) -> bool:
        """Return whether all requests after this number that were stored here are in memory."""
        with self._stored:
            recent = self._recent.get(stream)
            return recent is not None and after >= recent.after

    def _recall(self, stream: str, after: int, most: int) -> list[StoredRequest]:
        """Read from memory; return nothing if the next request may not be there."""
        with self._stored:
            recent = self._recent.get(stream)
            if recent is None or after < recent.after:
                return []
            while recent.requests and recent.requests[0].number <= after:
                self._remembered -= recent.pop()
            found: list[StoredRequest] = []
            size = 0
            for request in recent.requests:
                size += len(request.payload)
                if found and size > most:
                    break
                found.append(request)
            return found

    def _remember(self, before: int, requests: Sequence[StoredRequest]) -> None:
        """Keep what was stored after the number `before`; wake those that wait for it."""
        with self._stored:
            if before != self._last:  # another process stored some: they are on disk alone
                self._recent.clear()
                self._remembered = 0
            self._last = requests[-1].number
            for request in requests:
                recent = self._recent.setdefault(request.stream, RecentRequests(before))
                recent.requests.append(request)
                self._remembered += len(request.payload)
            while self._remembered > _MOST_REMEMBERED:
                oldest = min(
                    (one for one in self._recent.values() if one.requests),
                    key=lambda one: one.requests[0].number,
                )
                self._remembered -= oldest.pop()
            self._stored.notify_all()

    def drop(self, stream: str, until: int) -> None:
        """Delete the requests to a stream up to this number soon: they are safe elsewhere.

        If the store does not answer, they are deleted with the next ones.
        """
        with self._changed:
            if self._failure is not None:
                raise self._failure
            self._safe[stream] = until
            self._changed.notify()

    def close(self) -> None:
        """Write what waits, and close the store."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._writer.join(_CLOSE_SECONDS)
        self._store.close()

    def _write(self) -> None:
        """Write what waits, all of it together, and delete what is safe, until closed.

        Nobody waits for requests to be deleted, so that is done when none is to be written, or when
        half of the room is taken.
        """
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._safe or self._closing)
                if not (self._pending or self._safe):
                    return
                chosen, size = 0, 0
                while chosen < len(self._pending) and size < _MOST_WRITTEN:
                    size += len(self._pending[chosen][0].payload)
                    chosen += 1
                taken, self._pending = self._pending[:chosen], self._pending[chosen:]
                safe = {}
                if not taken or self._waiting > self._most_waiting // 2:
                    safe, self._safe = self._safe, {}
            if taken:
                self._insert(taken)
            self._delete(safe)

    def _insert(self, taken: Sequence[tuple[IngestRequest, Waiter]]) -> None:
        try:
            inserted = self._store.insert([request for request, _ in taken])
        except Exception as error:
            self._release(request for request, _ in taken)
            _complete([(waiter, error) for _, waiter in taken])
            return
        results = list(zip(taken, inserted.results, strict=True))
        self._release(request for (request, _), result in results if result is not True)
        _complete([(waiter, result) for (_, waiter), result in results])
        if inserted.stored:
            self._remember(inserted.before, inserted.stored)

    def _delete(self, safe: Mapping[str, int]) -> None:
        for stream, until in safe.items():
            try:
                size = self._store.drop(stream, until)
            except LedgerLostError:
                continue
            except Exception as error:  # for the next one who calls `drop`
                self._failure = error
                continue
            with self._changed:
                self._waiting -= size

    def _release(self, requests: Iterable[IngestRequest]) -> None:
        with self._changed:
            self._waiting -= sum(weigh(len(request.payload)) for request in requests)


def _complete(results: Sequence[tuple[Waiter, bool | Exception]]) -> None:
    """Hand results to those who wait for them."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Waiter, bool | Exception]]] = {}
    for waiter, result in results:
        if isinstance(waiter, Future):
            _set(waiter, result)
        else:
            by_loop.setdefault(waiter.get_loop(), []).append((waiter, result))
    for loop, own in by_loop.items():
        with suppress(RuntimeError):  # the server was stopped, and nobody waits
            loop.call_soon_threadsafe(_set_all, own)


def _set_all(results: Sequence[tuple[Waiter, bool | Exception]]) -> None:
    for waiter, result in results:
        if not waiter.done():  # a request that took too long is cancelled
            _set(waiter, result)


def _set(waiter: Waiter, result: bool | Exception) -> None:
    if isinstance(result, Exception):
        waiter.set_exception(result)
    else:
        waiter.set_result(result)
