"""A quick check of a ledger: whether it is usable, and the state of a run. Read-only.

It checks only the last link of the chain; `verification` checks all links.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.ledger.alchemy import sa
from tacit.ledger.archives import Archives
from tacit.ledger.chain import RUN, link, seal, seal_charge
from tacit.ledger.database import Database, check_file
from tacit.ledger.lease import check_checkpoint
from tacit.ledger.tables import CHARGES, CHECKPOINTS, HEAD, RELEASES, RUNS
from tacit.ledger.upgrade import VERSION_TABLE, upgrade_ledger


@dataclass(frozen=True, slots=True)
class RunOverview:
    """The stored state of a run."""

    sound: bool
    """Whether its row is unchanged."""
    row: Any
    kept: bytes | None

    def checkpoint(self) -> bytes | None:
        """Return the checkpoint to resume from; raise LedgerError if it is damaged."""
        check_checkpoint(self.row, self.kept)
        return self.kept


@dataclass(frozen=True, slots=True)
class LedgerOverview:
    """The main facts about a ledger."""

    name: str
    """Its file or URL, without passwords."""
    releases: int
    subjects: int
    committed: int | None
    """The time of the last release, in microseconds since 1970."""
    sound: bool
    """Whether the last link of its chain is valid."""
    ahead: float | None
    """How many seconds the clock of its server is ahead of ours; None for a file."""
    run: RunOverview | None


def read_overview(place: str, run: str) -> LedgerOverview | None:
    """Look at a ledger and at one of its runs; None if the first run is going to create it."""
    if "://" not in place:
        path = Path(place).expanduser()
        check_file(path)
        if not path.exists():
            return None
    database = Database(place, create=False, read_only=True)
    try:
        with database.reading() as connection:
            tables = sa.inspect(connection)
            other = database.sqlite and tables.get_table_names()
            if not tables.has_table(VERSION_TABLE) and not other:
                return None
        upgrade_ledger(database, create=False)  # read-only, so this only checks the version
        with database.reading() as connection:
            return _read(connection, database, run)
    finally:
        database.close()


def _read(connection: sa.Connection, database: Database, run: str) -> LedgerOverview:
    head = connection.execute(sa.select(HEAD)).mappings().one()
    query = sa.select(RELEASES).order_by(RELEASES.c.number.desc()).limit(2)
    last = list(connection.execute(query).mappings())
    return LedgerOverview(
        database.name,
        int(head["releases"]),
        int(head["subjects"]),
        int(last[0]["committed"]) if last else None,
        _is_last_link_valid(connection, head, last),
        None if database.sqlite else _measure_clock_offset(connection),
        _read_run(connection, run),
    )


def _is_last_link_valid(connection: sa.Connection, head: Any, last: list[Any]) -> bool:
    """Return whether the last release matches the one before it, and the head matches it."""
    archives = Archives.read(connection, head, head["releases"] - 1)
    number, hashed = archives.last, archives.hash
    if last:
        number = int(last[0]["number"])
        query = sa.select(CHARGES).where(CHARGES.c.release == number)
        rows = connection.execute(query.order_by(CHARGES.c.place)).mappings()
        charges = [seal_charge(row) for row in rows]
        before = last[1]["hash"] if len(last) > 1 else archives.hash
        hashed = link(archives.chain_hash(number - 1, before), last[0], charges)
        if hashed != last[0]["hash"]:
            return False
    return bool(head["releases"] == number and head["hash"] == archives.chain_hash(number, hashed))


def _read_run(connection: sa.Connection, run: str) -> RunOverview | None:
    row = connection.execute(sa.select(RUNS).where(RUNS.c.run == run)).mappings().one_or_none()
    if row is None:
        return None
    query = sa.select(CHECKPOINTS.c.checkpoint).where(CHECKPOINTS.c.run == run)
    kept: bytes | None = connection.execute(query).scalar()
    sound = bool(row["seal"] == seal(RUN, row))
    return RunOverview(sound, row, kept)


def _measure_clock_offset(connection: sa.Connection) -> float:
    """Return the server's clock minus ours, in seconds, at the middle of the query."""
    begin = time.time()
    there = connection.execute(sa.select(sa.extract("epoch", sa.func.clock_timestamp()))).scalar()
    return float(there or 0) - (begin + time.time()) / 2
