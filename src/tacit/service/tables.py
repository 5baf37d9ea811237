"""The service's own tables in the ledger's database, and their version.

Times are microseconds since 1970 in UTC.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Final

from tacit.errors import LedgerError
from tacit.ledger.acts import ActKind, record_act
from tacit.ledger.alchemy import sa
from tacit.ledger.covered_rows import CoveredRow
from tacit.ledger.database import Database

VERSION: Final = 5
_COVERED_SINCE: Final = 4
"""The version since which acts cover tokens, versions and proposals."""
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


class ProposalState(StrEnum):
    """How far a proposal is."""

    PLANNING = "planning"
    READY = "ready"
    """Planned: it waits for an operator."""
    FAILED = "failed"
    """There is no plan for it."""
    APPROVED = "approved"
    REJECTED = "rejected"
    WITHDRAWN = "withdrawn"


OPEN: Final = (ProposalState.PLANNING, ProposalState.READY, ProposalState.FAILED)
_PROPOSED: Final = ("run", "number", "created", "role", "author", "kind", "change", "automatic")
"""What never changes in a proposal."""
_UNDECIDED: Final = ("decided", "decider", "note", "version")
"""What a decision alone changes."""


def create_tables(database: Database) -> None:
    """Create the service's tables if they are missing; refuse those of a newer version."""
    with database.reading() as connection:
        version = _read_version(connection)
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
        if version is not None and version < _COVERED_SINCE:
            _cover_earlier(connection, version)


def _read_version(connection: sa.Connection) -> int | None:
    if not sa.inspect(connection).has_table(SERVICE.name):
        return None
    found: int | None = connection.execute(sa.select(SERVICE.c.version)).scalar()
    return found


# What acts cover


def cover_token(identity: str) -> list[CoveredRow]:
    """Cover a token that was created."""
    columns = [column.name for column in TOKENS.c if column.name != "revoked"]
    key = {"id": identity}
    return [CoveredRow(TOKENS, key, "created", columns), cover_revocation(identity)]


def cover_revocation(identity: str) -> CoveredRow:
    """Cover when a token was revoked."""
    return CoveredRow(TOKENS, {"id": identity}, "revoked", ["revoked"])


def cover_version(run: str, number: int) -> CoveredRow:
    """Cover a version, which never changes."""
    return CoveredRow(VERSIONS, {"run": run, "number": number}, "created", VERSIONS.c.keys())


def cover_proposal(run: str, number: int) -> list[CoveredRow]:
    """Cover a proposal that is not decided; what the planner writes into it may change."""
    key = {"run": run, "number": number}
    undecided = {"state": [str(state) for state in OPEN]}
    return [
        CoveredRow(PROPOSALS, key, "proposed", _PROPOSED),
        CoveredRow(PROPOSALS, key, "decided", _UNDECIDED, undecided),
    ]


def cover_decision(run: str, number: int) -> CoveredRow:
    """Cover all that was still open in a proposal, once it is decided."""
    columns = [column.name for column in PROPOSALS.c if column.name not in _PROPOSED]
    return CoveredRow(PROPOSALS, {"run": run, "number": number}, "decided", columns)


def _cover_earlier(connection: sa.Connection, version: int) -> None:
    """Record an act that covers the rows of an earlier version of Tacit, as they are now."""
    covers = list(_list_earlier(connection))
    if covers:
        detail = {"from": version, "to": VERSION}
        record_act(connection, "upgrade", ActKind.UPGRADED, "the service's tables", detail, covers)


def _list_earlier(connection: sa.Connection) -> Iterator[CoveredRow]:
    for identity in connection.execute(sa.select(TOKENS.c.id)).scalars().all():
        yield from cover_token(identity)
    for run, number in connection.execute(sa.select(*VERSIONS.c["run", "number"])).all():
        yield cover_version(run, number)
    columns = PROPOSALS.c["run", "number", "decided"]
    for run, number, decided in connection.execute(sa.select(*columns)).all():
        yield from cover_proposal(run, number)
        if decided is not None:
            yield cover_decision(run, number)
