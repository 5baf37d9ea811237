"""New ledgers for tests, quickly: what Alembic has done for one is done again for the others.

Tests create about a thousand ledgers. The first one of each kind that a process creates goes all
the way through the migrations; the statements that change it are recorded, and the next ones get
them at once. Ledgers that are there already are upgraded by Alembic, as always.

Ledgers in files do not wait for the disk, which matters only if the whole machine goes down.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from tacit.ledger import database, upgrade

open_sqlite: Final = database._sqlite
"""Opens a ledger in a file as a run does; it waits for the disk."""
_migrate: Final = upgrade._upgrade
_recorded: Final[dict[tuple[str, Path], list[tuple[str, Any]]]] = {}
"""What was done for a new ledger, by the kind of its database and where the migrations are."""


def create_quickly() -> None:
    """Let all new ledgers of this process be created so."""
    upgrade._upgrade = _create_or_upgrade
    database._sqlite = _open_without_waiting


def _open_without_waiting(path: Path, *, create: bool, read_only: bool) -> sa.Engine:
    engine = open_sqlite(path, create=create, read_only=read_only)

    @sa.event.listens_for(engine, "connect")
    def connect(connection: Any, _: Any) -> None:
        connection.execute("PRAGMA synchronous = OFF")

    return engine


def _create_or_upgrade(connection: sa.Connection) -> None:
    kind = connection.dialect.name, upgrade.STEPS
    if upgrade._revision(connection) is not None:
        _migrate(connection)
    elif kind in _recorded:
        for statement, values in _recorded[kind]:
            connection.exec_driver_sql(statement, values).close()
    else:
        with _recording(connection) as done:
            _migrate(connection)
        _recorded[kind] = done


@contextmanager
def _recording(connection: sa.Connection) -> Iterator[list[tuple[str, Any]]]:
    done: list[tuple[str, Any]] = []

    def note(_: Any, __: Any, statement: str, values: Any, *___: Any) -> None:
        if not statement.lstrip().startswith(("SELECT", "PRAGMA")):
            done.append((statement, values or None))

    sa.event.listen(connection, "before_cursor_execute", note)
    try:
        yield done
    finally:
        sa.event.remove(connection, "before_cursor_execute", note)
