"""Settings for all tests: no deadlines, since the first call of a kernel compiles it."""

import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import settings

from tests.cases import choose_cases
from tests.engines.forking import Forks
from tests.new_ledgers import create_quickly
from tests.services import Kafka, Postgres, postgres_server

settings.register_profile("tacit", deadline=None, print_blob=True, max_examples=30)
settings.register_profile("thorough", deadline=None, print_blob=True, max_examples=500)
settings.load_profile("tacit")
create_quickly()

WAITING: Final = (
    "tests/cli/test_outputs.py",
    "tests/cli/test_reproduce.py",
    "tests/connectors/",
    "tests/engines/test_crashes.py",
    "tests/service/",
    "tests/test_notebooks.py",
)
"""Tests that take long, or wait for servers and processes: other workers compute meanwhile."""


@pytest.hookimpl(optionalhook=True)  # Flink has an environment without it
def pytest_xdist_auto_num_workers() -> int:
    """Return the number of workers: one more than processors, since some of them wait."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with tests that wait, the rest stays in order; leave some cases to `make soak`."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("cases") and not item.get_closest_marker("soak"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, found in cases.items():
        (number,) = next(found[0].iter_markers("cases")).args
        chosen = choose_cases(name, len(found), number)
        for place, item in enumerate(found):
            if place not in chosen:
                item.add_marker("soak")
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    """Return when a test comes: those that share a Kafka server go to one worker, and begin."""
    if "kafka" in getattr(item, "fixturenames", ()):
        return 0
    return 1 if item.nodeid.startswith(WAITING) else 2


class Examples:
    """Leaves modules of the package without examples out: to search all of them takes seconds."""

    source: Final = Path(__file__).parent.parent / "src"

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Ignore a module in which there is no prompt."""
        if collection_path.suffix != ".py" or self.source not in collection_path.parents:
            return None
        return None if b">>>" in collection_path.read_bytes() else True


def pytest_configure(config: pytest.Config) -> None:
    """Look at the files of the package too; a conftest sees those of its own folder."""
    config.pluginmanager.register(Examples())


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Do not search test modules for examples in docstrings: they have none."""
    found = yield
    return [one for one in found if not isinstance(one, DoctestModule)]


def pytest_collection() -> None:
    """Do not search for garbage while modules are imported: hardly anything is."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Do not search modules and tests for garbage again and again: they stay to the end."""
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(10_000, 20, 20)


def pytest_unconfigure() -> None:
    """Free everything in the end: libraries report what is left."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """Starts runs at once, as forks of a process that the tests of this process share."""
    with Forks() as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server that the tests of this process share."""
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A Kafka server that the tests of this process share; a test that stops it starts it again."""
    server = Kafka(tmp_path_factory.mktemp("kafka"), "tacit", "open sesame")
    server.start()
    yield server
    server.stop()
