"""`tacit plan --watch`: a new plan for every change, and word of it to the engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tacit.cli.watch import ReloadSignal, read_stamps
from tacit.planning.plan import Plan
from tacit.spec.yaml_reader import load
from tests.cli.small_runs import SPEC, specified, tacit, tuples
from tests.engines.forking import Forks


@contextmanager
def watched(
    folder: Path, program: Path, *more: str
) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A process that watches, and what it says."""
    command = [str(program), "plan", "spec.yaml", "--history", "history.csv"]
    command += ["-o", "plan.json", "--watch", *more]
    process = subprocess.Popen(
        command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    said: list[str] = []

    def collect() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            said.append(line)

    thread = threading.Thread(target=collect)
    thread.start()
    try:
        yield process, said
    finally:
        process.kill()
        process.wait(60)
        thread.join(60)
        assert process.stderr is not None
        process.stderr.close()


def until(said: list[str], words: str, times: int = 1) -> None:
    """Wait until it has said this so often."""
    deadline = time.monotonic() + 60
    while sum(words in line for line in said) < times:
        assert time.monotonic() < deadline, said
        time.sleep(0.05)


HEARING = """
import signal, time
signal.signal(signal.SIGHUP, lambda *_: print("hangup", flush=True))
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


def test_it_plans_again_tells_the_engine_outlives_mistakes_and_stops_when_asked(
    tmp_path: Path, forks: Forks
) -> None:
    spec = specified(tmp_path)
    tuples(tmp_path / "history.csv", seed=1, windows=20)
    engine = subprocess.Popen([sys.executable, "-c", HEARING], stdout=subprocess.PIPE, text=True)
    assert engine.stdout is not None
    assert engine.stdout.readline() == "ready\n"
    (tmp_path / "run.pid").write_text(f"{engine.pid}\n")
    try:
        with watched(tmp_path, forks.program, "--signal", "run.pid") as (process, said):
            until(said, f"sent a reload signal to process {engine.pid}")
            assert engine.stdout.readline() == "hangup\n"
            Plan.load(tmp_path / "plan.json", load(spec))
            spec.write_text(SPEC.replace("epsilon: 2", "epsilon: nonsense"))
            until(said, "no new plan; still watching")
            assert any(line.startswith("spec.yaml:12:") for line in said), said
            spec.write_text(SPEC.replace("epsilon: 2", "epsilon: 1"))
            until(said, "sent a reload signal", 2)
            assert engine.stdout.readline() == "hangup\n"
            Plan.load(tmp_path / "plan.json", load(spec))
            tuples(tmp_path / "history.csv", seed=2, windows=30)
            until(said, "sent a reload signal", 3)
            assert Plan.load(tmp_path / "plan.json", load(spec)).windows == 30 * 10
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
            until(said, "stopped")
    finally:
        engine.kill()
        engine.communicate(timeout=60)


def test_a_process_that_would_be_ended_by_the_signal_is_left_alone() -> None:
    """A number in an old file may be that of another process by now."""
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        assert "does not handle SIGHUP" in ReloadSignal(str(sleeper.pid))()
        assert sleeper.poll() is None
    finally:
        sleeper.kill()
        sleeper.wait(60)
    assert "is not running" in ReloadSignal(str(sleeper.pid))()


def test_a_file_without_a_process_number_is_reported(tmp_path: Path) -> None:
    (tmp_path / "pid").write_text("soon")
    assert "holds no process id" in ReloadSignal(str(tmp_path / "pid"))()
    assert "holds no process id" in ReloadSignal(str(tmp_path / "missing"))()
    assert "no reload signal sent" in ReloadSignal("1")()


def test_all_files_that_a_plan_is_made_from_are_watched(tmp_path: Path) -> None:
    (tmp_path / "who.txt").write_text("1\n")
    (tmp_path / "old").mkdir()
    for name in ("old/a.csv", "b1.csv", "b2.csv", "prior.yaml"):
        (tmp_path / name).write_text("x")
    spec = specified(tmp_path, SPEC + "subjects: {file: who.txt}\n")
    history = [f"s={tmp_path}/old", f"{tmp_path}/b*.csv"]
    seen = read_stamps(spec, history, tmp_path / "prior.yaml")
    assert {os.path.relpath(name, tmp_path) for name in seen} == {
        "spec.yaml", "who.txt", "old/a.csv", "b1.csv", "b2.csv", "prior.yaml",
    }  # fmt: skip
    (tmp_path / "old/c.csv").write_text("x")
    assert read_stamps(spec, history, tmp_path / "prior.yaml") != seen


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--watch"], "--watch needs -o"),
        (["--signal", "7"], "--signal needs --watch"),
    ],
)
def test_what_makes_no_sense_alone_is_refused(
    arguments: list[str], words: str, tmp_path: Path
) -> None:
    shown = tacit("plan", specified(tmp_path), *arguments)
    assert shown.exit_code == 2
    assert words in shown.output
