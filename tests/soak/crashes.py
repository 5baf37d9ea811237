"""Hundreds of kills by SIGKILL, against files, PostgreSQL and a broker: `make soak`.

The same set-ups as in the suite, in rounds, each with other data and other points in time. The
file's name keeps it out of `make test`.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.engines.crashes import Crashes
from tests.engines.forking import Forks
from tests.engines.rounds import flood, kill_files
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
