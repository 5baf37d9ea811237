"""A service over a file, which the tests of reading share."""

from __future__ import annotations

from collections.abc import Iterator

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
