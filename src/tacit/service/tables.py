"""The service's own tables in the ledger's database, and their version.

Times are microseconds since 1970 in UTC.
"""

from __future__ import annotations

from typing import Final

from tacit.errors import LedgerError
from tacit.ledger.alchemy import sa
from tacit.ledger.database import Database

VERSION: Final = 5
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


VERSIONS = sa.Table(
    "tacit_versions",
    METADATA,
    sa.Column("run", sa.Text, primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("created", sa.BigInteger, nullable=False),
    sa.Column("author", sa.Text, nullable=False),
    sa.Column("summary", sa.Text, nullable=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
    sa.Column("plan", sa.Text, nullable=False),
    sa.Column("files", sa.Text, nullable=True),
)
"""Versions of the specification with their plans, in order; the last one is in use or about to be.
`plan` is the plan's digest, `files` that of the files that a version was read from."""

PROPOSALS = sa.Table(
    "tacit_proposals",
    METADATA,
    sa.Column("run", sa.Text, primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("created", sa.BigInteger, nullable=False),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("author", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("change", sa.Text, nullable=False),
    sa.Column("automatic", sa.Boolean, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("base", sa.BigInteger, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("effect", sa.Text, nullable=True),
    sa.Column("content", sa.LargeBinary, nullable=True),
    sa.Column("decided", sa.BigInteger, nullable=True),
    sa.Column("decider", sa.Text, nullable=False),
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("version", sa.BigInteger, nullable=True),
)
"""Proposals: what should change, how far they are, what they would do, and who decided."""


ANALYSES = sa.Table(
    "tacit_history_analyses",
    METADATA,
    sa.Column("run", sa.Text, primary_key=True),
    sa.Column("job", sa.Text, primary_key=True),
    sa.Column("content", sa.Text, nullable=False),
)
"""What was computed from history, as JSON: for operators alone. `job` is the hash of what was to be
computed for which specification from which sources."""


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
