"""Settings for all tests: no deadlines, since the first call of a kernel compiles it."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.services import Postgres, postgres_server

settings.register_profile("tacit", deadline=None, print_blob=True)
settings.load_profile("tacit")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server that the tests of this process share."""
    with postgres_server() as server:
        yield server
