"""The ledger: what was released, what it cost, and how far everything is."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from tacit.ledger.alchemy import sa
from tacit.ledger.chain import RUN, seal
from tacit.ledger.database import Database
from tacit.ledger.lease import Lease
from tacit.ledger.registry import Registry
from tacit.ledger.tables import HEAD, RUNS
from tacit.ledger.upgrade import bring_up_to_date


class Ledger:
    """An open ledger: a SQLite file, or tables in a PostgreSQL database."""

    def __init__(self, database: Database, id: str) -> None:  # noqa: A002
        self.database = database
        self.id = id
        """Made by lot with the ledger."""

    @classmethod
    def open(cls, place: str, *, create: bool = True, read_only: bool = False) -> Ledger:
        """The ledger in a file, or at `postgresql://...`; laid or brought up to date if need be.

        Without `create` it must be there. One that is opened for reading alone is not changed
        in any way.
        """
        database = Database(place, create=create, read_only=read_only)
        try:
            bring_up_to_date(database, create=create)
            return cls(database, _id(database))
        except BaseException:
            database.close()
            raise

    @property
    def name(self) -> str:
        """Where it is, without passwords."""
        return self.database.name

    def take_over(self, run: str, fingerprint: str) -> Lease:
        """The right to release for a run. Whoever had it before can release nothing more."""
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
        """Let go of the database."""
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
