"""Runs that are killed by SIGKILL at random points: every window is released once."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.engines.crashes import (
    Crashes,
    check_complete,
    check_released_once,
    filled,
    holders,
    runs,
    specified,
)
from tests.engines.forking import Forks
from tests.engines.rounds import flood, wait
from tests.services import Mosquitto, postgres_server


def test_a_broker_with_sqlite_survives_kills_at_random_points(forks: Forks, tmp_path: Path) -> None:
    """No tuple that the broker acknowledged is missing from its window.

    `make soak` does it more often, with PostgreSQL, files and reloads.
    """
    with Mosquitto(tmp_path) as broker:

        def killed(crashes: Crashes) -> None:
            for _ in range(5):
                assert crashes.attempt() == -signal.SIGKILL, crashes.output.read_text()

        assert flood(forks, tmp_path, broker, str(tmp_path / "spent.db"), killed) == 5


@pytest.mark.soak
def test_a_broker_that_goes_away_and_returns_is_waited_for(forks: Forks, tmp_path: Path) -> None:
    with Mosquitto(tmp_path) as broker:

        def gone(crashes: Crashes) -> None:
            pid = crashes.started()
            for _ in range(2):
                time.sleep(0.7)
                broker.stop()
                time.sleep(0.3)
                broker.start()
            time.sleep(0.5)
            crashes.kill(pid)

        flood(forks, tmp_path, broker, str(tmp_path / "spent.db"), gone)


def test_a_database_that_stops_and_starts_again_is_waited_for(forks: Forks, tmp_path: Path) -> None:
    """In the middle of a run, more than once; SIGQUIT is as sudden as a crash."""
    with postgres_server() as server:
        ledger, spec = server.database("stopped"), specified(tmp_path)
        source, answers = filled(tmp_path / "input", files=150, rows=40), tmp_path / "answers.jsonl"
        arguments = ["run", spec, source, "--ledger", ledger, "--to", answers]
        crashes = Crashes(forks, tmp_path / "log", arguments, answers)
        pid = crashes.started()
        for how in (signal.SIGINT, signal.SIGQUIT):
            size = answers.stat().st_size if answers.exists() else 0
            wait(lambda size=size: answers.exists() and answers.stat().st_size > size, 60)  # type: ignore[misc]
            server.stop(how)
            time.sleep(0.3)
            server.start()
        assert forks.wait(pid) == 0, crashes.output.read_text()
        assert "is reachable again" in crashes.output.read_text()
        check_complete(spec, check_released_once(ledger, answers), source)


def test_the_engine_that_was_taken_over_ends_with_a_code_of_its_own(
    forks: Forks, tmp_path: Path
) -> None:
    """And the other goes on from where it was."""
    spec, ledger = specified(tmp_path), str(tmp_path / "spent.db")
    pids = []
    with Mosquitto(tmp_path) as broker:
        for number in range(2):
            url = (
                f"mqtt://127.0.0.1:{broker.port}/home/+?client=engine-{number}"
                "&columns=who:text,at:integer,kind:integer"
            )
            log, answers = tmp_path / f"log-{number}", tmp_path / f"answers-{number}.jsonl"
            pids.append(forks.start(log, "run", spec, url, "--ledger", ledger, "--to", answers))
            wait(lambda epoch=number + 1: holders(ledger) == epoch, 60)  # type: ignore[misc]
        wait(lambda: not runs(pids[0]), 30)
        wait(lambda: "the run home" in (tmp_path / "log-1").read_text(), 30)
        os.kill(pids[1], signal.SIGTERM)
        wait(lambda: not runs(pids[1]), 30)
    assert [forks.wait(pid) for pid in pids] == [9, 0], (tmp_path / "log-0").read_text()
    assert "taken over by another engine" in (tmp_path / "log-0").read_text()
