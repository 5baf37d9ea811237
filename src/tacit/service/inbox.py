"""Tuples that were received by HTTP: on disk before they are acknowledged, until they are safe.

The inbox is a file beside a ledger in SQLite (so that neither waits for the other), and tables
beside a ledger in PostgreSQL. All requests that wait are written in one transaction. The run reads
the inbox as a source, and deletes what its checkpoint covers. What was just written is read from
memory.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, Literal, TypeAlias

from tacit.errors import LedgerError, LedgerLostError
from tacit.ledger.alchemy import sa
from tacit.ledger.database import Database, now

BodyFormat: TypeAlias = Literal["jsonl", "json", "cbor", "arrow"]
SUFFIX: Final = ".inbox"
_MOST_WAITING: Final = 256 << 20
"""Bytes that may wait for the run; more are refused."""
_MOST_WRITTEN: Final = 32 << 20
"""About how many bytes are written in one transaction."""
_MOST_READ: Final = 256
_PAGE_SIZE: Final = 16 << 10
"""Bytes of a page in SQLite; large payloads take half the time of that with small pages."""
_CLOSE_SECONDS: Final = 60.0
"""Seconds in which what waits must be written at the end; the rest was not acknowledged."""
_MOST_REMEMBERED: Final = 64 << 20
"""How many bytes that are on disk stay in memory for the run."""

METADATA = sa.MetaData()
HEAD = sa.Table(
    "tacit_inbox",
    METADATA,
    sa.Column("one", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("number", sa.BigInteger, nullable=False),
)
"""One row: the number of the last request. Lock it before you write."""
RECEIVED = sa.Table(
    "tacit_received",
    METADATA,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("stream", sa.Text, nullable=False),
    sa.Column("coding", sa.Text, nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("received", sa.BigInteger, nullable=False),
    sa.Column("payload", sa.LargeBinary, nullable=False),
    sa.Index("tacit_received_of_stream", "stream", "number", "size"),
)
"""Requests that are not safe yet."""
PRODUCERS = sa.Table(
    "tacit_producers",
    METADATA,
    sa.Column("stream", sa.Text, primary_key=True),
    sa.Column("producer", sa.Text, primary_key=True),
    sa.Column("sequence", sa.BigInteger, nullable=False),
    sa.Column("digest", sa.LargeBinary, nullable=False),
)
"""The last sequence number of each producer, and the hash of its payload."""


class InboxFullError(LedgerError):
    """Too much waits for the run; the sender should try again later."""


class SequenceError(LedgerError):
    """A sequence number that does not follow the last one, or comes with other content."""

    def __init__(self, message: str, expected: int) -> None:
        self.expected = expected
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class IngestRequest:
    """What one request brought."""

    stream: str
    producer: str
    coding: BodyFormat
    payload: bytes
    sequence: int | None = None
    """Counted by the producer; None if it does not count."""


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """A request that waits to be read."""

    number: int
    coding: BodyFormat
    payload: bytes


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
        place = ledger if "://" in ledger else ledger + SUFFIX
        self._database = Database(place, page_size=_PAGE_SIZE)
        self._most_waiting = most_waiting
        self._changed = threading.Condition()
        self._stored = threading.Condition()
        self._recent: dict[str, RecentRequests] = {}
        self._remembered = 0
        self._pending: list[tuple[IngestRequest, Future[bool]]] = []
        self._closing = False
        with self._database.writing() as connection:
            METADATA.create_all(connection, checkfirst=True)
            number = connection.execute(sa.select(HEAD.c.number)).scalar()
            if number is None:
                connection.execute(HEAD.insert().values(one=1, number=0))
            self._last = number or 0
            total = sa.select(sa.func.coalesce(sa.func.sum(RECEIVED.c.size), 0))
            self._waiting = int(connection.execute(total).scalar() or 0)
        self._writer = threading.Thread(target=self._write, name="tacit-inbox", daemon=True)
        self._writer.start()

    @property
    def waiting(self) -> int:
        """How many bytes wait to be written or read."""
        return self._waiting

    def put(self, request: IngestRequest) -> Future[bool]:
        """Store a request; when the result is there, it is on disk.

        The result is whether it is new: false if the producer sent this number before.
        """
        size = len(request.payload)
        with self._changed:
            if self._waiting + size > self._most_waiting or self._closing:
                raise InboxFullError("too many tuples wait to be read; try again later")
            self._waiting += size
            result: Future[bool] = Future()
            self._pending.append((request, result))
            self._changed.notify()
        return result

    def wait(self, stream: str, after: int, seconds: float) -> bool:
        """Wait for a request to a stream after this number; return whether one is there in time.

        Those that another process stores are found by `read`.
        """

        def is_there() -> bool:
            found = self._recent.get(stream)
            return bool(found and found.requests and found.requests[-1].number > after)

        with self._stored:
            return self._stored.wait_for(is_there, seconds)

    def read(self, stream: str, after: int, most: int) -> list[StoredRequest]:
        """Read requests to a stream after this number: about `most` bytes, at least one."""
        return self._recall(stream, after, most) or self._read_stored(stream, after, most)

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

    def _remember(self, first: int, requests: Sequence[tuple[str, StoredRequest]]) -> None:
        """Keep what was stored after the number `first`; wake those that wait for it."""
        with self._stored:
            if first != self._last:  # another process stored some: they are on disk alone
                self._recent.clear()
                self._remembered = 0
            self._last = requests[-1][1].number
            for stream, request in requests:
                recent = self._recent.setdefault(stream, RecentRequests(first))
                recent.requests.append(request)
                self._remembered += len(request.payload)
            while self._remembered > _MOST_REMEMBERED:
                oldest = min(
                    (one for one in self._recent.values() if one.requests),
                    key=lambda one: one.requests[0].number,
                )
                self._remembered -= oldest.pop()
            self._stored.notify_all()

    def _read_stored(self, stream: str, after: int, most: int) -> list[StoredRequest]:
        mine = sa.and_(RECEIVED.c.stream == stream, RECEIVED.c.number > after)
        sizes = sa.select(RECEIVED.c.number, RECEIVED.c.size).where(mine)
        with self._database.reading() as connection:
            found = connection.execute(sizes.order_by(RECEIVED.c.number).limit(_MOST_READ)).all()
            last = _choose_last(found, most)
            if last is None:
                return []
            columns = RECEIVED.c["number", "coding", "payload"]
            query = sa.select(*columns).where(mine, RECEIVED.c.number <= last)
            rows = connection.execute(query.order_by(RECEIVED.c.number))
            return [StoredRequest(row.number, row.coding, bytes(row.payload)) for row in rows]

    def drop(self, stream: str, until: int) -> None:
        """Delete the requests to a stream up to this number: they are safe elsewhere."""
        mine = sa.and_(RECEIVED.c.stream == stream, RECEIVED.c.number <= until)
        with self._database.writing() as connection:
            total = sa.select(sa.func.coalesce(sa.func.sum(RECEIVED.c.size), 0)).where(mine)
            size = int(connection.execute(total).scalar() or 0)
            if size:
                connection.execute(RECEIVED.delete().where(mine))
        with self._changed:
            self._waiting -= size

    def close(self) -> None:
        """Write what waits, and close the database."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._writer.join(_CLOSE_SECONDS)
        self._database.close()

    def _write(self) -> None:
        """Write what waits, all of it in one transaction, until closed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._closing)
                if not self._pending:
                    return
                chosen, size = 0, 0
                while chosen < len(self._pending) and size < _MOST_WRITTEN:
                    size += len(self._pending[chosen][0].payload)
                    chosen += 1
                taken, self._pending = self._pending[:chosen], self._pending[chosen:]
            self._store(taken)

    def _store(self, taken: Sequence[tuple[IngestRequest, Future[bool]]]) -> None:
        try:
            results = self._insert([request for request, _ in taken])
        except Exception as error:
            self._release(len(request.payload) for request, _ in taken)
            for _, future in taken:
                future.set_exception(error)
            return
        for (request, future), result in zip(taken, results, strict=True):
            if result is not True:
                self._release([len(request.payload)])
            if isinstance(result, bool):
                future.set_result(result)
            else:
                future.set_exception(result)

    def _release(self, sizes: Any) -> None:
        with self._changed:
            self._waiting -= sum(sizes)

    def _insert(self, requests: Sequence[IngestRequest]) -> list[bool | SequenceError]:
        """Insert new requests; return for each whether it is new, or what is wrong with it."""
        results: list[bool | SequenceError] = []
        rows: list[dict[str, Any]] = []
        stored: list[tuple[str, StoredRequest]] = []
        known: dict[tuple[str, str], tuple[int, bytes]] = {}
        with self._database.writing() as connection:
            first = connection.execute(sa.select(HEAD.c.number).with_for_update()).scalar_one()
            number = first
            for request in requests:
                result = _check_sequence(connection, request, known)
                results.append(result)
                if result is True:
                    number += 1
                    rows.append(_to_row(number, request))
                    one = StoredRequest(number, request.coding, request.payload)
                    stored.append((request.stream, one))
            if rows:
                connection.execute(RECEIVED.insert(), rows)
                connection.execute(HEAD.update().values(number=number))
            for (stream, producer), (sequence, digest) in known.items():
                _write_sequence(connection, stream, producer, sequence, digest)
        if stored:
            self._remember(first, stored)
        return results


def _choose_last(found: Sequence[Any], most: int) -> int | None:
    size, last = 0, None
    for number, length in found:
        if last is not None and size + length > most:
            break
        size, last = size + length, number
    return last


def _check_sequence(
    connection: sa.Connection,
    request: IngestRequest,
    known: dict[tuple[str, str], tuple[int, bytes]],
) -> bool | SequenceError:
    """Return whether a request is new; `known` has the last numbers of this transaction."""
    if request.sequence is None:
        return True
    key = request.stream, request.producer
    last = known.get(key) or _read_sequence(connection, *key)
    digest = sha256(request.payload).digest()
    if last is None or request.sequence == last[0] + 1:
        known[key] = request.sequence, digest
        return True
    if request.sequence > last[0]:
        return SequenceError(
            f"expected the sequence number {last[0] + 1}; got {request.sequence}. Send what is"
            " missing first",
            last[0] + 1,
        )
    if request.sequence == last[0] and digest != last[1]:
        return SequenceError(
            f"the sequence number {last[0]} was sent before with other content; number each"
            " request once",
            last[0] + 1,
        )
    return False


def _read_sequence(
    connection: sa.Connection, stream: str, producer: str
) -> tuple[int, bytes] | None:
    mine = sa.and_(PRODUCERS.c.stream == stream, PRODUCERS.c.producer == producer)
    row = connection.execute(sa.select(PRODUCERS).where(mine)).one_or_none()
    return None if row is None else (row.sequence, bytes(row.digest))


def _write_sequence(
    connection: sa.Connection, stream: str, producer: str, sequence: int, digest: bytes
) -> None:
    mine = sa.and_(PRODUCERS.c.stream == stream, PRODUCERS.c.producer == producer)
    values = {"sequence": sequence, "digest": digest}
    if connection.execute(PRODUCERS.update().where(mine).values(values)).rowcount == 0:
        connection.execute(PRODUCERS.insert().values(stream=stream, producer=producer, **values))


def _to_row(number: int, request: IngestRequest) -> dict[str, Any]:
    return {
        "number": number,
        "stream": request.stream,
        "coding": request.coding,
        "size": len(request.payload),
        "received": now(),
        "payload": request.payload,
    }


def drop_quietly(inbox: Inbox, stream: str, until: int) -> None:
    """Delete requests; if the database does not answer, the next call deletes them too."""
    with suppress(LedgerLostError):
        inbox.drop(stream, until)


def iterate_codings(
    requests: Sequence[StoredRequest],
) -> Iterator[tuple[BodyFormat, list[StoredRequest]]]:
    """Group consecutive requests of the same coding."""
    group: list[StoredRequest] = []
    for request in requests:
        if group and group[-1].coding != request.coding:
            yield group[0].coding, group
            group = []
        group.append(request)
    if group:
        yield group[0].coding, group
