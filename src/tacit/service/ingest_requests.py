"""Requests with tuples, and the rule for the sequence numbers of their producers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from tacit.errors import LedgerError

BodyFormat: TypeAlias = Literal["jsonl", "json", "cbor", "arrow"]
Body: TypeAlias = bytes | memoryview
"""Nobody changes it."""
LARGEST_BODY: Final = 32 << 20
"""The largest body in bytes."""
REQUEST_BYTES: Final = 256
"""About how many bytes a request takes beside its payload."""


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
    payload: Body
    sequence: int | None = None
    """Counted by the producer; None if it does not count."""
    table: pa.Table | None = None
    """The tuples, if the payload is an Arrow stream: without a copy, so that it is read once."""


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """A request that waits to be read."""

    number: int
    stream: str
    coding: BodyFormat
    payload: Body
    table: pa.Table | None = None
    """As in `IngestRequest`; None if it was read from disk."""


class LastSequence(NamedTuple):
    """The last sequence number of a producer, and the hash of what came with it."""

    number: int
    digest: bytes


@dataclass(frozen=True)
class Insertion:
    """What became of requests that were to be stored."""

    before: int
    """The number of the last request before them."""
    results: Sequence[bool | SequenceError]
    """For each whether it is new, or what is wrong with it."""
    stored: Sequence[StoredRequest]


class RequestStore(Protocol):
    """Where requests are until the run's checkpoint covers them. Any thread may use it."""

    @property
    def last(self) -> int:
        """The number of the last request; 0 if there was none."""

    @property
    def size(self) -> int:
        """About how many bytes the stored requests take."""

    def insert(self, requests: Sequence[IngestRequest]) -> Insertion:
        """Store requests; they are on disk when this returns."""

    def read(self, stream: str, after: int, most: int) -> list[StoredRequest]:
        """Read requests to a stream after this number: about `most` bytes, at least one."""

    def drop(self, stream: str, until: int) -> int:
        """Delete the requests to a stream up to this number; return about what they took."""

    def close(self) -> None:
        """Close it."""


def weigh(payload: int) -> int:
    """Return about how many bytes a request with a payload of this size takes."""
    return payload + REQUEST_BYTES


def check_sequence(
    request: IngestRequest, last: LastSequence | None
) -> LastSequence | SequenceError | None:
    """Return the new last number of a request's producer; None if the request came before.

    The request has a sequence number.
    """
    assert request.sequence is not None
    digest = sha256(request.payload).digest()
    if last is None or request.sequence == last.number + 1:
        return LastSequence(request.sequence, digest)
    if request.sequence > last.number:
        return SequenceError(
            f"expected the sequence number {last.number + 1}; got {request.sequence}. Send what is"
            " missing first",
            last.number + 1,
        )
    if request.sequence == last.number and digest != last.digest:
        return SequenceError(
            f"the sequence number {last.number} was sent before with other content; number each"
            " request once",
            last.number + 1,
        )
    return None


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
