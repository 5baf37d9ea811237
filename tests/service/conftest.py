"""A service over a file, which the tests of reading share."""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from typing import Any

import pytest

from tests.service.planner_forks import forked_plans
from tests.service.services import QUERIES, SUBJECTS, Running, running, write_tuples

WINDOWS = 8


@pytest.fixture(scope="session")
def forked_planner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Services plan in forks of a process that the tests of this process share.

    Tests of the planner's own process do without it.
    """
    with forked_plans(tmp_path_factory.mktemp("planner")):
        yield


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service whose run has read a file of 8 windows to its end."""
    folder = tmp_path_factory.mktemp("service")
    source = write_tuples(folder / "tuples.csv", WINDOWS)
    with running(folder, [source]) as service:
        service.wait(WINDOWS * SUBJECTS * QUERIES)
        yield service


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """What is compared in constant time from now on."""
    found: list[tuple[Any, Any]] = []
    compare = hmac.compare_digest

    def record(one: Any, other: Any) -> bool:
        found.append((one, other))
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", record)
    return found
