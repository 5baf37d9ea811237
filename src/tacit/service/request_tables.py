"""Requests in tables of PostgreSQL, until the run's checkpoint covers them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tacit.ledger.alchemy import sa
from tacit.ledger.database import Database, now
from tacit.service.ingest_requests import (
    REQUEST_BYTES,
    IngestRequest,
    Insertion,
    LastSequence,
    SequenceError,
    StoredRequest,
    check_sequence,
)

_MOST_READ: Final = 256

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


class RequestTables:
    """A store of requests in a database that a ledger has too."""

    def __init__(self, place: str) -> None:
        self._database = Database(place)
        with self._database.writing() as connection:
            METADATA.create_all(connection, checkfirst=True)
            number = connection.execute(sa.select(HEAD.c.number)).scalar()
            if number is None:
                connection.execute(HEAD.insert().values(one=1, number=0))
            self.last = number or 0

    @property
    def size(self) -> int:
        """About how many bytes the stored requests take."""
        with self._database.reading() as connection:
            return int(connection.execute(_total()).scalar() or 0)

    def insert(self, requests: Sequence[IngestRequest]) -> Insertion:
        """Store requests in one transaction."""
        results: list[bool | SequenceError] = []
        stored: list[StoredRequest] = []
        known: dict[tuple[str, str], LastSequence] = {}
        with self._database.writing() as connection:
            before = connection.execute(sa.select(HEAD.c.number).with_for_update()).scalar_one()
            for request in requests:
                result = _check(connection, request, known)
                results.append(result)
                if result is True:
                    number = before + len(stored) + 1
                    one = StoredRequest(
                        number, request.stream, request.coding, request.payload, request.table
                    )
                    stored.append(one)
            if stored:
                connection.execute(RECEIVED.insert(), [_to_row(one) for one in stored])
                connection.execute(HEAD.update().values(number=stored[-1].number))
            for (stream, producer), last in known.items():
                _write_sequence(connection, stream, producer, last)
        if stored:
            self.last = stored[-1].number
        return Insertion(before, results, stored)

    def read(self, stream: str, after: int, most: int) -> list[StoredRequest]:
        """Read requests to a stream after this number: about `most` bytes, at least one."""
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
            return [
                StoredRequest(row.number, stream, row.coding, bytes(row.payload)) for row in rows
            ]

    def drop(self, stream: str, until: int) -> int:
        """Delete the requests to a stream up to this number; return about what they took."""
        mine = sa.and_(RECEIVED.c.stream == stream, RECEIVED.c.number <= until)
        with self._database.writing() as connection:
            size = int(connection.execute(_total().where(mine)).scalar() or 0)
            if size:
                connection.execute(RECEIVED.delete().where(mine))
        return size

    def close(self) -> None:
        """Close the database."""
        self._database.close()


def _total() -> Any:
    taken = sa.func.sum(RECEIVED.c.size + REQUEST_BYTES)
    return sa.select(sa.func.coalesce(taken, 0))


def _choose_last(found: Sequence[Any], most: int) -> int | None:
    size, last = 0, None
    for number, length in found:
        if last is not None and size + length > most:
            break
        size, last = size + length, number
    return last


def _check(
    connection: sa.Connection,
    request: IngestRequest,
    known: dict[tuple[str, str], LastSequence],
) -> bool | SequenceError:
    """Return whether a request is new; `known` has the last numbers of this transaction."""
    if request.sequence is None:
        return True
    key = request.stream, request.producer
    last = check_sequence(request, known.get(key) or _read_sequence(connection, *key))
    if isinstance(last, LastSequence):
        known[key] = last
        return True
    return False if last is None else last


def _read_sequence(connection: sa.Connection, stream: str, producer: str) -> LastSequence | None:
    mine = sa.and_(PRODUCERS.c.stream == stream, PRODUCERS.c.producer == producer)
    row = connection.execute(sa.select(PRODUCERS).where(mine)).one_or_none()
    return None if row is None else LastSequence(row.sequence, bytes(row.digest))


def _write_sequence(
    connection: sa.Connection, stream: str, producer: str, last: LastSequence
) -> None:
    mine = sa.and_(PRODUCERS.c.stream == stream, PRODUCERS.c.producer == producer)
    values = {"sequence": last.number, "digest": last.digest}
    if connection.execute(PRODUCERS.update().where(mine).values(values)).rowcount == 0:
        connection.execute(PRODUCERS.insert().values(stream=stream, producer=producer, **values))


def _to_row(request: StoredRequest) -> dict[str, Any]:
    return {
        "number": request.number,
        "stream": request.stream,
        "coding": request.coding,
        "size": len(request.payload),
        "received": now(),
        "payload": request.payload,
    }
