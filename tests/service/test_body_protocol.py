"""Large bodies go straight into one buffer; everything else about a connection stays the same."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPSConnection, parse_headers
from pathlib import Path
from random import Random

import pytest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tacit.service.body_protocol import receive_body
from tacit.service.server import Server, ServerOptions
from tacit.service.state import ReleaseSignal
from tests.service.services import PATIENCE

SIZES = (0, 1, 1_000, 200_000, 3_000_000)
HOST = "127.0.0.1"
PATHS = ("/", "/refused", "/hurried")


class Handler:
    """Answers with the hash of the body, and whether it came as one buffer."""

    def __init__(self) -> None:
        self.gone = 0

    async def answer(self, request: Request) -> Response:
        """Answer a request."""
        if request.url.path == "/refused":
            return PlainTextResponse("no", 401)
        try:
            async with asyncio.timeout(0.2 if request.url.path == "/hurried" else PATIENCE):
                body = await receive_body(request, int(request.headers.get("content-length", 0)))
            how = "usual" if body is None else "whole"
            if body is None:
                body = memoryview(await request.body())
        except TimeoutError:
            return PlainTextResponse("late", 408)
        except ClientDisconnect:
            self.gone += 1
            raise
        return PlainTextResponse(f"{how} {digest(body)}")


def digest(body: bytes | memoryview) -> str:
    return hashlib.sha256(body).hexdigest()


@contextmanager
def serving(
    handler: Handler, certificate: Path | None = None, key: Path | None = None
) -> Iterator[Server]:
    routes = [Route(path, handler.answer, methods=["POST"]) for path in PATHS]
    options = ServerOptions(port=0, certificate=certificate, key=key)
    with Server(Starlette(routes=routes), ReleaseSignal(), options) as server:
        yield server


@pytest.fixture(scope="module")
def handler() -> Handler:
    return Handler()


@pytest.fixture(scope="module")
def port(handler: Handler) -> Iterator[int]:
    with serving(handler) as server:
        yield int(server.url.rpartition(":")[2])


def head(size: int | None, path: str = "/", *more: str) -> bytes:
    length = [] if size is None else [f"Content-Length: {size}"]
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: x", *length, *more, "", ""]).encode()


def read_answers(connection: socket.socket, count: int) -> list[tuple[int, str]]:
    """Read so many responses."""
    found = []
    with connection.makefile("rb") as stream:
        for _ in range(count):
            status = int(stream.readline().split()[1])
            headers = parse_headers(stream)
            found.append((status, stream.read(int(headers["content-length"])).decode()))
    return found


def connect(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), PATIENCE)


def test_bodies_of_every_size_arrive_as_they_were_sent(port: int) -> None:
    """On one connection, whichever way they take; large ones come as one buffer."""
    random, ways = Random(1), set()
    with closing(HTTPConnection(HOST, port, timeout=PATIENCE)) as connection:
        for size in (*SIZES, *reversed(SIZES)):
            body = random.randbytes(size)
            connection.request("POST", "/", body)
            way, found = connection.getresponse().read().decode().split()
            assert found == digest(body)
            ways.add((size >= 1_000_000, way))
    assert (True, "whole") in ways
    assert (False, "usual") in ways
    assert (True, "usual") not in ways


@pytest.mark.parametrize("piece", [1_999, 70_000, 400_000])
def test_pieces_and_the_next_request_behind_the_last_one(port: int, piece: int) -> None:
    """The next request comes with the end of the body; it is not taken for a part of it."""
    random = Random(piece)
    bodies = [random.randbytes(size) for size in (300_001, 5, 500_000)]
    sent = b"".join(head(len(body)) + body for body in bodies)
    with connect(port) as connection:
        for begin in range(0, len(sent), piece):
            connection.sendall(sent[begin : begin + piece])
        found = read_answers(connection, len(bodies))
    assert [(status, text.split()[1]) for status, text in found] == [
        (200, digest(body)) for body in bodies
    ]


def test_who_is_refused_is_told_so_and_the_body_is_dropped(port: int) -> None:
    """Nothing is received into a buffer before the handler asks for it."""
    body = Random(2).randbytes(2_000_000)
    with connect(port) as connection:
        connection.sendall(head(len(body), "/refused") + body + head(3) + b"abc")
        assert read_answers(connection, 2) == [(401, "no"), (200, f"usual {digest(b'abc')}")]


def test_a_body_that_comes_too_late_is_dropped_and_the_next_request_is_served(port: int) -> None:
    body = Random(4).randbytes(1_000_000)
    with connect(port) as connection:
        connection.sendall(head(len(body), "/hurried") + body[:400_000])
        assert read_answers(connection, 1) == [(408, "late")]
        connection.sendall(body[400_000:] + head(3) + b"abc")
        assert read_answers(connection, 1) == [(200, f"usual {digest(b'abc')}")]


@pytest.mark.parametrize("more", ["Transfer-Encoding: chunked", "Expect: 100-continue"])
def test_bodies_of_another_framing_are_read_as_usual(port: int, more: str) -> None:
    body = Random(3).randbytes(400_000)
    chunked = more.startswith("Transfer")
    with connect(port) as connection:
        connection.sendall(head(None if chunked else len(body), "/", more))
        if chunked:
            connection.sendall(b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n")
        else:
            assert connection.recv(1_000).startswith(b"HTTP/1.1 100")
            connection.sendall(body)
        assert read_answers(connection, 1) == [(200, f"usual {digest(body)}")]


def test_a_sender_that_goes_away_is_noticed(port: int, handler: Handler) -> None:
    """The handler hears of it; the server goes on."""
    before = handler.gone
    with connect(port) as connection:
        connection.sendall(head(1_000_000) + bytes(500_000))
    deadline = time.monotonic() + PATIENCE
    while handler.gone == before:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    test_bodies_of_every_size_arrive_as_they_were_sent(port)


def test_large_bodies_arrive_over_tls(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    with serving(Handler(), certificate, key) as server:
        trusted = ssl.create_default_context(cafile=str(certificate))
        trusted.check_hostname = False
        connection = HTTPSConnection(
            HOST, int(server.url.rpartition(":")[2]), timeout=PATIENCE, context=trusted
        )
        with closing(connection):
            for size in SIZES:
                body = Random(size).randbytes(size)
                connection.request("POST", "/", body)
                way, found = connection.getresponse().read().decode().split()
                assert found == digest(body)
                assert way == "whole" or size < 1_000_000
