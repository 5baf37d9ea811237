"""Measure server-sent events under load, over real HTTP to a real `tacit serve`.

1,000 consumers each follow one query and 100 of 10,000 subjects; 5 operators follow everything: 10
queries about 10,000 subjects. Windows have 10 seconds and close by the clock. Tuples come in over
HTTP all the time. In the second half of the windows one more operator reads a byte a second. Every
row that a reader got is compared with what the service gives as a file afterwards: nothing may be
missing, additional or different. Lateness is the time from the end of a window to the last byte of
its last answer, for each reader and window.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
import polars as pl
import psutil
import pyarrow as pa

from benchmarks.jobs import Setting, UnequalError
from benchmarks.report import Finding
from tacit.ledger.ledger import Ledger
from tacit.service.roles import Role
from tacit.service.tokens import Tokens

SIZE = 10
"""Seconds of a window."""
_QUERIES, _OPERATORS, _CHOSEN = 10, 5, 100
"""Queries; readers of everything; subjects that each of the other readers follows."""
_WITHIN = 2.0
_TICK, _TUPLES = 0.2, 2_000
"""Seconds between two requests with tuples, and tuples in each."""
_PROCESSES = 2
"""Processes of readers with one query each; those of everything share one more."""
_KINDS = 5
_TIMEOUT = 120.0
_COMPARED = ("id", "window_start", "subject", "query", "detected", "confidence")


@dataclass(frozen=True)
class Load:
    """How many readers and subjects there are, and for how many windows it is measured."""

    readers: int = 1_000
    subjects: int = 10_000
    windows: int = 6


def streams(setting: Setting) -> Iterator[Finding]:
    """Measure lateness and memory."""
    quick = setting.scale.events < 10_000_000
    load = Load(100, 1_000, 2) if quick else Load()
    with tempfile.TemporaryDirectory(dir=setting.folder) as folder:
        yield from _measure(load, Path(folder))


def _measure(load: Load, folder: Path) -> Iterator[Finding]:
    before = os.getloadavg()[0]
    tokens = _write_setup(load, folder)
    with ExitStack() as stack:
        server = stack.enter_context(serve(folder, "spec.yaml"))
        stack.enter_context(_sending(server.url, tokens["source"][0], load))
        readers = stack.enter_context(_reading(server.url, load, tokens, folder))
        memory = stack.enter_context(_watching(server.pid))
        begin = _next_window(time.time())
        middle = begin + SIZE * (load.windows // 2)
        _sleep_until(middle - SIZE / 2)
        stack.enter_context(_reading_slowly(server.url, tokens["operator"][0]))
        _sleep_until(begin + SIZE * load.windows + 2 * _WITHIN + 1)
        rows, lost = readers.collect()
        released = _download(server.url, tokens["operator"][0], begin)
        spent = server.processor()
    if lost:
        raise UnequalError(f"{lost} streams ended early")
    ends = [begin + SIZE * (number + 1) for number in range(load.windows)]
    late = _check(load, rows, released, ends)
    note = (
        f"{load.readers:,} readers of {_CHOSEN} subjects, {_OPERATORS} of all {load.subjects:,},"
        f" {load.windows} windows, {rows.height:,} answers compared; load average {before:.1f}"
        f" before, {os.getloadavg()[0]:.1f} after; the server used {spent:.0f} s of processor time"
    )
    yield from _report(late, middle, note)
    start, most = memory[0] / 2**20, max(memory) / 2**20
    every = max(1, len(memory) // 8)
    over_time = ", ".join(f"{size / 2**20:.0f}" for size in memory[::every])
    yield Finding(
        "streams, resident memory of the server",
        "more than when all readers were connected",
        most - start,
        unit="MiB",
        note=f"from {start:.0f} MiB; over time {over_time} MiB",
    )


def _report(late: pl.DataFrame, middle: float, note: str) -> Iterator[Finding]:
    slow = pl.col("end") > middle + SIZE / 2
    groups = {
        "all readers": late,
        "readers of one query": late.filter(pl.col("stream") >= 0),
        "readers of everything": late.filter(pl.col("stream") < 0),
        "before the slow reader": late.filter(~slow),
        "beside the slow reader": late.filter(slow),
    }
    for name, group in groups.items():
        seconds = group["late"].to_numpy()
        half, most, last = np.percentile(seconds, [50, 99, 100])
        yield Finding(
            f"streams, {name}",
            "from the end of a window to its last answer, 99th percentile",
            float(most),
            target=_WITHIN if name == "all readers" else None,
            bound="at most",
            unit="s",
            note=f"median {half:.2f} s, last {last:.2f} s" + f"; {note}" * (name == "all readers"),
        )


def _check(
    load: Load, rows: pl.DataFrame, released: pl.DataFrame, ends: Sequence[int]
) -> pl.DataFrame:
    """Compare what came with what was released; return how late each reader's last answer was."""
    released = released.with_columns(end=_window_end()).filter(pl.col("end").is_in(ends))
    rows = rows.with_columns(end=_window_end()).filter(pl.col("end").is_in(ends))
    if released.height != len(ends) * load.subjects * _QUERIES:
        raise UnequalError(f"{released.height:,} answers were released")
    asked = pl.concat(
        [
            pl.DataFrame({"stream": number, "query": query, "subject": subjects})
            for number, query, subjects in _choose(load)
        ]
    ).with_columns(pl.col("stream").cast(pl.Int32))
    everything = pl.DataFrame({"stream": range(-_OPERATORS, 0)}, schema={"stream": pl.Int32})
    expected = pl.concat(
        [
            released.join(asked, on=["query", "subject"]).select("stream", *_COMPARED),
            released.join(everything, how="cross").select("stream", *_COMPARED),
        ]
    ).sort("stream", "id")
    found = rows.select("stream", *_COMPARED).sort("stream", "id")
    if not found.equals(expected):
        raise UnequalError(
            f"readers got {found.height:,} answers, and asked for {expected.height:,}; or some"
            " differ"
        )
    last = rows.group_by("stream", "end").agg(pl.col("arrival").max())
    return last.with_columns(late=pl.col("arrival") - pl.col("end"))


def _window_end() -> pl.Expr:
    start = pl.col("window_start").str.to_datetime(time_zone="UTC", time_unit="ms")
    return start.dt.epoch("s") + SIZE


def _choose(load: Load) -> Iterator[tuple[int, str, list[str]]]:
    """Choose the query and the subjects of each reader."""
    random = np.random.default_rng(1)
    for number in range(load.readers):
        subjects = random.choice(load.subjects, _CHOSEN, replace=False)
        yield number, f"q{number % _QUERIES}", [f"taxi {one}" for one in sorted(subjects)]


def _write_setup(load: Load, folder: Path) -> dict[str, list[str]]:
    """Write the specification, and create a token for each reader."""
    names = "".join(f"taxi {number}\n" for number in range(load.subjects))
    (folder / "subjects.txt").write_text(names)
    events = "".join(f"  e{n}: {{stream: s, where: 'kind = {n}'}}\n" for n in range(_KINDS))
    pairs = [(n % _KINDS, (n + 1 + n // _KINDS) % _KINDS) for n in range(_QUERIES)]
    queries = "".join(
        f"  - {{name: q{n}, consumer: c{n}, pattern: 'AND(e{one}, e{other})'}}\n"
        for n, (one, other) in enumerate(pairs)
    )
    (folder / "spec.yaml").write_text(
        "version: 1\n"
        "streams: {s: {subject: who, time: at,"
        " columns: {who: text, at: time, kind: integer}}}\n"
        "subjects: {file: subjects.txt}\n"
        f"windows: {{size: {SIZE} s, close: clock}}\n"
        f"events:\n{events}"
        "patterns: {visit: 'SEQ(e0, e1)'}\n"
        "private:\n  - {pattern: visit, epsilon: 2}\n"
        f"queries:\n{queries}"
        "mechanism: uniform\n"
    )
    with Ledger.open(str(folder / "ledger.db")) as ledger:
        tokens = Tokens(ledger.database)

        def create(role: Role, name: str) -> str:
            return tokens.create(role, name, creator="benchmark")[0]

        return {
            "source": [create(Role.SOURCE, "sensor")],
            "operator": [create(Role.OPERATOR, f"o{number}") for number in range(_OPERATORS)],
            "consumer": [
                create(Role.CONSUMER, f"c{number % _QUERIES}") for number in range(load.readers)
            ],
        }


@dataclass
class ServerProcess:
    """A `tacit serve` that listens."""

    url: str
    pid: int

    def processor(self) -> float:
        """Return the seconds of processor time that it has used."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)


@contextmanager
def serve(folder: Path, *arguments: str) -> Iterator[ServerProcess]:
    """Run `tacit serve` in a folder with a ledger, until the end."""
    command = ["serve", *arguments, "--ledger", "ledger.db", "--port", "0"]
    program = "from tacit.cli.main import main; main()"
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *command], cwd=folder, stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + _TIMEOUT
        while "Listening at " not in (text := (folder / "log.txt").read_text()):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the service did not start: {text}")
            time.sleep(0.1)
        url = text.partition("Listening at ")[2].split()[0]
        while _status(url, "/v1/ready") != 200:
            time.sleep(0.1)
        yield ServerProcess(url, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()


def _status(url: str, path: str) -> int:
    connection = HTTPConnection(urlsplit(url).netloc, timeout=_TIMEOUT)
    connection.request("GET", path)
    status = connection.getresponse().status
    connection.close()
    return status


@contextmanager
def _repeating(seconds: float, step: Callable[[], None]) -> Iterator[None]:
    """Call `step` again and again in a thread, with a pause before; raise its error at the end."""
    stop = threading.Event()

    def repeat() -> None:
        while not stop.wait(seconds):
            step()

    with ThreadPoolExecutor(1) as pool:
        repeating = pool.submit(repeat)
        try:
            yield
        finally:
            stop.set()
        repeating.result()


@contextmanager
def _sending(url: str, token: str, load: Load) -> Iterator[None]:
    """Send tuples in a thread."""
    random = np.random.default_rng(2)
    connection = HTTPConnection(urlsplit(url).netloc, timeout=_TIMEOUT)
    kind = "application/vnd.apache.arrow.stream"
    headers = {"Content-Type": kind, "Authorization": f"Bearer {token}"}

    def send() -> None:
        who = random.integers(0, load.subjects, _TUPLES)
        table = pa.table(
            {
                "who": [f"taxi {number}" for number in who],
                "at": pa.array(np.full(_TUPLES, time.time_ns() // 1000), pa.timestamp("us")),
                "kind": random.integers(0, _KINDS, _TUPLES),
            }
        )
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        body = sink.getvalue().to_pybytes()
        connection.request("POST", "/v1/streams/s/tuples", body, headers)
        response = connection.getresponse()
        text = response.read()
        if response.status != 200:
            raise RuntimeError(f"tuples were refused: {text.decode()}")

    with _repeating(_TICK, send):
        yield


@dataclass
class ReaderProcesses:
    """The processes that read streams."""

    running: list[tuple[subprocess.Popen[str], Path]] = field(default_factory=list)

    def collect(self) -> tuple[pl.DataFrame, int]:
        """Stop them; return the rows that came, and how many streams were lost."""
        for process, _ in self.running:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        lost = 0
        for process, _ in self.running:
            assert process.stdout is not None
            lost += int(process.stdout.readline())
            process.wait(_TIMEOUT)
        return pl.concat([pl.read_parquet(path) for _, path in self.running]), lost


@contextmanager
def _reading(
    url: str, load: Load, tokens: dict[str, list[str]], folder: Path
) -> Iterator[ReaderProcesses]:
    """Start the readers; all streams are open when this returns."""
    everything = [
        (number - _OPERATORS, tokens["operator"][number], "/v1/answers/stream")
        for number in range(_OPERATORS)
    ]
    chosen = [
        (
            number,
            tokens["consumer"][number],
            f"/v1/answers/stream?query={query}"
            + "".join(f"&subject={quote(subject)}" for subject in subjects),
        )
        for number, query, subjects in _choose(load)
    ]
    readers = ReaderProcesses()
    try:
        for number, part in enumerate(
            [everything, *(chosen[first::_PROCESSES] for first in range(_PROCESSES))]
        ):
            rows, job = folder / f"rows-{number}.parquet", folder / f"job-{number}.json"
            place = urlsplit(url)
            fields: dict[str, Any] = {"host": place.hostname, "port": place.port}
            job.write_text(json.dumps(fields | {"streams": part, "rows": str(rows)}))
            command = [sys.executable, "-m", "benchmarks.stream_readers", str(job)]
            pipe = subprocess.PIPE
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
            readers.running.append((process, rows))
        for process, _ in readers.running:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError("a reader ended")
        yield readers
    finally:
        for process, _ in readers.running:
            if process.poll() is None:
                process.kill()


@contextmanager
def _reading_slowly(url: str, token: str) -> Iterator[None]:
    """Follow everything, and read one byte a second."""
    place = urlsplit(url)
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect((place.hostname, place.port))
        request = f"GET /v1/answers/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}"
        slow.sendall(f"{request}\r\n\r\n".encode())

        def read() -> None:
            with suppress(OSError):
                slow.recv(1)

        with _repeating(1.0, read):
            yield


@contextmanager
def _watching(pid: int) -> Iterator[list[int]]:
    """Collect the resident memory of a process, once a second."""
    process = psutil.Process(pid)
    sizes = [process.memory_info().rss]
    with _repeating(1.0, lambda: sizes.append(process.memory_info().rss)):
        yield sizes


def _download(url: str, token: str, begin: float) -> pl.DataFrame:
    """Return the answers about windows since this time, as the service gives them in a file."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=_TIMEOUT)
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(begin))
    headers = {"Authorization": f"Bearer {token}"}
    connection.request("GET", f"/v1/answers.jsonl?since={since}", headers=headers)
    response = connection.getresponse()
    text = response.read()
    if response.status != 200:
        raise RuntimeError(f"status {response.status}: {text.decode()}")
    return pl.read_ndjson(text).select(_COMPARED)


def _next_window(moment: float) -> int:
    return (int(moment) // SIZE + 1) * SIZE


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.time()))
