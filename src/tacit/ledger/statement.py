"""Statements: who was charged what and when, what is left, and what comes next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tacit.errors import LedgerError, nearest
from tacit.ledger import balances
from tacit.ledger.accounts import Key
from tacit.ledger.alchemy import sa
from tacit.ledger.archives import NEVER, ArchivedRun, Archives
from tacit.ledger.codec import unpack_ids
from tacit.ledger.ledger import Ledger
from tacit.ledger.registry import Registry
from tacit.ledger.tables import BALANCES, CHARGES, HEAD, RELEASES, RUNS


@dataclass(frozen=True, slots=True)
class RunStatement:
    """A run as far as it is."""

    run: str
    releases: int
    windows: int
    answers: int
    until: int | None
    """When the first window starts that is not released."""


@dataclass(frozen=True, slots=True)
class Horizon:
    """What was spent for a private pattern in one horizon, by the subject who spent most."""

    private: str
    start: int
    length: int
    subjects: int
    """How many have spent anything."""
    spent: int
    limit: int | None
    """By the last charge in it."""
    amount: int
    """What a window costs, by the last charge in it."""
    exhausted: int
    """How many cannot pay for a window any more."""

    @property
    def end(self) -> int:
        """When the next horizon starts."""
        return self.start + self.length

    @property
    def left(self) -> int | None:
        """What the one who spent most may still spend; None: there is no limit."""
        return None if self.limit is None else max(0, self.limit - self.spent)

    @property
    def allowed(self) -> int | None:
        """How many windows a whole horizon can pay for; None: there is no limit."""
        return None if self.limit is None else self.limit // self.amount


@dataclass(frozen=True, slots=True)
class Entry:
    """What consecutive windows of one release cost a subject."""

    private: str
    release: int
    run: str
    committed: int
    first: int
    windows: int
    slide: int
    amount: int
    """For each of the windows."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A ledger in figures, or what it says of one subject."""

    ledger: str
    created: int
    releases: int
    answers: int
    subjects: int
    hash: str
    """Of the last release."""
    subject: str | None
    archived: int
    """The last release that was moved to an archive; 0 if none was."""
    runs: tuple[RunStatement, ...]
    horizons: tuple[Horizon, ...]
    """In order of private pattern and time."""
    entries: tuple[Entry, ...]
    """What the subject was charged by releases that are not archived, in order; nothing where it is
    of all subjects."""


def statement(
    ledger: Ledger, *, subject: str | None = None, private: str | None = None
) -> Statement:
    """What the ledger says: of all, of one subject, or of one private pattern."""
    with ledger.database.reading() as connection:
        head = connection.execute(sa.select(HEAD)).mappings().one()
        archives = Archives.read(connection, head)
        number = None if subject is None else subject_id(connection, subject)
        check_charged(connection, private)
        return Statement(
            ledger.id,
            head["created"],
            head["releases"],
            head["answers"],
            head["subjects"],
            _last_hash(connection, archives).hex(),
            subject,
            archives.last,
            tuple(_runs(connection, archives.runs)),
            tuple(_horizons(connection, number, private)),
            () if number is None else tuple(_entries(connection, number, private)),
        )


def subject_id(connection: sa.Connection, subject: str) -> int:
    """The id of a subject that the ledger knows."""
    registry = Registry()
    registry.refresh(connection)
    number = int(registry.ids(pa.array([subject], pa.large_string()))[0])
    if number < 0:
        raise LedgerError(f"the ledger knows no subject called '{subject}'")
    return number


def check_charged(connection: sa.Connection, private: str | None) -> None:
    """Refuse the name of a private pattern that nobody was ever charged for."""
    if private is None:
        return
    known = list(connection.execute(sa.select(BALANCES.c.private).distinct()).scalars())
    if private not in known:
        hint = nearest(private, known)
        raise LedgerError(f"nothing was charged for a private pattern called '{private}'.{hint}")


def _last_hash(connection: sa.Connection, archives: Archives) -> bytes:
    query = sa.select(RELEASES.c.hash).order_by(RELEASES.c.number.desc()).limit(1)
    found: bytes | None = connection.execute(query).scalar()
    return archives.hash if found is None else found


def _runs(connection: sa.Connection, archived: Mapping[str, ArchivedRun]) -> Iterator[RunStatement]:
    totals = sa.select(
        RUNS.c.run,
        sa.func.count(RELEASES.c.number),
        sa.func.coalesce(sa.func.sum(RELEASES.c.windows), 0),
        sa.func.coalesce(sa.func.sum(RELEASES.c.answers), 0),
        RUNS.c.until,
    ).select_from(RUNS.outerjoin(RELEASES, RELEASES.c.run == RUNS.c.run))
    grouped = totals.group_by(RUNS.c.run, RUNS.c.until).order_by(RUNS.c.run)
    for run, releases, windows, answers, until in connection.execute(grouped):
        before = archived.get(run, NEVER)
        yield RunStatement(
            run,
            int(releases) + before.releases,
            int(windows) + before.windows,
            int(answers) + before.answers,
            until,
        )


def _horizons(
    connection: sa.Connection, number: int | None, private: str | None
) -> Iterator[Horizon]:
    query = sa.select(*BALANCES.c["private", "horizon", "horizon_start"])
    if private is not None:
        query = query.where(BALANCES.c.private == private)
    keys = connection.execute(
        query.order_by(BALANCES.c.private, BALANCES.c.horizon, BALANCES.c.horizon_start)
    )
    for key in [(row[0], row[1], row[2]) for row in keys]:
        spent = balances.read(connection, key)
        if number is not None:
            spent = spent[number : number + 1]
        if not spent.any():
            continue
        terms = _terms(connection, key, number)
        beyond = 0
        if terms["limit"] is not None:
            beyond = int(np.count_nonzero(spent > terms["limit"] - terms["amount"]))
        yield Horizon(
            key[0],
            key[2],
            key[1],
            int(np.count_nonzero(spent)),
            int(spent.max()),
            terms["limit"],
            terms["amount"],
            beyond,
        )


def _terms(connection: sa.Connection, key: Key, number: int | None) -> Any:
    """The last charge in a horizon, of a subject: what a window cost, and the limit."""
    private, horizon, start = key
    query = sa.select(*CHARGES.c["amount", "limit", "ids"]).where(
        CHARGES.c.private == private,
        CHARGES.c.horizon == horizon,
        CHARGES.c.horizon_start == start,
        CHARGES.c.last >= start,
        CHARGES.c.last < start + horizon,
    )
    latest = query.order_by(CHARGES.c.release.desc(), CHARGES.c.place.desc())
    with connection.execute(latest, execution_options={"yield_per": 8}) as result:
        last = None
        for row in result.mappings():
            last = last or row
            if len(who(row["ids"], number)):
                return row
        return last  # the subject was charged by the horizon of another limit


def _entries(connection: sa.Connection, number: int, private: str | None) -> Iterator[Entry]:
    for row in charged(connection, private):
        if len(who(row["ids"], number)):
            yield Entry(
                row["private"],
                row["release"],
                row["run"],
                row["committed"],
                row["first"],
                row["windows"],
                row["slide"],
                row["amount"],
            )


def charged(connection: sa.Connection, private: str | None) -> Iterator[Any]:
    """Charges with their releases, in order."""
    columns = [*CHARGES.c, *RELEASES.c["run", "committed", "size"]]
    query = sa.select(*columns).join(RELEASES, RELEASES.c.number == CHARGES.c.release)
    if private is not None:
        query = query.where(CHARGES.c.private == private)
    ordered = query.order_by(CHARGES.c.release, CHARGES.c.place)
    with connection.execute(ordered, execution_options={"yield_per": 64}) as result:
        yield from result.mappings()


@lru_cache(maxsize=4)  # most charges are of the same subjects
def who(packed: bytes, number: int | None) -> NDArray[np.int64]:
    """Who is charged, or only one of them."""
    ids = np.flatnonzero(unpack_ids(packed))
    return ids if number is None else ids[ids == number]
