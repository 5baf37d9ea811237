"""A service that is killed while tuples come in and answers go out, both over HTTP."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import polars as pl

import tacit
from tacit.ledger.ledger import Ledger
from tacit.ledger.verification import verify
from tacit.service.roles import Role
from tacit.service.tokens import Tokens
from tests.engines.crashes import runs
from tests.engines.forking import Forks
from tests.service.services import bearer

SUBJECTS: Final = 300
REQUESTS: Final = 3
"""Requests in each window."""
QUERIES: Final = ("once", "often", "follows", "alone")
SPEC: Final = f"""
version: 1
streams: {{s: {{subject: who, time: at, columns: {{who: text, at: integer, kind: text}}}}}}
subjects: [{", ".join(f"t{n}" for n in range(SUBJECTS))}]
windows: {{size: 1 min}}
events:
  b: {{stream: s, where: "kind = 'b'"}}
  c: {{stream: s, where: "kind = 'c'"}}
queries:
  - {{name: once, consumer: city, pattern: c}}
  - {{name: often, consumer: city, times: c, up_to: 8}}
  - {{name: follows, consumer: clinic, pattern: "SEQ(b, c)"}}
  - {{name: alone, consumer: clinic, pattern: "AND(b, NOT c)"}}
"""
_PATIENCE: Final = 300.0
_CONTENT: Final = ("window_start", "subject", "query", "detected", "value")

Row = dict[str, Any]


def make_request(number: int, seed: int) -> list[Row]:
    """The tuples of a request: each subject has at most one of each kind in it."""
    window, part = divmod(number, REQUESTS)
    chance = random.Random(f"{seed} {number}")
    return [
        {"who": f"t{subject}", "at": 60 * window + 20 * part + place, "kind": kind}
        for place, kind in enumerate("bc")
        for subject in range(SUBJECTS)
        if chance.random() < 0.2
    ]


class ServeProcess:
    """`tacit serve` as a process of its own, which can be killed and started again."""

    def __init__(self, forks: Forks, folder: Path) -> None:
        self._forks = forks
        self._folder = folder
        self._pid: int | None = None
        self._starts = 0
        self.url = ""

    def start(self) -> None:
        """Start it; return when it listens."""
        spec, ledger = self._folder / "spec.yaml", self._folder / "ledger.db"
        self._starts += 1
        self._pid = pid = self._forks.start(
            self._log, "serve", spec, "--ledger", ledger, "--port", 0
        )
        wait_until(lambda: self._find_address() is not None or not runs(pid))
        address = self._find_address()
        assert address is not None, self._log.read_text()
        self.url = address

    def end(self, number: signal.Signals) -> int:
        """Send it a signal and wait; return how it ended."""
        assert self._pid is not None
        os.kill(self._pid, number)
        ended = self._forks.wait(self._pid)
        self._pid = None
        return ended

    def kill(self) -> None:
        """End it in the middle of what it does."""
        assert self.end(signal.SIGKILL) == -signal.SIGKILL, self._log.read_text()

    def stop(self) -> None:
        """Let it end cleanly."""
        assert self.end(signal.SIGTERM) == 0, self._log.read_text()

    def close(self) -> None:
        """Leave no process behind, whatever went wrong."""
        if self._pid is not None:
            self.end(signal.SIGKILL)

    @property
    def _log(self) -> Path:
        return self._folder / f"log-{self._starts}"

    def _find_address(self) -> str | None:
        lines = self._log.read_text().splitlines(keepends=True) if self._log.exists() else []
        for line in lines:
            if line.startswith("Listening at ") and line.endswith("\n"):
                return line.removeprefix("Listening at ").strip()
        return None


@dataclass
class Sender:
    """Sends numbered requests, each until it is acknowledged."""

    process: ServeProcess
    token: str
    seed: int
    acknowledged: int = 0
    breaks: int = 0
    """How often no response came."""
    unanswered: int = 0
    """How many requests had been stored although no response came."""
    last: int | None = None
    """The number of requests after which it ends; None means that it goes on."""

    def run(self) -> None:
        """Send until told to end. After a break, also repeat what was acknowledged before it."""
        broken = False
        with httpx.Client(headers=bearer(self.token), timeout=10) as client:
            while self.last is None or self.acknowledged < self.last:
                try:
                    if broken and self.acknowledged:
                        assert self._send(client, self.acknowledged - 1), "stored twice"
                    self.unanswered += self._send(client, self.acknowledged)
                except httpx.TransportError:
                    self.breaks += 1
                    broken = True
                    time.sleep(0.05)
                    continue
                broken = False
                self.acknowledged += 1
                time.sleep(0.005)

    def _send(self, client: httpx.Client, number: int) -> bool:
        """Send a request; return whether it had been stored before."""
        rows = make_request(number, self.seed)
        headers = {"Content-Type": "application/x-ndjson", "Tacit-Sequence": str(number)}
        response = client.post(
            self.process.url + "/v1/streams/s/tuples",
            content="".join(json.dumps(row) + "\n" for row in rows),
            headers=headers,
        )
        assert response.status_code == 200, response.text
        return bool(response.json()["duplicate"])


@dataclass
class Follower:
    """Follows answers, and connects again with the id of the last event that was complete."""

    process: ServeProcess
    token: str
    selected: Mapping[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    last: int | None = None
    """The id of the last event."""
    breaks: int = 0
    """How often a stream that had begun broke off."""
    until: int | None = None
    """The id after which it ends; None means that it goes on."""
    _moved: float = 0.0

    def run(self) -> None:
        """Read until the end."""
        with httpx.Client(headers=bearer(self.token), timeout=20) as client:
            self._moved = time.monotonic()
            while not self._done():
                self._check()
                begun = False
                headers = {} if self.last is None else {"Last-Event-ID": str(self.last)}
                place = self.process.url + "/v1/answers/stream"
                params = {**self.selected, "after": -1}
                try:
                    with client.stream("GET", place, params=params, headers=headers) as response:
                        assert response.status_code == 200
                        begun = True
                        for number, rows in _read_events(response.iter_lines(), self._check):
                            self._moved = time.monotonic()
                            self.rows += rows
                            self.last = number
                            if self._done():
                                return
                except httpx.TransportError:
                    self.breaks += begun
                    time.sleep(0.02)

    def _check(self) -> None:
        assert time.monotonic() - self._moved < _PATIENCE, "no event came for too long"

    def _done(self) -> bool:
        return self.until is not None and self.last is not None and self.last >= self.until


def _read_events(
    lines: Iterator[str], check: Callable[[], None]
) -> Iterator[tuple[int, list[Row]]]:
    """Yield events, as browsers do: one without the empty line at its end does not count."""
    fields: dict[str, str] = {}
    for line in lines:
        check()
        name, _, value = line.partition(": ")
        if line:
            fields[name] = value
        else:
            if "data" in fields:
                yield int(fields["id"]), json.loads(fields["data"])
            fields = {}


def survive_kills(forks: Forks, folder: Path, kills: int, seed: int) -> dict[str, int]:
    """Kill a service so many times between its input and its output, and check what came of it."""
    (folder / "spec.yaml").write_text(SPEC)
    with Ledger.open(str(folder / "ledger.db")) as ledger:
        tokens = Tokens(ledger.database)
        created = [
            tokens.create(role, name, creator="test")[0]
            for role, name in (
                (Role.SOURCE, "sensor"),
                (Role.OPERATOR, "ann"),
                (Role.CONSUMER, "city"),
            )
        ]
    process = ServeProcess(forks, folder)
    process.start()
    sender = Sender(process, created[0], seed)
    some = [f"t{n}" for n in range(0, SUBJECTS, 7)]
    everything = Follower(process, created[1])
    selected = Follower(process, created[2], {"query": "often", "subject": some})
    followers = [everything, selected]
    failures: list[BaseException] = []
    threads = [
        threading.Thread(target=_catch(run, failures), daemon=True)
        for run in (sender.run, *(follower.run for follower in followers))
    ]
    try:
        for thread in threads:
            thread.start()
        _kill(process, sender, followers, failures, kills, random.Random(seed))
        windows = sender.acknowledged // REQUESTS + 5
        # One request more closes the last of these windows.
        sender.last = windows * REQUESTS + 1
        answers = windows * SUBJECTS * len(QUERIES)
        for follower in followers:
            follower.until = answers - 1
        wait_until(lambda: bool(failures) or not any(map(threading.Thread.is_alive, threads)))
        if failures:
            raise failures[0]
        again = Follower(process, created[1], until=answers - 1)
        again.run()
        process.stop()
    finally:
        process.close()
    assert sender.breaks >= kills
    assert all(follower.breaks >= kills for follower in followers)
    _check(folder, everything, selected, again, windows, seed)
    return {"requests": sender.acknowledged, "unanswered": sender.unanswered, "answers": answers}


def _kill(
    process: ServeProcess,
    sender: Sender,
    followers: list[Follower],
    failures: list[BaseException],
    kills: int,
    chance: random.Random,
) -> None:
    """Kill it at random, but only after requests were taken and events read since its start."""
    for _ in range(kills):
        sent, seen = sender.acknowledged, [len(follower.rows) for follower in followers]

        def moved(sent: int = sent, seen: list[int] = seen) -> bool:
            read = [len(follower.rows) for follower in followers]
            busy = all(now > before for now, before in zip(read, seen, strict=True))
            return bool(failures) or (sender.acknowledged > sent + 2 * REQUESTS and busy)

        wait_until(moved)
        if failures:
            raise failures[0]
        time.sleep(chance.uniform(0, 0.3))
        process.kill()
        process.start()


def _check(
    folder: Path,
    everything: Follower,
    selected: Follower,
    again: Follower,
    windows: int,
    seed: int,
) -> None:
    answers = windows * SUBJECTS * len(QUERIES)
    assert [row["id"] for row in everything.rows] == list(range(answers))
    assert again.rows == everything.rows
    chosen = set(selected.selected["subject"])
    assert selected.rows == [
        row for row in everything.rows if row["query"] == "often" and row["subject"] in chosen
    ]
    with Ledger.open(str(folder / "ledger.db"), create=False) as ledger:
        verdict = verify(ledger)
    assert verdict.passed, [str(fault) for fault in verdict.faults]
    sent = [row for number in range(windows * REQUESTS) for row in make_request(number, seed)]
    true = tacit.detect(tacit.load(folder / "spec.yaml"), pl.DataFrame(sent)).polars()
    names = pl.col("subject", "query", "value").cast(pl.String)
    starts = pl.col("window_start").dt.strftime("%Y-%m-%dT%H:%M:%SZ")
    expected = true.with_columns(names, starts).select(_CONTENT).sort(_CONTENT[:3])
    told = pl.DataFrame(everything.rows, infer_schema_length=None)
    told = told.with_columns(names).select(_CONTENT).sort(_CONTENT[:3])
    assert told.equals(expected)
    assert expected["value"].drop_nulls().n_unique() > REQUESTS  # it counts, up to all of them


def _catch(run: Callable[[], None], failures: list[BaseException]) -> Callable[[], None]:
    def caught() -> None:
        try:
            run()
        except BaseException as error:
            failures.append(error)

    return caught


def wait_until(true: Callable[[], bool]) -> None:
    """Wait for something, but not forever."""
    deadline = time.monotonic() + _PATIENCE
    while not true():
        assert time.monotonic() < deadline, "nothing came of it"
        time.sleep(0.01)
