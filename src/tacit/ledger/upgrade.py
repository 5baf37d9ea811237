"""Create and upgrade ledgers; refuse those of a newer version."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

from tacit.errors import LedgerError, MissingExtraError, OutdatedLedgerError
from tacit.ledger.alchemy import MISSING, sa
from tacit.ledger.chain import digest, hash_beginning
from tacit.ledger.database import Database, now
from tacit.ledger.tables import HEAD

VERSION_TABLE: Final = "tacit_version"
REVISIONS: Final = ("0001", "0002", "0003", "0004", "0005")
"""All revisions, the current one last."""
STEPS = Path(__file__).with_name("migrations")
_UPGRADE_LOCK: Final = 0x7461636974
"""The advisory lock for creating or upgrading a ledger in PostgreSQL."""


def upgrade_ledger(database: Database, *, create: bool) -> None:
    """Create the ledger, or upgrade it to this version, if necessary."""
    with database.reading() as connection:
        found = _revision(connection)
        if found == REVISIONS[-1]:
            return
        if found is None and (
            database.read_only or not create or _is_other_database(connection, database)
        ):
            raise LedgerError(f"{database.name} is not a ledger: it has no tables of a ledger")
    if found is not None:
        _check_known(database, found)
    if database.read_only:
        raise OutdatedLedgerError(
            f"the ledger {database.name} has an older version ({found}, now {REVISIONS[-1]});"
            " the next run upgrades it"
        )
    with database.writing() as connection:
        if not database.sqlite:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_UPGRADE_LOCK)))
        found = _revision(connection)
        if found != REVISIONS[-1]:  # else another engine has upgraded it
            _upgrade(connection)
        if found is None:
            _insert_head(connection)


def _check_known(database: Database, found: str) -> None:
    if found not in REVISIONS:
        raise LedgerError(
            f"the ledger {database.name} was written by a newer Tacit: its version is {found},"
            f" this one supports up to {REVISIONS[-1]}; use that Tacit, or upgrade this one"
        )


def _revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    table = sa.table(VERSION_TABLE, sa.column("version_num"))
    found = connection.execute(sa.select(table.c.version_num)).scalar()
    return None if found is None else str(found)


def _is_other_database(connection: sa.Connection, database: Database) -> bool:
    """Return whether a file is another program's database; servers may have other tables."""
    return database.sqlite and bool(sa.inspect(connection).get_table_names())


def _upgrade(connection: sa.Connection) -> None:
    try:
        from alembic import command
        from alembic.config import Config
    except ModuleNotFoundError as missing:
        raise MissingExtraError(MISSING) from missing

    config = Config()
    config.set_main_option("script_location", str(STEPS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _insert_head(connection: sa.Connection) -> None:
    """Insert the head of a new ledger."""
    identity, moment = secrets.token_hex(16), now()
    row = {
        "one": 1,
        "id": identity,
        "created": moment,
        "releases": 0,
        "answers": 0,
        "hash": hash_beginning(identity, moment),
        "subjects": 0,
        "registry": digest(b""),
    }
    connection.execute(HEAD.insert().values(row))
