"""Hundreds of kills by SIGKILL, of runs over files and from a broker: `make soak`.

In rounds, each with other data and other points in time. The suite has the broker with SQLite; the
file's name keeps this out of `make test`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import polars as pl
import pytest

from tests.engines.crashes import (
    SPEC,
    Crashes,
    Flood,
    check_released_once,
    filled,
    released_until,
    runs,
    specified,
    tuples,
)
from tests.engines.forking import Forks
from tests.engines.rounds import flood, kill_files, stop_when
from tests.engines.test_reloads import OTHER, check
from tests.services import Mosquitto, postgres_server

KILLS: Final = 200


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    """A server of forks."""
    with Forks() as server:
        yield server


def _rounds(folder: Path, once: Callable[[Path, int], int]) -> None:
    """Rounds until it was killed often enough."""
    kills = number = 0
    while kills < KILLS:
        place = folder / f"round-{number}"
        place.mkdir()
        found = once(place, number)
        assert found
        kills, number = kills + found, number + 1
        print(f"{kills} kills in {number} rounds", flush=True)


def test_files_with_sqlite(forks: Forks, tmp_path: Path) -> None:
    """Every window is released once, and the consumer sees it so."""
    _rounds(
        tmp_path,
        lambda folder, number: kill_files(forks, folder, str(folder / "spent.db"), 40, number),
    )


def test_files_with_postgresql(forks: Forks, tmp_path: Path) -> None:
    """The same where the ledger is a server's."""
    with postgres_server() as server:
        _rounds(
            tmp_path,
            lambda folder, number: kill_files(
                forks, folder, server.database(f"round{number}"), 40, number
            ),
        )


@pytest.mark.parametrize("postgres", [False, True], ids=["sqlite", "postgresql"])
def test_a_broker(forks: Forks, tmp_path: Path, postgres: bool) -> None:
    """No tuple that the broker acknowledged is missing from its window."""

    def killed(seed: int) -> Callable[[Crashes], None]:
        def again(crashes: Crashes) -> None:
            crashes.random = random.Random(seed)
            for _ in range(25):
                assert crashes.attempt() == -signal.SIGKILL, crashes.output.read_text()

        return again

    def round_(folder: Path, number: int, ledger: str) -> int:
        with Mosquitto(folder) as broker:
            return flood(forks, folder, broker, ledger, killed(number), 300)

    if not postgres:
        _rounds(tmp_path, lambda place, n: round_(place, n, str(place / "spent.db")))
        return
    with postgres_server() as server:
        _rounds(tmp_path, lambda place, n: round_(place, n, server.database(f"round{n}")))


def test_a_file_that_grows(forks: Forks, tmp_path: Path) -> None:
    """Until it is told to stop: then open windows are kept. Each unreadable line has one letter."""
    spec, ledger, answers = specified(tmp_path), str(tmp_path / "spent.db"), tmp_path / "a.jsonl"
    growing = tmp_path / "growing.jsonl"
    flow = Flood([tuples(1_700_000_040 + 30 * n, 50, n, 30) for n in range(30)])
    letters = tmp_path / "letters.jsonl"
    arguments = ["run", spec, growing, "--follow", "--ledger", ledger, "--to", answers]
    arguments += ["--dead-letters", letters]
    crashes = Crashes(forks, tmp_path / "log", arguments, answers)
    for begin in range(0, len(flow.frames), 3):
        with growing.open("ab") as file:
            for number, frame in enumerate(flow.frames[begin : begin + 3], begin):
                file.write(f"{{ {number}\n".encode())  # not JSON
                frame.write_ndjson(file)
        crashes.attempt()
    stop_when(crashes, lambda: released_until(ledger) >= flow.until)
    flow.check(spec, check_released_once(ledger, answers))
    refused = [json.loads(line)["raw"] for line in letters.read_bytes().splitlines()]
    assert refused == [f"{{ {number}" for number in range(len(flow.frames))]


def test_reloads(forks: Forks, tmp_path: Path) -> None:
    """The specification changes once, at a random moment, by SIGHUP or while nothing runs."""
    chance = random.Random(3)
    _rounds(tmp_path, lambda folder, _: _reload_and_kill(forks, folder, chance))


def _reload_and_kill(forks: Forks, folder: Path, chance: random.Random) -> int:
    """How often a run was killed, before and after its specification changed."""
    spec, old = specified(folder), folder / "old.yaml"
    old.write_text(SPEC)
    source, answers = folder / "input", folder / "answers.jsonl"
    filled(source, files=16, rows=300)
    for path in source.iterdir():
        frame = pl.read_parquet(path)
        frame.with_columns(level=pl.int_range(pl.len()) % 10).write_parquet(path)
    ledger = str(folder / "spent.db")
    arguments = ["run", spec, source, "--ledger", ledger, "--to", answers, "--json"]
    change_at, kills = chance.randrange(1, 4), 0
    for attempt in range(change_at + 4):
        before = _size(answers)
        pid = forks.start(folder / "log", *arguments)
        while _size(answers) == before and runs(pid):
            time.sleep(0.001)
        if attempt == change_at:
            spec.write_text(OTHER)
            os.kill(pid, signal.SIGHUP)
            time.sleep(chance.uniform(0, 0.1))
        time.sleep(chance.uniform(0, 0.03))
        os.kill(pid, signal.SIGKILL)
        ended = forks.wait(pid)
        kills += ended == -signal.SIGKILL
        if ended == 0:
            break
    assert forks.wait(forks.start(folder / "log", *arguments)) == 0, (folder / "log").read_text()
    assert kills > change_at
    check(check_released_once(ledger, answers), old, spec, source)
    return kills


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
