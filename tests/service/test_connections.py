"""What arrives at a connection: framing, limits, and what a client does not finish."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from uvicorn.server import ServerState

from tacit.service.body_room import BodyRoom, NoRoomError
from tacit.service.connection_limits import LARGEST_HEAD, LimitedProtocol
from tacit.service.problems import MEDIA_TYPE
from tests.service.services import PATIENCE, Running, running

LINE = b'{"who":"t0","at":1,"kind":"a"}\n'
HEALTH = b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(LINE), LINE)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service that takes tuples."""
    with running(tmp_path_factory.mktemp("connections")) as found:
        while not found.service.state.ready:
            time.sleep(0.01)
        yield found


@contextmanager
def connecting(service: Running) -> Iterator[socket.socket]:
    port = int(service.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as connection:
        yield connection


def head(service: Running, *headers: str, version: str = "1.1", token: bool = True) -> bytes:
    """A request to send tuples, up to its body."""
    lines = [f"POST /v1/streams/s/tuples HTTP/{version}", "Host: x"]
    lines += [f"Authorization: Bearer {service.token('source', 'sensor')}"] if token else []
    lines += ["Content-Type: application/x-ndjson", *headers, "", ""]
    return "\r\n".join(lines).encode()


def read_all(connection: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    found = b""
    while part := connection.recv(65_536):
        found += part
    return found


def read_responses(connection: socket.socket, count: int) -> bytes:
    """Read until there are so many responses with a body."""
    found = b""
    while len(re.findall(rb"HTTP/1.1 \d+", found)) < count or not found.endswith(b"}"):
        part = connection.recv(65_536)
        assert part, found
        found += part
    return found


def statuses(found: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1.1 (\d+)", found)]


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (["Content-Length: 31", "Transfer-Encoding: chunked"], CHUNKED),
        (["Transfer-Encoding: chunked", "Content-Length: 4"], CHUNKED),
        (["Content-Length: 31", "Content-Length: 31"], LINE),
        (["Content-Length: 31", "Content-Length: 3"], LINE),
        (["Content-Length: 31, 31"], LINE),
        (["Content-Length: +31"], LINE),
        (["Content-Length: -1"], LINE),
        (["Content-Length: 0x1f"], LINE),
        (["Content-Length: 18446744073709551617"], LINE),
        (["Content-Length : 31"], LINE),
        (["Transfer-Encoding: chunked, identity"], CHUNKED),
        (["Transfer-Encoding: chunked, chunked"], CHUNKED),
        (["Transfer-Encoding : chunked"], CHUNKED),
        (["Transfer-Encoding: chunked"], b"zz\r\n" + CHUNKED),
        (["Transfer-Encoding: chunked"], b"-1\r\n" + CHUNKED),
        (["Transfer-Encoding: chunked"], 17 * b"f" + b"\r\n" + CHUNKED),
        (["X: a\r\n b", "Content-Length: 31"], LINE),
        (["X: a\0b", "Content-Length: 31"], LINE),
        (["X: a\nY: b", "Content-Length: 31"], LINE),
    ],
)
def test_a_body_whose_end_is_doubtful_ends_the_connection(
    service: Running, headers: list[str], body: bytes
) -> None:
    """Nothing after it is taken for a request."""
    with connecting(service) as connection:
        connection.sendall(head(service, *headers) + body + HEALTH)
        found = read_all(connection)
    assert statuses(found) == [400]
    assert MEDIA_TYPE.encode() in found
    assert b"content-security-policy" in found
    problem = json.loads(found[found.rindex(b"\r\n\r\n") :])
    assert problem["status"] == 400
    assert b"connection: close" in found


@pytest.mark.parametrize(
    "headers",
    [
        ["Transfer-Encoding: gzip, chunked"],
        ["Transfer-Encoding: gzip", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: identity"],
        ["Transfer-Encoding: xchunked"],
        ["Upgrade: h2c", "Connection: Upgrade", "Transfer-Encoding: gzip, chunked"],
    ],
)
def test_a_body_in_a_coding_that_the_server_does_not_decode_is_refused(
    service: Running, headers: list[str]
) -> None:
    """The parser undoes the chunks alone, and the rest would be taken as it is."""
    with connecting(service) as connection:
        connection.sendall(head(service, *headers) + CHUNKED + HEALTH)
        found = read_all(connection)
    assert statuses(found) == [501]
    assert json.loads(found[found.rindex(b"\r\n\r\n") :])["status"] == 501
    with connecting(service) as connection:
        connection.sendall(head(service, "Transfer-Encoding: Chunked") + CHUNKED)
        assert statuses(read_responses(connection, 1)) == [200]


def test_a_request_before_garbage_gets_its_own_response(service: Running) -> None:
    """Then the connection ends; what follows is not a second response."""
    good = head(service, f"Content-Length: {len(LINE)}") + LINE
    with connecting(service) as connection:
        connection.sendall(good + b"garbage" + HEALTH)
        found = read_all(connection)
    assert statuses(found) == [200]
    with connecting(service) as connection:
        connection.sendall(good)
        assert statuses(read_responses(connection, 1)) == [200]
        connection.sendall(b"garbage" + HEALTH)
        assert statuses(read_all(connection)) == [400]


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("upgrade", ["h2c", "websocket"])
def test_an_offered_upgrade_is_ignored_and_the_body_is_read(
    service: Running, upgrade: str, apart: bool
) -> None:
    """Also if the body comes later, and looks like a request."""
    offered = ["Connection: Upgrade, HTTP2-Settings", f"Upgrade: {upgrade}", "HTTP2-Settings: AA"]
    body = HEALTH + LINE  # the first lines become dead letters
    sent = [head(service, *offered, f"Content-Length: {len(body)}"), body, HEALTH]
    with connecting(service) as connection:
        for part in sent if apart else [b"".join(sent)]:
            connection.sendall(part)
            time.sleep(0.05 if apart else 0)
        found = read_responses(connection, 2)
    assert statuses(found) == [200, 200]
    assert found.count(b"duplicate") == 1


def test_trailers_are_no_headers(service: Running) -> None:
    token = service.token("source", "sensor")
    unsigned = head(service, "Transfer-Encoding: chunked", token=False)
    with connecting(service) as connection:
        trailer = f"Authorization: Bearer {token}\r\n\r\n".encode()
        connection.sendall(unsigned + CHUNKED.removesuffix(b"\r\n") + trailer)
        assert statuses(read_responses(connection, 1)) == [401]


@pytest.mark.parametrize("start", [b"GET /v1/health?", b"GET /v1/health HTTP/1.1\r\nX: "])
def test_the_head_of_a_request_is_limited(service: Running, start: bytes) -> None:
    """Before anyone has said who it is: a single line without end, or many."""
    for more in (b"a" * 10_000, b"a\r\nX: b" * 1_000):
        if start.startswith(b"GET /v1/health?") and b"\r" in more:
            continue
        with connecting(service) as connection:
            connection.sendall(start)
            sent = 0
            try:
                while sent < 20_000_000:
                    connection.sendall(more)
                    sent += len(more)
            except (BrokenPipeError, ConnectionResetError):
                pass
            assert sent < 20_000_000


class Written(asyncio.Transport):
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.found = b""
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Keep this."""
        assert not self.closed
        self.found += bytes(data)

    def close(self) -> None:
        """Close it."""
        self.closed = True

    def pause_reading(self) -> None:
        """What comes is given anyway."""

    def resume_reading(self) -> None:
        """See `pause_reading`."""

    def is_closing(self) -> bool:
        """Return whether it is closed."""
        return self.closed


def receive_pieces(pieces: list[bytes]) -> Written:
    """Give pieces to the protocol as they come from the network; return what it wrote."""

    async def receive() -> Written:
        config = uvicorn.Config(PlainTextResponse("here"), ws="none", log_config=None)
        protocol = LimitedProtocol(config, ServerState(), {})
        transport = Written()
        protocol.connection_made(transport)
        for piece in pieces:
            protocol.data_received(piece)
        await asyncio.gather(*protocol.tasks)
        protocol.connection_lost(ConnectionResetError())
        return transport

    return asyncio.run(receive())


@pytest.mark.parametrize(
    "begin", [b"GET /", b"GET / HTTP/1.1\r\nX: ", HEALTH + b"GET / HTTP/1.1\r\nX: "]
)
def test_a_head_that_is_too_large_gets_problem_details(begin: bytes) -> None:
    """Once, whatever else comes; the end of the connection says that nothing more is read."""
    lines = [begin, *(LARGEST_HEAD // 1_024) * [1_024 * b"a"]]
    end = [b" HTTP/1.1\r\n\r\n" if begin == b"GET /" else b"\r\n\r\n"]
    before = [200] if begin.startswith(HEALTH) else []
    # The first piece and the last one have parts of other lines too, and are not counted.
    # An address must also be shorter than what its own parser takes.
    fitting = receive_pieces([*(lines[:-1] if begin == b"GET /" else lines), *end])
    assert (statuses(fitting.found), fitting.closed) == ([*before, 200], False)
    for more in ([], end, 3 * [1_024 * b"a"], [b"\r\n\r\n" + HEALTH]):
        refused = receive_pieces([*lines, b"a", *more])
        assert refused.closed
        head, _, body = refused.found.rpartition(b"\r\n\r\n")
        if before:  # it is still handled, and its response is the last one
            assert statuses(refused.found) == [200]
            assert b"connection: close" in head
            continue
        assert statuses(refused.found) == [431]
        assert b"content-type: " + MEDIA_TYPE.encode() in head
        assert b"connection: close" in head
        assert b"content-length: %d" % len(body) in head
        problem = json.loads(body)
        assert (problem["status"], problem["title"]) == (431, "Request Header Fields Too Large")
        assert "64 KiB" in problem["detail"]


def test_many_small_requests_in_one_piece_are_no_large_head(service: Running) -> None:
    count = 1_500
    with connecting(service) as connection:
        connection.sendall(count * HEALTH)
        assert statuses(read_responses(connection, count)) == count * [200]


@pytest.mark.parametrize("begun", [b"", b"GET /v1/hea", HEALTH[:-2]])
def test_a_connection_that_sends_no_request_is_closed(
    service: Running, begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it sends a little now and then, and also after another request."""
    monkeypatch.setattr("tacit.service.connection_limits.REQUEST_SECONDS", 0.3)
    for before in (b"", HEALTH):
        with connecting(service) as connection:
            connection.sendall(before)
            if before:
                read_responses(connection, 1)
            connection.sendall(begun)
            with pytest.raises((BrokenPipeError, ConnectionResetError)):
                drip(
                    connection, b"a" if begun.endswith(b"a") else b"" if not begun else b"X: a\r\n"
                )


def drip(connection: socket.socket, piece: bytes) -> None:
    """Send a piece from time to time until the connection is closed."""
    connection.settimeout(0.05)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            if not connection.recv(65_536):
                raise BrokenPipeError
        except TimeoutError:
            connection.sendall(piece)


def test_the_rest_of_a_refused_body_must_come_in_time_too(
    service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tacit.service.connection_limits.REQUEST_SECONDS", 0.3)
    with connecting(service) as connection:
        connection.sendall(head(service, "Content-Length: 10000000", token=False))
        assert statuses(read_responses(connection, 1)) == [401]
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            drip(connection, b"x")


def test_a_request_in_progress_is_not_cut_off(
    service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream of answers may last longer than the next request may take."""
    monkeypatch.setattr("tacit.service.connection_limits.REQUEST_SECONDS", 0.2)
    with service.client("consumer", "city") as client, pytest.raises(httpx.ReadTimeout):
        client.get("/v1/answers/stream", timeout=httpx.Timeout(PATIENCE, read=0.6))


@pytest.mark.parametrize("token", [False, True])
def test_who_asks_before_sending_and_is_refused_must_connect_again(
    service: Running, token: bool
) -> None:
    """The next bytes could be the body or a request; a connection that ends has no such doubt."""
    asked = head(service, "Expect: 100-continue", f"Content-Length: {64 << 20}", token=token)
    with connecting(service) as connection:
        connection.sendall(asked)
        found = read_all(connection)
    assert statuses(found) == [413 if token else 401]
    assert b"connection: close" in found


def test_http_1_0_ends_after_one_response(service: Running) -> None:
    sent = head(service, "Connection: keep-alive", f"Content-Length: {len(LINE)}", version="1.0")
    with connecting(service) as connection:
        connection.sendall(sent + LINE + HEALTH)
        assert statuses(read_all(connection)) == [200]


@pytest.mark.parametrize("size", [1_000, 1_000_000])
def test_a_sender_that_goes_away_is_no_bug(
    service: Running, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has no error, and the room for the body is free again."""
    with caplog.at_level(logging.WARNING):
        with connecting(service) as connection:
            connection.sendall(head(service, f"Content-Length: {size}") + LINE)
            wait_for(lambda: room(service).total == size)
        wait_for(lambda: room(service).total == 0)
        with connecting(service) as connection:
            connection.sendall(head(service, "Transfer-Encoding: chunked") + b"ff\r\n" + LINE)
            wait_for(lambda: room(service).total == len(LINE))
        wait_for(lambda: room(service).total == 0)
        time.sleep(0.1)
    assert caplog.records == []


def room(service: Running) -> BodyRoom:
    return service.service.state.room


def wait_for(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_bodies_that_arrive_at_the_same_time_are_limited(service: Running) -> None:
    """For each token: others are still served, and so is this one when a body is there."""
    size = 32 << 20
    with connecting(service) as first, connecting(service) as second, connecting(service) as third:
        for connection in (first, second):
            connection.sendall(head(service, f"Content-Length: {size}"))
        wait_for(lambda: room(service).total == 2 * size)
        third.sendall(head(service, f"Content-Length: {len(LINE)}") + LINE)
        found = read_responses(third, 1)
        assert statuses(found) == [429]
        assert b"retry-after: 1" in found
        with service.client("source", "other") as client:
            kind = {"Content-Type": "application/x-ndjson"}
            sent = client.post("/v1/streams/s/tuples", content=LINE, headers=kind)
            assert sent.status_code == 200
        first.close()
        wait_for(lambda: room(service).total == size)
        third.sendall(head(service, f"Content-Length: {len(LINE)}") + LINE)
        assert statuses(read_responses(third, 1)) == [200]


def test_room_is_limited_in_all_and_given_back() -> None:
    room = BodyRoom()
    with room.open("a") as first, room.open("b") as second, room.open("c") as third:
        for space in (first, second, third):
            space.extend(10)
            space.extend(64 << 20)
        with room.open("d") as fourth, room.open("e") as fifth:
            fourth.extend(63 << 20)
            fifth.extend(1 << 20)
            with pytest.raises(NoRoomError):
                fifth.extend((1 << 20) + 1)
        with room.open("a") as more, pytest.raises(NoRoomError):
            more.extend(1)
    assert (room.total, room.taken) == (0, {})
