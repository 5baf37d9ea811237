"""The service's own tables in the ledger's database, and their version.

Times are microseconds since 1970 in UTC.
"""

from __future__ import annotations

from typing import Final

from tacit.errors import LedgerError
from tacit.ledger.alchemy import sa
from tacit.ledger.database import Database

VERSION: Final = 2
METADATA = sa.MetaData()

SERVICE = sa.Table(
    "tacit_service",
    METADATA,
    sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
)
"""One row: the version of these tables."""

TOKENS = sa.Table(
    "tacit_tokens",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("digest", sa.LargeBinary, nullable=False),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("streams", sa.Text, nullable=False),
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("created", sa.BigInteger, nullable=False),
    sa.Column("creator", sa.Text, nullable=False),
    sa.Column("expires", sa.BigInteger, nullable=True),
    sa.Column("revoked", sa.BigInteger, nullable=True),
)
"""Tokens: the hash of each secret, what it allows, and who created it."""

SESSIONS = sa.Table(
    "tacit_sessions",
    METADATA,
    sa.Column("digest", sa.LargeBinary, primary_key=True),
    sa.Column("token", sa.Text, nullable=False),
    sa.Column("expires", sa.BigInteger, nullable=False),
)
"""Sessions of the console: the hash of each cookie, and the token that was used to log in."""


def create_tables(database: Database) -> None:
    """Create the service's tables if they are missing; refuse those of a newer version."""
    with database.reading() as connection:
        found = sa.inspect(connection).has_table(SERVICE.name)
        version = connection.execute(sa.select(SERVICE.c.version)).scalar() if found else None
    if version is not None and version > VERSION:
        raise LedgerError(
            f"the ledger {database.name} was used by a newer Tacit: its service tables have"
            f" version {version}, this one supports up to {VERSION}; use that Tacit"
        )
    if version == VERSION:
        return
    with database.writing() as connection:
        METADATA.create_all(connection, checkfirst=True)
        connection.execute(SERVICE.delete())
        connection.execute(SERVICE.insert().values(version=VERSION))
