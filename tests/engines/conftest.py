"""Runs that start at once."""

from collections.abc import Iterator

import pytest

from tests.engines.forking import Forks


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """A server of forks."""
    with Forks() as server:
        yield server
