"""A glance at a ledger: whether it can be used, and how far a run is. It changes nothing.

Only the last link of the chain is reckoned anew; `verifying` reckons all of it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.ledger.alchemy import sa
from tacit.ledger.archives import Archives
from tacit.ledger.chain import CHARGE, RUN, digest, link, seal
from tacit.ledger.database import Database
from tacit.ledger.tables import CHARGES, CHECKPOINTS, HEAD, RELEASES, RUNS
from tacit.ledger.upgrade import VERSION_TABLE, bring_up_to_date


@dataclass(frozen=True, slots=True)
class RunOverview:
    """How far a run is."""

    released: int
    """The number of its last release; 0 if there is none."""
    until: int | None
    """When the first window starts that is not released."""
    checkpoint: bytes | None
    sound: bool
    """Whether its row and its checkpoint are as they were written."""


@dataclass(frozen=True, slots=True)
class LedgerOverview:
    """What a ledger says of itself."""

    name: str
    """Where it is, without passwords."""
    releases: int
    subjects: int
    committed: int | None
    """When the last release was made, in microseconds since 1970."""
    sound: bool
    """Whether the last link of its chain holds."""
    ahead: float | None
    """How many seconds the clock of its server is ahead of ours; None for a file."""
    run: RunOverview | None


def glance(place: str, run: str) -> LedgerOverview | None:
    """Look at a ledger and at one of its runs; None where no ledger has been laid yet."""
    if "://" not in place and not Path(place).expanduser().exists():
        return None
    database = Database(place, create=False, read_only=True)
    try:
        with database.reading() as connection:
            tables = sa.inspect(connection)
            other = database.sqlite and tables.get_table_names()
            if not tables.has_table(VERSION_TABLE) and not other:
                return None
        bring_up_to_date(database, create=False)  # it is for reading, so this only looks
        with database.reading() as connection:
            return _look(connection, database, run)
    finally:
        database.close()


def _look(connection: sa.Connection, database: Database, run: str) -> LedgerOverview:
    head = connection.execute(sa.select(HEAD)).mappings().one()
    query = sa.select(RELEASES).order_by(RELEASES.c.number.desc()).limit(2)
    last = list(connection.execute(query).mappings())
    return LedgerOverview(
        database.name,
        int(head["releases"]),
        int(head["subjects"]),
        int(last[0]["committed"]) if last else None,
        _holds(connection, head, last),
        None if database.sqlite else _ahead(connection),
        _run(connection, run),
    )


def _holds(connection: sa.Connection, head: Any, last: list[Any]) -> bool:
    """Whether the last release follows from the one before it, and the head from it."""
    archives = Archives.read(connection, head)
    number, hashed = archives.last, archives.hash
    if last:
        number = int(last[0]["number"])
        query = sa.select(CHARGES).where(CHARGES.c.release == number)
        rows = connection.execute(query.order_by(CHARGES.c.place)).mappings()
        charges = [seal(CHARGE, row) for row in rows]
        before = last[1]["hash"] if len(last) > 1 else archives.hash
        hashed = link(archives.joined(number - 1, before), last[0], charges)
        if hashed != last[0]["hash"]:
            return False
    return bool(head["releases"] == number and head["hash"] == archives.joined(number, hashed))


def _run(connection: sa.Connection, run: str) -> RunOverview | None:
    row = connection.execute(sa.select(RUNS).where(RUNS.c.run == run)).mappings().one_or_none()
    if row is None:
        return None
    query = sa.select(CHECKPOINTS.c.checkpoint).where(CHECKPOINTS.c.run == run)
    kept: bytes | None = connection.execute(query).scalar()
    whole = (None if kept is None else digest(kept)) == row["checkpoint"]
    return RunOverview(
        int(row["released"]), row["until"], kept, bool(whole and row["seal"] == seal(RUN, row))
    )


def _ahead(connection: sa.Connection) -> float:
    """The server's clock against ours, halfway between asking and hearing."""
    begin = time.time()
    there = connection.execute(sa.select(sa.extract("epoch", sa.func.clock_timestamp()))).scalar()
    return float(there or 0) - (begin + time.time()) / 2
