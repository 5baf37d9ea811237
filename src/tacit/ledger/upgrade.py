"""Versions of ledgers: a new one is laid, an older one brought up to date, a newer one refused."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

from tacit.errors import LedgerError
from tacit.ledger.alchemy import MISSING, sa
from tacit.ledger.chain import beginning, digest
from tacit.ledger.database import Database, now
from tacit.ledger.tables import HEAD

VERSION_TABLE: Final = "tacit_version"
REVISIONS: Final = ("0001", "0002")
"""All that there were, the present one last."""
STEPS = Path(__file__).with_name("migrations")
_LAYING: Final = 0x7461636974
"""What engines that lay or upgrade a ledger in PostgreSQL at once wait for."""


def bring_up_to_date(database: Database, *, create: bool) -> None:
    """Make sure that the ledger is there and of this version."""
    with database.reading() as connection:
        found = _revision(connection)
        if found == REVISIONS[-1]:
            return
        if found is None and (database.read_only or not create or _taken(connection, database)):
            raise LedgerError(f"{database.name} is not a ledger: it has none of its tables")
    if found is not None:
        _check_known(database, found)
    if database.read_only:
        raise LedgerError(
            f"the ledger {database.name} is of an older version ({found}, now {REVISIONS[-1]});"
            " the next run with it brings it up to date"
        )
    with database.writing() as connection:
        if not database.sqlite:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LAYING)))
        found = _revision(connection)
        if found != REVISIONS[-1]:  # or another engine has been quicker
            _upgrade(connection)
        if found is None:
            _begin(connection)


def _check_known(database: Database, found: str) -> None:
    if found not in REVISIONS:
        raise LedgerError(
            f"the ledger {database.name} was written by a newer Tacit: its version is {found},"
            f" this one knows up to {REVISIONS[-1]}; use that Tacit, or upgrade this one"
        )


def _revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    table = sa.table(VERSION_TABLE, sa.column("version_num"))
    found = connection.execute(sa.select(table.c.version_num)).scalar()
    return None if found is None else str(found)


def _taken(connection: sa.Connection, database: Database) -> bool:
    """Whether a file is somebody else's database; a server's may hold other tables too."""
    return database.sqlite and bool(sa.inspect(connection).get_table_names())


def _upgrade(connection: sa.Connection) -> None:
    try:
        from alembic import command
        from alembic.config import Config
    except ModuleNotFoundError as missing:
        raise LedgerError(MISSING) from missing

    config = Config()
    config.set_main_option("script_location", str(STEPS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _begin(connection: sa.Connection) -> None:
    """The head of a new ledger, before any release."""
    made, moment = secrets.token_hex(16), now()
    row = {
        "one": 1,
        "id": made,
        "created": moment,
        "releases": 0,
        "answers": 0,
        "hash": beginning(made, moment),
        "subjects": 0,
        "registry": digest(b""),
    }
    connection.execute(HEAD.insert().values(row))
