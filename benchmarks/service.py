"""Compare what the service takes by HTTP with a bare route that only parses the same JSON lines.

Both are served by the same server in this process, and get the same requests from the same
senders. The route answers when it has parsed. The service has taken tuples when they are
acknowledged, which means on disk, and its run has read them into the open window. How long it takes
until all are acknowledged is reported beside that: a sender waits for no more.
"""

from __future__ import annotations

import io
import json
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import polars as pl
import pyarrow as pa
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from benchmarks.jobs import Setting, UnequalError
from benchmarks.measuring import Spent, race
from benchmarks.report import OURS, Finding, against
from tacit.engines.setup import RunOptions
from tacit.service.roles import Role
from tacit.service.server import Server, ServerOptions
from tacit.service.serving import open_inputs, open_service
from tacit.service.state import ReleaseSignal

_SUBJECTS, _SENDERS = 1_000, 8
"""Subjects; connections that send at the same time."""
_SIZES = (1_000, 20_000)
"""Tuples of a request."""
_SHARE = 80
_LONG = 8
"""How many times as many tuples a long round has: a window's end matters less then."""
_TIMEOUT = 120.0
_LINES, _ARROW = "application/x-ndjson", "application/vnd.apache.arrow.stream"
_ARROWS = "Tacit, Arrow"
_BARE = "bare route, only parsing"
_SPEC = """
version: 1
streams: {s: {subject: who, time: at, columns: {who: text, at: integer, speed: number}}}
subjects: {file: subjects.txt}
windows: {size: 1 min}
events:
  slow: {stream: s, where: "speed < 10"}
queries:
  - {name: jam, consumer: city, pattern: "SEQ(slow, slow)"}
"""


def service(setting: Setting) -> Iterator[Finding]:
    """Measure small and large requests, and a long round of large ones."""
    for size in _SIZES:
        requests = max(2 * _SENDERS, setting.scale.events // _SHARE // size)
        yield from _measure(setting, size, requests)
    yield from _measure(setting, size, _LONG * requests, long=True)


def _measure(
    setting: Setting, size: int, requests: int, *, long: bool = False
) -> Iterator[Finding]:
    """Measure JSON lines against the bare route, and Arrow against JSON lines.

    The bare route has no window that ends, so it gets no long round.
    """
    rounds = range(setting.rounds + 1)
    # JSON lines and Arrow take turns, each with a window of its own.
    lines = [_draw(requests, size, 2 * number, _to_lines) for number in rounds]
    arrow = [_draw(requests, size, 2 * number + 1, _to_arrow) for number in rounds]
    with (
        tempfile.TemporaryDirectory(dir=setting.folder) as folder,
        _serve(Path(folder)) as intake,
        _serve_bare() as bare,
    ):
        senders = {
            OURS: Senders(intake, iter(lines), size, _LINES),
            _ARROWS: Senders(intake, iter(arrow), size, _ARROW),
            _BARE: Senders(bare, iter(lines), size, _LINES),
        }
        if long:
            del senders[_BARE]
        contestants = {name: one.send_next for name, one in senders.items()}
        outcomes = race(
            contestants, setting.rounds, lambda name, seen: _check(name, seen, requests * size)
        )
    spent = {name: outcome.spent for name, outcome in outcomes.items()}
    rates = ", ".join(f"{name} {requests * size / one.elapsed:,.0f}" for name, one in spent.items())
    note = f"tuples a second: {rates}; all of them were taken"
    job = f"HTTP in, {size:,} tuples in a request"
    if long:
        job += f", {requests * size:,} in all"
    else:
        both = {name: spent[name] for name in (OURS, _BARE)}
        yield against(f"{job}, JSON lines on disk and read by the run", both, 0.5, note=note)
    yield Finding(
        f"{job}, Arrow",
        "times as fast as JSON lines",
        spent[OURS].elapsed / spent[_ARROWS].elapsed,
        spent[OURS].processor / spent[_ARROWS].processor,
        5.0,
        seconds={"Arrow": spent[_ARROWS], "JSON lines": spent[OURS]},
        note=note,
    )
    waited = {name: reduce(Spent.least, one.waited[1:]) for name, one in senders.items()}
    yield Finding(
        f"{job}, Arrow, until all are acknowledged",
        "times as fast as JSON lines",
        waited[OURS].elapsed / waited[_ARROWS].elapsed,
        waited[OURS].processor / waited[_ARROWS].processor,
        seconds={"Arrow": waited[_ARROWS], "JSON lines": waited[OURS]},
        note="the run reads them meanwhile, and afterwards; acknowledged means on disk",
    )


@dataclass(frozen=True)
class Intake:
    """Where to send tuples, and how many were taken there."""

    url: str
    token: str
    count: Callable[[], int]


@dataclass
class Senders:
    """Connections that send requests at the same time."""

    intake: Intake
    rounds: Iterator[Sequence[bytes]]
    size: int
    kind: str
    waited: list[Spent] = field(default_factory=list)
    """What was spent in each round until all requests were acknowledged."""

    def send_next(self) -> int:
        """Send the requests of a round; return how many tuples were taken."""
        bodies, intake = next(self.rounds), self.intake
        before = intake.count()
        elapsed, processor = time.perf_counter(), time.process_time()
        with ThreadPoolExecutor(_SENDERS) as pool:
            list(pool.map(partial(_send, intake, bodies, self.kind), range(_SENDERS)))
        self.waited.append(Spent(time.perf_counter() - elapsed, time.process_time() - processor))
        expected = len(bodies) * self.size
        deadline = time.monotonic() + _TIMEOUT
        while intake.count() - before < expected and time.monotonic() < deadline:
            time.sleep(0.001)
        return intake.count() - before


def _send(intake: Intake, bodies: Sequence[bytes], kind: str, sender: int) -> None:
    """Send a sender's share of the requests over one connection."""
    connection = HTTPConnection(urlsplit(intake.url).netloc, timeout=_TIMEOUT)
    headers = {"Content-Type": kind, "Authorization": f"Bearer {intake.token}"}
    with closing(connection):
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for body in bodies[sender::_SENDERS]:
            connection.request("POST", "/v1/streams/s/tuples", body, headers)
            response = connection.getresponse()
            text = response.read()
            if response.status != HTTPStatus.OK:
                raise UnequalError(f"status {response.status}: {text.decode()}")


def _check(name: str, found: int, expected: int) -> int:
    if found != expected:
        raise UnequalError(f"{name} took {found} tuples of {expected}")
    return found


@contextmanager
def _serve(folder: Path) -> Iterator[Intake]:
    """Serve with a ledger, and run over what is sent."""
    (folder / "subjects.txt").write_text("".join(f"taxi {n}\n" for n in range(_SUBJECTS)))
    (folder / "spec.yaml").write_text(_SPEC)
    options = RunOptions(folder / "spec.yaml", [], ledger=str(folder / "ledger.db"))
    version = options.read()
    with (
        open_inputs(options, version.spec) as opened,
        open_service(options, version, opened, ServerOptions(port=0)) as serving,
        serving.open_run() as run,
        ThreadPoolExecutor(1) as pool,
    ):
        token, _ = serving.state.tokens.create(Role.SOURCE, "sensor", creator="benchmark")
        running = pool.submit(serving.answer, run)

        def count() -> int:
            if running.done():
                running.result()
            return run.status.tuples - run.status.refused - run.status.late

        try:
            yield Intake(serving.url, token, count)
        finally:
            serving.stop()
        running.result(_TIMEOUT)


@contextmanager
def _serve_bare() -> Iterator[Intake]:
    """Serve a route that parses every line, and counts."""
    parsed = 0

    async def parse(request: Request) -> Response:
        nonlocal parsed
        rows = [json.loads(line) for line in (await request.body()).splitlines()]
        parsed += len(rows)
        return Response()

    app = Starlette(routes=[Route("/v1/streams/s/tuples", parse, methods=["POST"])])
    with Server(app, ReleaseSignal(), ServerOptions(port=0)) as server:
        yield Intake(server.url, "", lambda: parsed)


def _draw(
    requests: int, size: int, window: int, to_bytes: Callable[[pl.DataFrame], bytes]
) -> list[bytes]:
    """Make the requests of a window."""
    random = np.random.default_rng(window)
    return [
        to_bytes(
            pl.DataFrame(
                {
                    "who": [f"taxi {n}" for n in random.integers(0, _SUBJECTS, size)],
                    "at": 60 * window + random.integers(0, 60, size),
                    "speed": random.integers(0, 500, size) / 10,
                }
            )
        )
        for _ in range(requests)
    ]


def _to_lines(frame: pl.DataFrame) -> bytes:
    return frame.write_ndjson().encode()


def _to_arrow(frame: pl.DataFrame) -> bytes:
    table, stream = frame.to_arrow(), io.BytesIO()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    return stream.getvalue()
