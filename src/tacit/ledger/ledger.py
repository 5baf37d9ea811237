"""The ledger: released answers, their charges, and the state of every run."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from tacit.ledger.alchemy import sa
from tacit.ledger.chain import RUN, seal
from tacit.ledger.database import Database
from tacit.ledger.lease import Lease
from tacit.ledger.registry import Registry
from tacit.ledger.tables import HEAD, RUNS
from tacit.ledger.upgrade import upgrade_ledger


class Ledger:
    """An open ledger: a SQLite file, or tables in a PostgreSQL database."""

    def __init__(self, database: Database, id: str) -> None:  # noqa: A002
        self.database = database
        self.id = id
        """A random id, generated when the ledger is created."""

    @classmethod
    def open(cls, place: str, *, create: bool = True, read_only: bool = False) -> Ledger:
        """Open the ledger in a file or at `postgresql://...`; create or upgrade it if necessary.

        Without `create` it must exist. With `read_only` it is not changed.
        """
        database = Database(place, create=create, read_only=read_only)
        try:
            upgrade_ledger(database, create=create)
            return cls(database, _id(database))
        except BaseException:
            database.close()
            raise

    @property
    def name(self) -> str:
        """The file or URL of the ledger, without passwords."""
        return self.database.name

    def take_over(self, run: str, fingerprint: str) -> Lease:
        """Take the right to release for a run; the previous engine loses it."""
        with self.database.writing() as connection:
            connection.execute(sa.select(HEAD).with_for_update()).one()
            mine = RUNS.c.run == run
            query = sa.select(RUNS).where(mine).with_for_update()
            found = connection.execute(query).mappings().one_or_none()
            row = _new_run(run, fingerprint) if found is None else dict(found)
            row["epoch"] += 1
            row["seal"] = seal(RUN, row)
            change = RUNS.insert() if found is None else RUNS.update().where(mine)
            connection.execute(change.values(row))
        return Lease(self.database, Registry(), run, row["epoch"], fingerprint)

    def close(self) -> None:
        """Close the database."""
        self.database.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Ledger {self.id}: {self.name}>"


def _id(database: Database) -> str:
    with database.reading() as connection:
        return str(connection.execute(sa.select(HEAD.c.id)).scalar_one())


def _new_run(run: str, fingerprint: str) -> dict[str, Any]:
    return {
        "run": run,
        "epoch": 0,
        "fingerprint": fingerprint,
        "checkpoint": None,
        "released": 0,
        "until": None,
        "dropped": 0,
    }
