"""Tuples by HTTP: every one is taken once, whatever happens in between."""

from __future__ import annotations

import asyncio
import io
import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import cbor2
import httpx
import pyarrow as pa
import pytest

import tacit
from tacit.errors import LedgerLostError
from tacit.service import arrow_streams
from tacit.service.arrow_streams import ArrowStreamError, read_arrow_stream
from tacit.service.inbox import Inbox
from tacit.service.ingest_requests import InboxFullError, IngestRequest, SequenceError, weigh
from tests.service.services import Running, join, running
from tests.services import Postgres

LINES = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
WHERE = "/v1/streams/s/tuples"
SUBJECTS = 5
SPEC = """
version: 1
streams: {s: {subject: who, time: at, columns: {who: text, at: integer, kind: text}}}
subjects: [t0, t1, t2, t3, t4]
windows: {size: 1 min}
events:
  c: {stream: s, where: "kind = 'c'"}
queries:
  - {name: once, consumer: city, pattern: c}
  - {name: twice, consumer: city, pattern: "SEQ(c, c)"}
"""


def rows(window: int, chance: random.Random) -> list[dict[str, Any]]:
    """At most one tuple for each subject in a window."""
    return [
        {"who": f"t{subject}", "at": 60 * window + subject, "kind": "c"}
        for subject in range(SUBJECTS)
        if chance.random() < 0.6
    ]


def lines(found: Sequence[dict[str, Any]]) -> bytes:
    """Tuples as JSON lines."""
    return b"".join(json.dumps(row).encode() + b"\n" for row in found)


def arrow(found: Sequence[dict[str, Any]], **options: Any) -> bytes:
    """Tuples as an Arrow stream."""
    return arrow_of(pa.Table.from_pylist(list(found)), **options)


def arrow_of(table: pa.Table, **options: Any) -> bytes:
    """A table as an Arrow stream."""
    text = io.BytesIO()
    with pa.ipc.new_stream(text, table.schema, **options) as writer:
        writer.write_table(table)
    return text.getvalue()


FORMATS: dict[str, Callable[[Sequence[dict[str, Any]]], bytes]] = {
    LINES: lines,
    "application/json": lambda found: json.dumps(list(found)).encode(),
    "application/cbor": lambda found: cbor2.dumps(list(found)),
    ARROW: arrow,
}


def post(client: httpx.Client, content: bytes, kind: str = LINES, **headers: str) -> httpx.Response:
    """Send tuples."""
    return client.post(WHERE, content=content, headers={"Content-Type": kind, **headers})


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Running]:
    """A service whose stream is read from HTTP."""
    with running(tmp_path, spec=SPEC) as service:
        yield service


def detected(ledger: str) -> dict[str, set[tuple[int, str]]]:
    """In which windows each query was detected, for whom."""
    with tacit.released(ledger) as found:
        frame = found.polars()
    starts = frame["window_start"].dt.epoch("s") // 60
    result: dict[str, set[tuple[int, str]]] = {"once": set(), "twice": set()}
    for start, subject, query, there in zip(
        starts, frame["subject"], frame["query"], frame["detected"], strict=True
    ):
        if there:
            result[query].add((start, subject))
    return result


def test_every_format_gives_the_same_answers(service: Running) -> None:
    chance = random.Random(1)
    sent = [rows(window, chance) for window in range(24)]
    with service.client("source", "sensor") as client:
        for window, part in enumerate(sent):
            kind = list(FORMATS)[window % 4]
            response = post(client, FORMATS[kind](part), kind)
            assert response.status_code == 200, response.text
            assert response.json() == {"stream": "s", "sequence": None, "duplicate": False}
        post(client, lines([{"who": "t0", "at": 60 * 24 + 1, "kind": "b"}]))
    service.wait(24 * SUBJECTS * 2)
    found = detected(service.service.options.ledger_place or "")
    assert found["once"] == {(row["at"] // 60, row["who"]) for part in sent for row in part}
    assert found["twice"] == set()


@pytest.mark.parametrize("kind", FORMATS)
def test_a_large_request_is_read_from_its_first_row_to_its_last(
    service: Running, kind: str
) -> None:
    """It comes in one buffer, and is stored once though it is sent twice."""
    many = [{"who": "t1", "at": 30, "kind": "x" * 20}] * 20_000
    first, last = ({"who": "t2", "at": at, "kind": "c"} for at in (1, 59))
    with service.client("source", "sensor") as client:
        for again in (False, True):
            sent = FORMATS[kind]([first, *many, last])
            assert len(sent) > 500_000
            response = post(client, sent, kind, **{"Tacit-Sequence": "0"})
            assert response.json()["duplicate"] == again
        post(client, lines([{"who": "t0", "at": 61, "kind": "b"}]))
    service.wait(SUBJECTS * 2)
    found = detected(service.service.options.ledger_place or "")
    assert found == {"once": {(0, "t2")}, "twice": {(0, "t2")}}


def test_a_request_that_is_repeated_is_stored_once(service: Running) -> None:
    one = [{"who": "t1", "at": 1, "kind": "c"}]
    with service.client("source", "sensor") as client:
        for number, content in enumerate([one, [{**one[0], "who": "t2"}]]):
            for again in range(3):
                response = post(client, lines(content), **{"Tacit-Sequence": str(number)})
                assert response.json()["duplicate"] == (again > 0)
        gap = post(client, lines(one), **{"Tacit-Sequence": "5"})
        assert (gap.status_code, gap.json()["expected"]) == (409, 2)
        other = post(client, lines(one), **{"Tacit-Sequence": "1"})
        assert other.status_code == 409
        both = {"Tacit-Sequence": "7", "Tacit-Producer": "another"}
        assert not post(client, lines([{"who": "t3", "at": 3, "kind": "c"}]), **both).json()[
            "duplicate"
        ]
        post(client, lines([{"who": "t0", "at": 61, "kind": "b"}]))
    service.wait(SUBJECTS * 2)
    found = detected(service.service.options.ledger_place or "")
    assert found == {"once": {(0, "t1"), (0, "t2"), (0, "t3")}, "twice": set()}


def test_what_is_unreadable_becomes_a_dead_letter_and_the_rest_is_taken(tmp_path: Path) -> None:
    letters = tmp_path / "letters.jsonl"
    with running(tmp_path, spec=SPEC, dead_letters=letters) as service:
        with service.client("source", "sensor") as client:
            good = lines([{"who": "t1", "at": 1, "kind": "c"}])
            assert post(client, b"nonsense\n" + good + b"17\n").status_code == 200
            assert post(client, b"\xff\xff", "application/cbor").status_code == 200
            post(client, lines([{"who": "t0", "at": 61, "kind": "b"}]))
        service.wait(SUBJECTS * 2)
        assert detected(service.service.options.ledger_place or "")["once"] == {(0, "t1")}
    assert len(letters.read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"", LINES, 422),
        (b"  \n", LINES, 422),
        (b"{}", "text/plain", 415),
        (b"{}", "", 415),
        (b"no arrow", ARROW, 422),
        (arrow([{"who": "t1", "at": 1, "kind": "c"}])[:-30], ARROW, 422),
        (
            arrow(
                [{"who": "t1", "at": 1, "kind": "c"}] * 100,
                options=pa.ipc.IpcWriteOptions(compression="zstd"),
            ),
            ARROW,
            422,
        ),
        (arrow_of(pa.table([["t1"], [1], [2]], ["who", "at", "at"])), ARROW, 422),
    ],
)
def test_what_cannot_be_taken_is_refused(
    service: Running, content: bytes, kind: str, status: int
) -> None:
    with service.client("source", "sensor") as client:
        response = post(client, content, kind)
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"


def test_streams_and_sizes_are_limited(service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.service.routes.ingest.LARGEST_BODY", 1000)
    with service.client("source", "sensor") as client:
        assert client.post("/v1/streams/nope/tuples").status_code == 404
        assert post(client, b"x" * 1001).status_code == 413
        chunks = client.post(WHERE, content=iter([b"x" * 600] * 2), headers={"Content-Type": LINES})
        assert chunks.status_code == 413
        packed = post(client, b"{}", LINES, **{"Content-Encoding": "gzip"})
        assert packed.status_code == 415
    with service.client("source", "other", streams=("elsewhere",)) as client:
        assert post(client, b"{}").status_code == 403


def test_a_body_that_does_not_come_is_given_up(
    service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tacit.service.routes.ingest.BODY_SECONDS", 0.2)

    def drip() -> Iterator[bytes]:
        for _ in range(20):
            yield b"{"
            time.sleep(0.1)

    with service.client("source", "sensor") as client:
        response = client.post(WHERE, content=drip(), headers={"Content-Type": LINES})
    assert response.status_code == 408


def test_a_full_inbox_refuses_and_takes_again_when_there_is_room(tmp_path: Path) -> None:
    inbox = Inbox(str(tmp_path / "ledger.db"), most_waiting=1400)
    try:
        body = IngestRequest("s", "p", "jsonl", b"x" * 600)
        assert inbox.put(body).result(10) is True
        with pytest.raises(InboxFullError):
            inbox.put(body)
        (stored,) = inbox.read("s", 0, 1000)
        inbox.drop("s", stored.number)
        deadline = time.monotonic() + 90
        while inbox.waiting:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert inbox.put(body).result(10) is True
        again = inbox.put(IngestRequest("s", "p", "jsonl", b"x", 3))
        assert again.result(10) is True
        repeated = inbox.put(IngestRequest("s", "p", "jsonl", b"x", 3))
        assert repeated.result(10) is False
        assert inbox.waiting == weigh(600) + weigh(1)
    finally:
        inbox.close()
    reopened = Inbox(str(tmp_path / "ledger.db"))
    assert reopened.waiting == weigh(600) + weigh(1)
    reopened.close()


def test_under_pressure_the_sender_is_told_when_to_come_back(service: Running) -> None:
    inbox = service.service.state.inbox
    assert inbox is not None
    inbox._most_waiting = 10
    with service.client("source", "sensor") as client:
        response = post(client, lines([{"who": "t1", "at": 1, "kind": "c"}]))
    assert response.status_code == 429
    assert response.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("error", "status"), [(LedgerLostError("gone"), 503), (OSError("secret"), 500)]
)
def test_an_inbox_that_fails_is_a_problem(
    service: Running, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    """The response has the form and the headers of all others, and does not quote the error."""

    async def fail(_: IngestRequest) -> NoReturn:
        raise error

    monkeypatch.setattr(service.service.state.inbox, "store", fail)
    with service.client("source", "sensor") as client:
        response = post(client, lines([{"who": "t1", "at": 1, "kind": "c"}]))
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["cache-control"] == "no-store"
    assert str(error) not in response.text


def test_many_senders_at_once_lose_nothing(tmp_path: Path, postgres: Postgres) -> None:
    ledger = postgres.database("service_ingest")
    with running(tmp_path, spec=SPEC, ledger=ledger) as service:

        def send(subject: int) -> None:
            with service.client("source", f"sensor {subject}") as client:
                for window in range(15):
                    found = [{"who": f"t{subject}", "at": 60 * window + subject, "kind": "c"}]
                    headers = {"Tacit-Sequence": str(window)}
                    assert post(client, lines(found), **headers).status_code == 200

        for subject in range(SUBJECTS):
            service.token("source", f"sensor {subject}")
        # The first tuples of all: one sender must not close windows that others still fill.
        inbox = service.service.state.inbox
        assert inbox is not None
        threads = [
            threading.Thread(target=send, args=(subject,), daemon=True)
            for subject in range(SUBJECTS)
        ]
        for thread in threads:
            thread.start()
        join(*threads)
        status = service.service.state.run
        assert status is not None
        deadline = time.monotonic() + 90
        while status.status.tuples < 15 * SUBJECTS:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert status.status.tuples == 15 * SUBJECTS


@pytest.mark.parametrize("damage", range(0, 400, 23))
def test_a_damaged_arrow_stream_is_refused_or_sound(damage: int) -> None:
    """Whatever a byte is changed to, checking ends with an error of ours, or the data is sound."""
    content = bytearray(arrow([{"who": f"t{n}", "at": n, "kind": "c"} for n in range(20)]))
    content[damage % len(content)] ^= 0xFF
    try:
        read_arrow_stream(bytes(content), 1 << 20)
    except (ArrowStreamError, pa.ArrowException, OSError, ValueError):
        return
    table = pa.ipc.open_stream(bytes(content)).read_all()
    table.validate(full=True)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_legacy_format": True},
        {"metadata_version": pa.ipc.MetadataVersion.V4},
    ],
)
def test_messages_of_an_arrow_stream_are_found_as_arrow_finds_them(options: dict[str, Any]) -> None:
    kinds = pa.array(["c", "d"] * 25).dictionary_encode()
    table = pa.table({"who": [f"t{n}" for n in range(50)], "kind": kinds})
    content = arrow_of(table, options=pa.ipc.IpcWriteOptions(**options))
    assert arrow_streams._find_messages(content) == arrow_streams._read_messages(content)
    assert read_arrow_stream(content, 1 << 20).equals(table)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_offsets_are_checked_before_anything_reads_them(kind: pa.DataType) -> None:
    """Text that would begin and end far outside of the stream; to ask for its size reads it."""
    width = 4 if pa.types.is_string(kind) else 8
    for rows in (2, 300):
        text = pa.array(["taxi"] * rows, kind)
        content = bytearray(arrow_of(pa.table({"who": text, "kind": text.dictionary_encode()})))
        last = (4 * rows).to_bytes(width, "little")
        place = content.rindex(last)
        for wrong in (2**31 - 1, -1, 2**30):
            damaged = content.copy()
            damaged[place : place + width] = wrong.to_bytes(width, "little", signed=True)
            with pytest.raises((ArrowStreamError, pa.ArrowInvalid)):
                read_arrow_stream(bytes(damaged), 1 << 20)


def _draw_column(chance: random.Random, rows: int) -> pa.Array:
    kinds: list[pa.Array] = [
        pa.array([f"t{chance.randrange(99)}" for _ in range(rows)]),
        pa.array(["é" * chance.randrange(3) for _ in range(rows)], pa.large_string()),
        pa.array(range(rows), pa.int16()),
        pa.array([1.5] * rows),
        pa.array([1] * rows, pa.timestamp("us", "UTC")),
        pa.array([chance.choice([None, 1]) for _ in range(rows)], pa.int64()),
        pa.array(["x"] * rows).dictionary_encode(),
        pa.array([True] * rows),
    ]
    return chance.choice(kinds)


@pytest.mark.parametrize("seed", range(4))
def test_usual_streams_are_read_as_arrow_reads_them(seed: int) -> None:
    """Whatever bytes are changed, missing or inserted: the same table, or left to Arrow."""
    chance, same = random.Random(seed), 0
    for _ in range(20):
        rows = chance.choice([0, 1, 2, 5, 40])
        columns = {f"c{n}": _draw_column(chance, rows) for n in range(chance.randrange(4))}
        content = arrow_of(pa.table(columns))
        for round_ in range(60):
            damaged = bytearray(content)
            place = chance.randrange(len(damaged))
            if round_ % 3 == 0:
                del damaged[place:]
            elif round_ % 20 == 1:
                damaged[place:place] = bytes(chance.randrange(9))
            elif round_:
                damaged[place] = chance.choice([0, 1, 2, 255, damaged[place] ^ 1])
            found = arrow_streams._read_plain_stream(bytes(damaged), 1 << 20)
            if found is not None:
                found.validate(full=True)
                expected = arrow_streams._read_any_stream(bytes(damaged), 1 << 20)
                assert arrow_of(found) == arrow_of(expected)
                same += 1
    assert same > 50


def test_usual_streams_are_small() -> None:
    """Also if their columns are the same bytes: other code may copy them."""
    content = arrow_of(pa.table({f"c{n}": pa.array(range(1000)) for n in range(4)}))
    assert arrow_streams._read_plain_stream(content, 32_000) is not None
    assert arrow_streams._read_plain_stream(content, 31_999) is None
    with pytest.raises(ArrowStreamError, match="at most"):
        read_arrow_stream(content, 31_999)


def test_rows_without_bytes_are_limited_too() -> None:
    content = arrow_of(pa.table({"who": pa.nulls(1 << 24)}))
    assert len(content) < 1000
    with pytest.raises(ArrowStreamError, match="at most 1 MiB"):
        read_arrow_stream(content, 1 << 20)


def test_tasks_are_told_when_their_requests_are_on_disk(tmp_path: Path) -> None:
    """Also of mistakes, and a task that gave up does not keep the others from it."""
    inbox = Inbox(str(tmp_path / "ledger.db"))

    async def send() -> None:
        given_up = asyncio.ensure_future(inbox.store(IngestRequest("s", "p", "jsonl", b"-")))
        await asyncio.sleep(0)
        given_up.cancel()
        requests = [IngestRequest("s", "p", "jsonl", b"x", number) for number in range(5)]
        assert await asyncio.gather(*map(inbox.store, requests)) == [True] * 5
        assert await inbox.store(requests[-1]) is False
        with pytest.raises(SequenceError):
            await inbox.store(IngestRequest("s", "p", "jsonl", b"x", 9))

    with closing(inbox):
        asyncio.run(send())
        assert len(inbox.read("s", 0, 1000)) == 6


def test_a_reader_can_wait_until_enough_is_there(tmp_path: Path) -> None:
    with closing(Inbox(str(tmp_path / "ledger.db"))) as inbox:
        timer = threading.Timer(0.05, inbox.put, [IngestRequest("s", "p", "jsonl", b"x" * 100)])
        timer.start()
        began = time.monotonic()
        inbox.gather("s", 0, 100, 90)
        assert time.monotonic() - began < 60
        timer.join()
        inbox.gather("s", 1, 100, 0.01)  # ends, although nothing comes
        assert len(inbox.read("s", 0, 1000)) == 1
