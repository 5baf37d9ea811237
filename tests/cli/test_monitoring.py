"""A run as its operator has it: log, metrics, signals, and nothing of what events hold."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import polars as pl
import pytest

from tests.cli.small_runs import tacit
from tests.engines.forking import Forks
from tests.services import free_port

MARKER = "zq7marker"
SPEC = """
version: 1
streams: {s: {subject: who, time: at, unit: s}}
windows: {size: 1 min, lateness: 10 s}
events:
  a: {stream: s, where: "kind = 'a'"}
  b: {stream: s, where: "kind = 'b'"}
private:
  - {pattern: b, epsilon: 1}
queries:
  - {name: seen, consumer: us, pattern: a}
  - {name: guarded, consumer: us, pattern: "AND(a, b)"}
mechanism: uniform
"""
SUBJECTS = [f"{MARKER}-{n}" for n in range(5)]


class Service:
    """`tacit run` with tuples on standard input."""

    def __init__(self, folder: Path, program: Path, *more: str) -> None:
        self.folder = folder
        self.spec = folder / "spec.yaml"
        self.spec.write_text(SPEC)
        (folder / "subjects.txt").write_text("\n".join(SUBJECTS))
        self.port = free_port()
        command = [str(program), "run", "spec.yaml", "-"]
        command += ["--subjects", "subjects.txt", "--ledger", "spent.db", "--to", "answers.jsonl"]
        command += ["--log", "json", "--log-level", "debug", "--metrics", str(self.port)]
        self.process = subprocess.Popen(
            [*command, "--pid-file", "run.pid", *more],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.said: list[str] = []
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line.decode())

    def send(self, *tuples: dict[str, object] | str) -> None:
        """Tuples, or lines as they are."""
        assert self.process.stdin is not None
        for one in tuples:
            line = one if isinstance(one, str) else json.dumps(one)
            self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def minute(self, number: int) -> None:
        """What everybody does in a minute."""
        self.send(
            *(
                {"who": who, "at": 60 * number + 9 * n, "kind": "ab"[(n + number) % 2], "x": MARKER}
                for n, who in enumerate(SUBJECTS)
            )
        )

    def metrics(self) -> dict[str, float]:
        """What is scraped now; nothing while it is not served yet."""
        try:
            address = f"http://127.0.0.1:{self.port}/metrics"
            with urllib.request.urlopen(address, timeout=5) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return {}
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    def until(self, reached: Callable[[dict[str, float]], bool]) -> None:
        """Wait until metrics are so."""
        deadline = time.monotonic() + 60
        while not reached(self.metrics()):
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, (self.metrics(), self.said)
            time.sleep(0.05)

    def end(self) -> int:
        """No more tuples; how it ends."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.ended()

    def ended(self) -> int:
        """Wait for its end; its exit code."""
        code = self.process.wait(60)
        self._thread.join(60)
        return code

    def __enter__(self) -> Service:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait(60)
        self._thread.join(60)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None and not stream.closed:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def test_a_run_is_reloaded_while_it_goes_and_logs_nothing_that_events_hold(
    tmp_path: Path, forks: Forks
) -> None:
    with Service(tmp_path, forks.program) as service:
        for number in range(3):
            service.minute(number)
        service.until(lambda found: found.get("tacit_windows_released_total") == 2)
        service.send(
            f'{{"who": "{MARKER}", "at": nonsense {MARKER}}}',
            MARKER,
            {"who": f"{MARKER}-unknown", "at": 121, "kind": "a", "x": MARKER},
            {"who": SUBJECTS[0], "at": 1, "kind": MARKER, "x": MARKER},
            {"who": SUBJECTS[0], "at": MARKER, "kind": "a", "x": MARKER},
        )
        running = int((tmp_path / "run.pid").read_text())
        service.spec.write_text(SPEC.replace("size: 1 min", "size: 2 min"))
        os.kill(running, signal.SIGHUP)
        service.until(lambda found: found["tacit_reloads_refused_total"] == 1)
        service.spec.write_text(SPEC.replace("name: seen", "name: heard"))
        os.kill(running, signal.SIGHUP)
        service.until(lambda found: found["tacit_reloads_total"] == 1)
        for number in range(3, 6):
            service.minute(number)
        assert service.end() == 0, service.said
    assert not (tmp_path / "run.pid").exists()
    answers = pl.read_ndjson(tmp_path / "answers.jsonl")
    exact = answers.filter(pl.col("query") != "guarded")
    names = exact.group_by("window_start").agg(pl.col("query").unique()).sort("window_start")
    assert names["query"].to_list() == [["seen"]] * 3 + [["heard"]] * 3
    minute = exact["window_start"].str.slice(14, 2).cast(pl.Int64)
    place = exact["subject"].str.slice(-1).cast(pl.Int64)
    assert (exact["detected"] == ((place + minute) % 2 == 0)).all()
    logged = [json.loads(line) for line in service.said if line.startswith('{"time"')]
    assert any("specification is reloaded" in entry["message"] for entry in logged)
    assert any(entry["message"].startswith("released ") for entry in logged)
    assert MARKER not in "".join(service.said)


def test_asked_to_stop_it_ends_cleanly_and_says_so(tmp_path: Path, forks: Forks) -> None:
    with Service(tmp_path, forks.program) as service:
        for number in range(3):
            service.minute(number)
        service.until(lambda found: found.get("tacit_windows_released_total") == 2)
        service.process.send_signal(signal.SIGTERM)
        assert service.ended() == 0, service.said
    assert any("stopping after SIGTERM" in line for line in service.said)
    assert any("was stopped" in line for line in service.said)
    assert pl.read_ndjson(tmp_path / "answers.jsonl").height == 2 * 5 * 2


@pytest.mark.parametrize("option", ["--metrics", "--pid-file"])
def test_what_is_for_runs_that_last_needs_a_ledger(option: str, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    shown = tacit("run", tmp_path / "spec.yaml", "x.csv", option, "9464")
    assert shown.exit_code == 2
    assert f"{option} needs --ledger" in shown.output


def test_a_wrong_address_for_metrics_is_reported(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    ledger = tmp_path / "spent.db"
    arguments = ["x.csv", "--ledger", str(ledger), "--metrics", "nowhere"]
    shown = tacit("run", tmp_path / "spec.yaml", *arguments)
    assert shown.exit_code == 2
    assert "expected [HOST:]PORT" in shown.output
