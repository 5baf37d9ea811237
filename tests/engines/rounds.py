"""Set-ups in which runs are killed, each as often as it takes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.engines.crashes import (
    Crashes,
    Flood,
    check_complete,
    check_released_once,
    filled,
    released_until,
    runs,
    specified,
    tuples,
)
from tests.engines.forking import Forks
from tests.engines.publishing import Publisher, open_session
from tests.services import Mosquitto


def kill_files(forks: Forks, folder: Path, ledger: str, kills: int, seed: int = 7) -> int:
    """Kill a run over files so many times or until it is through; how often it was killed."""
    spec = specified(folder)
    source, answers = filled(folder / "input", files=30, rows=400), folder / "answers.jsonl"
    arguments = ["run", spec, source, "--ledger", ledger, "--to", answers, "--json"]
    crashes = Crashes(forks, folder / "log", arguments, answers, random=Random(seed))
    crashes.until_done(kills)
    check_complete(spec, check_released_once(ledger, answers), source)
    # A run that is over has nothing new to say.
    before = answers.read_bytes()
    assert crashes.finish() == 0
    assert answers.read_bytes() == before
    return crashes.kills


def flood(
    forks: Forks,
    folder: Path,
    broker: Mosquitto,
    ledger: str,
    meanwhile: Callable[[Crashes], None],
    frames: int = 50,
) -> int:
    """Publish while something happens to a run; then let it catch up, and stop it.

    How often it was killed.
    """
    spec, answers = specified(folder), folder / "answers.jsonl"
    columns = "columns=who:text,at:integer,kind:integer"
    url = f"mqtt://127.0.0.1:{broker.port}/home/+?client=engine&{columns}"
    arguments = ["run", spec, url, "--ledger", ledger, "--to", answers]
    crashes = Crashes(forks, folder / "log", arguments, answers)
    flow = Flood([tuples(1_700_000_040 + 30 * n, 50, n, 30) for n in range(frames)])
    open_session(broker.port, "engine", "home/+")
    publisher = Publisher(broker.port, flow.frames, 0.1)
    publisher.start()
    meanwhile(crashes)
    publisher.finish()
    stop_when(crashes, lambda: released_until(ledger) >= flow.until)
    flow.check(spec, check_released_once(ledger, answers))
    return crashes.kills


def stop_when(crashes: Crashes, reached: Callable[[], bool]) -> None:
    """Let a run without an end go on until something is so; then it must stop cleanly."""
    before = len(crashes.output.read_text()) if crashes.output.exists() else 0
    pid = crashes.started()
    wait(lambda: "the run home" in crashes.output.read_text()[before:], 60)
    wait(reached, 60)
    os.kill(pid, signal.SIGTERM)
    wait(lambda: not runs(pid), 30)
    assert crashes.forks.wait(pid) == 0, crashes.output.read_text()
    assert "was stopped" in crashes.output.read_text()[before:]


def wait(reached: Callable[[], bool], seconds: float) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.05)
