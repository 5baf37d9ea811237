"""Every check of a ledger is made of both kinds: a SQLite file and a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tacit.ledger.ledger import Ledger
from tests.services import Postgres


@pytest.fixture(scope="session")
def database(postgres: Postgres) -> str:
    """The URL of a database that tests use one after the other."""
    return postgres.database("ledgers")


@pytest.fixture
def url(database: str) -> str:
    """The URL of a database with nothing in it."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return database


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a ledger can be made."""
    if request.param == "sqlite":
        return str(tmp_path / "a ledger?.db")
    return str(request.getfixturevalue("url"))


@pytest.fixture
def ledger(place: str) -> Iterator[Ledger]:
    """A new ledger."""
    with Ledger.open(place) as opened:
        yield opened
