"""A broker for tests that speaks Kafka's protocol and keeps its rules for transactions.

A real server takes long to start, and the mock broker of the client library knows neither fencing
nor aborted transactions nor offsets in transactions. This one knows them: one node, everything in
memory, the oldest versions of the protocol that hold what is needed.
`python -m tests.connectors.broker [user:password]` prints its address.
"""

# ruff: noqa: D102 - what requests mean is said in Kafka's protocol
from __future__ import annotations

import contextlib
import socketserver
import struct
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

PARTITIONS: Final = 3
_VERSIONS: Final = {
    0: 3,  # Produce
    1: 4,  # Fetch
    2: 2,  # ListOffsets
    3: 2,  # Metadata
    8: 7,  # OffsetCommit
    9: 5,  # OffsetFetch
    10: 1,  # FindCoordinator
    11: 5,  # JoinGroup
    12: 3,  # Heartbeat
    13: 1,  # LeaveGroup
    14: 3,  # SyncGroup
    17: 1,  # SaslHandshake
    18: 0,  # ApiVersions
    22: 1,  # InitProducerId
    24: 0,  # AddPartitionsToTxn
    25: 0,  # AddOffsetsToTxn
    26: 1,  # EndTxn
    28: 0,  # TxnOffsetCommit
    36: 0,  # SaslAuthenticate
}
UNKNOWN_MEMBER, REBALANCING, UNSUPPORTED, OLD_EPOCH, BAD_STATE, DENIED, REPLACED = (
    25,
    27,
    35,
    47,
    48,
    58,
    82,
)
PRODUCER_FENCED: Final = 90


class Reader:
    """Takes a request apart."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, kind: str) -> Any:
        (value,) = struct.unpack_from(f">{kind}", self._data, self._at)
        self._at += struct.calcsize(kind)
        return value

    def text(self) -> str | None:
        length = self.number("h")
        return None if length < 0 else self._raw(length).decode()

    def octets(self) -> bytes | None:
        length = self.number("i")
        return None if length < 0 else self._raw(length)

    def many(self, each: Callable[[], Any]) -> list[Any] | None:
        count = self.number("i")
        return None if count < 0 else [each() for _ in range(count)]

    def topics(self, each: Callable[[], Any]) -> dict[str, list[Any]]:
        """Topics with their partitions."""
        pairs = self.many(lambda: (self.text(), self.many(each)))
        return dict(pairs or [])

    def _raw(self, length: int) -> bytes:
        self._at += length
        return self._data[self._at - length : self._at]


def text(value: str | None) -> bytes:
    if value is None:
        return struct.pack(">h", -1)
    return struct.pack(">h", len(value.encode())) + value.encode()


def octets(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def many(parts: list[bytes]) -> bytes:
    return struct.pack(">i", len(parts)) + b"".join(parts)


def topics(found: dict[str, list[bytes]]) -> bytes:
    return many([text(name) + many(parts) for name, parts in found.items()])


@dataclass
class Log:
    """One partition."""

    batches: list[tuple[int, int, bytes]] = field(default_factory=list)
    """First and last offset of each batch, and its bytes."""
    end: int = 0
    open: dict[int, int] = field(default_factory=dict)
    """Where the unfinished transaction of each producer begins."""
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """Producer, first offset and last offset of each transaction that was given up."""
    sequences: dict[tuple[int, int, int], int] = field(default_factory=dict)

    @property
    def stable(self) -> int:
        return min([self.end, *self.open.values()])

    def append(self, records: bytes) -> int:
        """Add a batch as it came, and give its first offset."""
        delta, producer, epoch, sequence = _header(records)
        known = (producer, epoch, sequence)
        if producer >= 0 and sequence >= 0 and known in self.sequences:
            return self.sequences[known]  # sent again, since the answer was lost
        first = self.end
        self.batches.append((first, first + delta, struct.pack(">q", first) + records[8:]))
        self.end = first + delta + 1
        self.sequences[known] = first
        return first

    def conclude(self, producer: int, epoch: int, commit: bool) -> None:
        """Mark the end of a transaction."""
        first = self.open.pop(producer, None)
        if first is not None and not commit:
            self.aborted.append((producer, first, self.end))
        self.append(_marker(producer, epoch, commit))


@dataclass
class Transaction:
    """What is known under a transactional id."""

    producer: int
    epoch: int = 0
    partitions: set[tuple[str, int]] = field(default_factory=set)
    offsets: dict[str, dict[tuple[str, int], tuple[int, str | None]]] = field(default_factory=dict)


@dataclass
class Member:
    """Who takes part in a group."""

    instance: str | None
    metadata: bytes
    heard: float
    patience: float
    generation: int = 0


@dataclass
class Group:
    """A consumer group."""

    generation: int = 0
    protocol: str = ""
    members: dict[str, Member] = field(default_factory=dict)
    joining: set[str] = field(default_factory=set)
    assignments: dict[str, bytes] = field(default_factory=dict)
    replaced: set[str] = field(default_factory=set)
    offsets: dict[tuple[str, int], tuple[int, str | None]] = field(default_factory=dict)


class Broker:
    """All that the broker knows; requests are answered one at a time, but for those that wait."""

    def __init__(self, login: str | None) -> None:
        self.login = login
        self.port = 0
        self.changed = threading.Condition()
        self.logs: dict[str, list[Log]] = {}
        self.transactions: dict[str, Transaction] = {}
        self.groups: dict[str, Group] = defaultdict(Group)
        self.producers = 1000

    def answer(self, api: int, request: Reader) -> bytes:
        """The response to a request."""
        handler = {
            0: self.produce,
            1: self.fetch,
            2: self.list_offsets,
            3: self.metadata,
            8: self.commit_offsets,
            9: self.fetch_offsets,
            10: self.find_coordinator,
            11: self.join,
            12: self.heartbeat,
            13: self.leave,
            14: self.synchronise,
            22: self.begin_producer,
            24: self.add_partitions,
            25: self.add_group,
            26: self.end_transaction,
            28: self.commit_in_transaction,
        }[api]
        with self.changed:
            return handler(request)

    def log(self, topic: str, number: int) -> Log:
        return self.logs.setdefault(topic, [Log() for _ in range(PARTITIONS)])[number]

    def metadata(self, request: Reader) -> bytes:
        asked = request.many(request.text)
        for name in asked or []:
            self.log(name, 0)
        names = list(self.logs) if asked is None else asked
        node = struct.pack(">i", 1)
        parts = [
            struct.pack(">hii", 0, number, 1) + many([node]) * 2 for number in range(PARTITIONS)
        ]
        return (
            many([node + text("127.0.0.1") + struct.pack(">i", self.port) + text(None)])
            + text("tests")
            + node
            + many([struct.pack(">h", 0) + text(name) + b"\0" + many(parts) for name in names])
        )

    def find_coordinator(self, request: Reader) -> bytes:
        request.text()
        here = text(None) + struct.pack(">i", 1) + text("127.0.0.1")
        return struct.pack(">ih", 0, 0) + here + struct.pack(">i", self.port)

    def produce(self, request: Reader) -> bytes:
        identity, _, _ = request.text(), request.number("h"), request.number("i")
        sent = request.topics(lambda: (request.number("i"), request.octets()))
        found: dict[str, list[bytes]] = {}
        for topic, parts in sent.items():
            for number, records in parts:
                error, first = self._append(identity, topic, number, records or b"")
                answer = struct.pack(">ihqq", number, error, first, -1)
                found.setdefault(topic, []).append(answer)
        self.changed.notify_all()
        return topics(found) + struct.pack(">i", 0)

    def _append(
        self, identity: str | None, topic: str, number: int, records: bytes
    ) -> tuple[int, int]:
        log = self.log(topic, number)
        if identity is None:
            return 0, log.append(records)
        _, producer, epoch, _ = _header(records)
        transaction = self.transactions[identity]
        if transaction.producer != producer or transaction.epoch != epoch:
            return OLD_EPOCH, -1
        if (topic, number) not in transaction.partitions:
            return BAD_STATE, -1
        log.open.setdefault(producer, log.end)
        return 0, log.append(records)

    def fetch(self, request: Reader) -> bytes:
        _, wait, _, most = (request.number("i") for _ in range(4))
        committed = request.number("b") == 1
        asked = request.topics(
            lambda: (request.number("i"), request.number("q"), request.number("i"))
        )
        deadline = time.monotonic() + wait / 1000
        while True:
            found: dict[str, list[bytes]] = {}
            size = 0
            for topic, parts in asked.items():
                for number, offset, share in parts:
                    log = self.log(topic, number)
                    records = _records(log, offset, min(share, most - size), committed)
                    size += len(records)
                    found.setdefault(topic, []).append(_fetched(log, number, offset, records))
            left = deadline - time.monotonic()
            if size or left <= 0:
                return struct.pack(">i", 0) + topics(found)
            self.changed.wait(left)

    def list_offsets(self, request: Reader) -> bytes:
        request.number("i")
        committed = request.number("b") == 1
        asked = request.topics(lambda: (request.number("i"), request.number("q")))
        found: dict[str, list[bytes]] = {}
        for topic, parts in asked.items():
            for number, stamp in parts:
                log = self.log(topic, number)
                end = log.stable if committed else log.end
                offset = 0 if stamp == -2 else end
                found.setdefault(topic, []).append(struct.pack(">ihqq", number, 0, -1, offset))
        return struct.pack(">i", 0) + topics(found)

    def begin_producer(self, request: Reader) -> bytes:
        identity = request.text()
        if identity is None:
            self.producers += 1
            return struct.pack(">ihqh", 0, 0, self.producers, 0)
        known = self.transactions.get(identity)
        if known is None:
            self.producers += 1
            known = self.transactions[identity] = Transaction(self.producers)
        else:
            self._conclude(known, commit=False)
            known.epoch += 1
        return struct.pack(">ihqh", 0, 0, known.producer, known.epoch)

    def _mine(self, request: Reader) -> tuple[Transaction, int]:
        """The transaction that a request is about, and what is wrong with who asks."""
        transaction = self.transactions[request.text() or ""]
        return transaction, self._fault(transaction, request)

    def _fault(self, transaction: Transaction, request: Reader) -> int:
        same = request.number("q") == transaction.producer
        return 0 if request.number("h") == transaction.epoch and same else PRODUCER_FENCED

    def add_partitions(self, request: Reader) -> bytes:
        transaction, error = self._mine(request)
        asked = request.topics(lambda: request.number("i"))
        if not error:
            transaction.partitions |= {(name, n) for name, parts in asked.items() for n in parts}
        return struct.pack(">i", 0) + topics(
            {name: [struct.pack(">ih", n, error) for n in parts] for name, parts in asked.items()}
        )

    def add_group(self, request: Reader) -> bytes:
        transaction, error = self._mine(request)
        if not error:
            transaction.offsets.setdefault(request.text() or "", {})
        return struct.pack(">ih", 0, error)

    def commit_in_transaction(self, request: Reader) -> bytes:
        transaction, group = self.transactions[request.text() or ""], request.text() or ""
        error = self._fault(transaction, request)
        sent = request.topics(lambda: (request.number("i"), request.number("q"), request.text()))
        for topic, parts in sent.items():
            for number, offset, metadata in parts if not error else ():
                transaction.offsets[group][topic, number] = offset, metadata
        return struct.pack(">i", 0) + topics(
            {
                name: [struct.pack(">ih", n, error) for n, *_ in parts]
                for name, parts in sent.items()
            }
        )

    def end_transaction(self, request: Reader) -> bytes:
        transaction, error = self._mine(request)
        if not error:
            self._conclude(transaction, commit=bool(request.number("b")))
            self.changed.notify_all()
        return struct.pack(">ih", 0, error)

    def _conclude(self, transaction: Transaction, *, commit: bool) -> None:
        for topic, number in transaction.partitions:
            self.log(topic, number).conclude(transaction.producer, transaction.epoch, commit)
        for group, offsets in transaction.offsets.items() if commit else ():
            self.groups[group].offsets |= offsets
        transaction.partitions, transaction.offsets = set(), {}

    def commit_offsets(self, request: Reader) -> bytes:
        group = self.groups[request.text() or ""]
        generation, member, _ = request.number("i"), request.text(), request.text()
        sent = request.topics(
            lambda: (
                request.number("i"),
                request.number("q"),
                request.number("i"),
                request.text(),
            )
        )
        error = 0 if not group.members else self._check_member(group, member, generation)
        for topic, parts in sent.items():
            for number, offset, _, metadata in parts if not error else ():
                group.offsets[topic, number] = offset, metadata
        return struct.pack(">i", 0) + topics(
            {
                name: [struct.pack(">ih", n, error) for n, *_ in parts]
                for name, parts in sent.items()
            }
        )

    def fetch_offsets(self, request: Reader) -> bytes:
        group = self.groups[request.text() or ""]
        asked = request.topics(lambda: request.number("i"))
        found: dict[str, list[bytes]] = {}
        for topic, parts in asked.items():
            for number in parts:
                offset, metadata = group.offsets.get((topic, number), (-1, ""))
                place = struct.pack(">iqi", number, offset, -1) + text(metadata)
                found.setdefault(topic, []).append(place + struct.pack(">h", 0))
        return struct.pack(">i", 0) + topics(found) + struct.pack(">h", 0)

    def _check_member(self, group: Group, member: str | None, generation: int) -> int:
        if member in group.replaced:
            return REPLACED
        return 0 if member in group.members and generation == group.generation else UNKNOWN_MEMBER

    def join(self, request: Reader) -> bytes:
        group = self.groups[request.text() or ""]
        patience, _ = request.number("i") / 1000, request.number("i")
        member, instance = request.text() or "", request.text()
        request.text()
        protocols = request.many(lambda: (request.text(), request.octets())) or []
        if member in group.replaced:
            return struct.pack(">ihi", 0, REPLACED, -1) + text("") * 3 + many([])
        if not member:
            member = f"member-{time.monotonic_ns()}"
            for old in [
                m for m, known in group.members.items() if instance and known.instance == instance
            ]:
                del group.members[old]
                group.replaced.add(old)
        group.protocol, metadata = protocols[0]
        group.members[member] = Member(instance, metadata, time.monotonic(), patience)
        group.joining.add(member)
        self._all_joined(group)
        members = [
            text(name) + text(known.instance) + octets(known.metadata)
            for name, known in group.members.items()
        ]
        leader = next(iter(group.members))
        return (
            struct.pack(">ihi", 0, 0, group.generation)
            + text(group.protocol)
            + text(leader)
            + text(member)
            + many(members if member == leader else [])
        )

    def _all_joined(self, group: Group) -> None:
        """Wait until every member that is alive has joined: then a generation begins."""
        generation = group.generation
        self.changed.notify_all()
        while group.generation == generation:
            now = time.monotonic()
            for name, known in list(group.members.items()):
                if name not in group.joining and now - known.heard > known.patience:
                    del group.members[name]
            if group.joining >= set(group.members):
                group.generation += 1
                group.joining, group.assignments = set(), {}
                self.changed.notify_all()
                return
            self.changed.wait(0.1)

    def synchronise(self, request: Reader) -> bytes:
        group, generation = self.groups[request.text() or ""], request.number("i")
        member, _ = request.text() or "", request.text()
        given = request.many(lambda: (request.text(), request.octets())) or []
        if given:
            group.assignments = dict(given)
            self.changed.notify_all()
        while not group.assignments and group.generation == generation and not group.joining:
            self.changed.wait(0.1)
        error = self._check_member(group, member, generation) or (
            REBALANCING if group.joining else 0
        )
        return struct.pack(">ih", 0, error) + octets(group.assignments.get(member, b""))

    def heartbeat(self, request: Reader) -> bytes:
        group, generation = self.groups[request.text() or ""], request.number("i")
        member = request.text() or ""
        error = self._check_member(group, member, generation) or (
            REBALANCING if group.joining else 0
        )
        if member in group.members:
            group.members[member].heard = time.monotonic()
        return struct.pack(">ih", 0, error)

    def leave(self, request: Reader) -> bytes:
        group, member = self.groups[request.text() or ""], request.text() or ""
        group.members.pop(member, None)
        return struct.pack(">ih", 0, 0)


def _header(records: bytes) -> tuple[int, int, int, int]:
    """Last offset from the first, producer, epoch and sequence of a batch."""
    (delta,) = struct.unpack_from(">i", records, 23)
    producer, epoch, sequence = struct.unpack_from(">qhi", records, 43)
    return delta, producer, epoch, sequence


def _marker(producer: int, epoch: int, commit: bool) -> bytes:
    """A batch that says how a transaction ended."""
    key, value = struct.pack(">hh", 0, commit), struct.pack(">hi", 0, 0)
    record = bytes([0, 0, 0, len(key) * 2]) + key + bytes([len(value) * 2]) + value + b"\0"
    records = bytes([len(record) * 2]) + record
    now = int(time.time() * 1000)
    body = struct.pack(">ibIhiqqqhii", 0, 2, 0, 0x30, 0, now, now, producer, epoch, -1, 1)
    return struct.pack(">qi", 0, len(body) + len(records)) + body + records


def _records(log: Log, offset: int, most: int, committed: bool) -> bytes:
    end = log.stable if committed else log.end
    found = b""
    for first, last, records in log.batches:
        if last >= offset and first < end:
            if found and len(found) + len(records) > most:
                break
            found += records
    return found


def _fetched(log: Log, number: int, offset: int, records: bytes) -> bytes:
    aborted = [
        struct.pack(">qq", producer, first)
        for producer, first, last in log.aborted
        if last >= offset
    ]
    error = 1 if offset > log.end else 0
    place = struct.pack(">ihqq", number, error, log.end, log.stable)
    return place + many(aborted) + octets(records)


class Connection(socketserver.BaseRequestHandler):
    """A client; its requests are answered in order."""

    broker: Broker

    def handle(self) -> None:
        trusted = self.broker.login is None
        with contextlib.suppress(ConnectionError), self.request.makefile("rb") as stream:
            while len(size := stream.read(4)) == 4:
                request = Reader(stream.read(*struct.unpack(">i", size)))
                api, version, number = request.number("h"), request.number("h"), request.number("i")
                request.text()
                if api == 18:
                    answer = _versions(UNSUPPORTED if version else 0)
                elif api == 17:
                    answer = struct.pack(">h", 0) + many([text("PLAIN")])
                elif api == 36:
                    _, user, password = (request.octets() or b"").decode().split("\0")
                    trusted = f"{user}:{password}" == self.broker.login
                    error = 0 if trusted else DENIED
                    answer = struct.pack(">h", error) + text("no" if error else None) + octets(b"")
                elif trusted:
                    answer = self.broker.answer(api, request)
                else:
                    return
                with contextlib.suppress(ConnectionError):  # who asked may be gone
                    self.request.sendall(struct.pack(">ii", len(answer) + 4, number) + answer)


def _versions(error: int) -> bytes:
    parts = [struct.pack(">hhh", api, version, version) for api, version in _VERSIONS.items()]
    return struct.pack(">h", error) + many(parts)


class Server(socketserver.ThreadingTCPServer):
    """Listens on a port of its own."""

    daemon_threads = True
    allow_reuse_address = True


def main() -> None:
    """Serve until standard input is closed."""
    broker = Broker(sys.argv[1] if len(sys.argv) > 1 else None)
    with Server(("127.0.0.1", 0), type("_", (Connection,), {"broker": broker})) as server:
        broker.port = server.server_address[1]
        print(f"127.0.0.1:{broker.port}", flush=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        sys.stdin.read()


if __name__ == "__main__":
    main()
