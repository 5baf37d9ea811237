"""Settings for all tests: no deadlines, since the first call of a kernel compiles it."""

import gc
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.services import Postgres, postgres_server

settings.register_profile("tacit", deadline=None, print_blob=True, max_examples=50)
settings.load_profile("tacit")


def pytest_collection_finish() -> None:
    """Do not search modules and tests for garbage again and again: they stay to the end."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def pytest_unconfigure() -> None:
    """Free everything in the end: libraries report what is left."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server that the tests of this process share."""
    with postgres_server() as server:
        yield server
