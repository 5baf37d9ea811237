"""Archive old releases: move them from the ledger to a file.

1. Write the file, check it link by link, sync it to disk, and give it its final name.
2. In one transaction, delete the releases from the ledger and add the archive to the chain.

After a crash between the two steps the file exists and the ledger is unchanged: run the same
command again, and it continues with the second step. Balances stay, and so do charges, merged if
they differ only in the window. So what was spent in any horizon, also in one of a new length, is
still the sum of charges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from tacit.errors import LedgerError
from tacit.ledger.alchemy import sa
from tacit.ledger.archive_file import (
    CHARGE_COLUMNS,
    ArchiveFile,
    ArchiveHead,
    ArchiveWriter,
    file_digest,
)
from tacit.ledger.archives import NEVER, ArchivedRun, Archives, runs_to_json, select_settled
from tacit.ledger.chain import (
    ARCHIVE,
    digest,
    hash_charges,
    link,
    link_archive,
    seal_charge,
)
from tacit.ledger.charges import LONGEST
from tacit.ledger.database import now
from tacit.ledger.ledger import Ledger
from tacit.ledger.tables import (
    ARCHIVES,
    BODIES,
    CHARGES,
    DELIVERIES,
    HEAD,
    RELEASES,
    RUNS,
    VERIFIED,
)
from tacit.options import command, option

_AT_ONCE: Final = 256
"""Rows per fetch."""


@dataclass(frozen=True, slots=True)
class ArchiveResult:
    """The result of archiving."""

    file: Path
    number: int
    """The number of the archive."""
    first: int
    last: int
    charges: int
    """How many charges were moved to the file."""
    settled: int
    """How many merged charges replace them in the ledger."""
    digest: str
    resumed: bool
    """Whether the file existed, from an interrupted attempt."""


def _verify_all() -> str:
    return command("run tacit ledger verify --full", "call tacit.verify_ledger(full=True)")


def archive(
    ledger: Ledger, before: int, file: Path | None = None, *, undelivered: bool = False
) -> ArchiveResult:
    """Move releases to a file if their windows, and the horizons of their charges, ended before.

    A release moves only if all releases before it do, and if all sinks have its answers (or
    `undelivered` is true).
    """
    if before > now():
        raise LedgerError(
            f"only the past can be archived: {option('before')} must not be in the future"
        )
    with ledger.database.reading() as connection:
        head = connection.execute(sa.select(HEAD)).mappings().one()
        archives = Archives.read(connection, head)
        last = _find_last(connection, archives.last, before, undelivered=undelivered)
        path = file or _default_file(ledger, archives.last + 1, last)
        resumed = path.exists()
        if resumed:
            last = _check_resumable(connection, head, archives, path, last)
            moved = _compare(connection, archives, path, last)
        else:
            moved = _write(connection, head, archives, path, last)
    checksum = file_digest(path)
    _move(ledger, path, checksum, moved)
    ledger.database.compact()
    return ArchiveResult(
        path,
        len(archives.rows) + 1,
        archives.last + 1,
        last,
        moved.charges,
        len(moved.settled),
        checksum.hex(),
        resumed,
    )


def _default_file(ledger: Ledger, first: int, last: int) -> Path:
    """Return the default name: beside a ledger file, else in the working directory."""
    place = Path(ledger.name) if ledger.database.sqlite else Path("tacit")
    return place.with_name(f"{place.name}.{first}-{last}.archive")


def _find_last(connection: sa.Connection, after: int, before: int, *, undelivered: bool) -> int:
    """Find the last release that can be archived; raise LedgerError if there is none."""
    end = RELEASES.c.first + (RELEASES.c.windows - 1) * RELEASES.c.slide + RELEASES.c.size
    horizon = CHARGES.c.horizon_start + CHARGES.c.horizon - CHARGES.c.offset
    smallest = sa.func.min
    obstacles: list[tuple[int | None, str]] = [
        (
            connection.execute(sa.select(smallest(RELEASES.c.number)).where(end > before)).scalar(),
            "has windows that end later",
        ),
        (
            connection.execute(
                sa.select(smallest(CHARGES.c.release)).where(
                    CHARGES.c.release > after, horizon > before
                )
            ).scalar(),
            "has charges in a horizon that ends later",
        ),
    ]
    if not undelivered:
        obstacles += _find_undelivered(connection)
    whole = connection.execute(sa.select(sa.func.max(RELEASES.c.number))).scalar() or after
    number, why = min(
        ((number, why) for number, why in obstacles if number is not None),
        default=(whole + 1, "is the next one"),
    )
    if number <= after + 1:
        raise LedgerError(
            "there is nothing to archive: "
            + (f"release {number} {why}" if whole > after else "the ledger holds no releases")
        )
    return int(number) - 1


def _find_undelivered(connection: sa.Connection) -> Iterator[tuple[int | None, str]]:
    """Yield for each run the first release that some sink does not have."""
    columns = (DELIVERIES.c.outlet, DELIVERIES.c.release)
    for run in connection.execute(sa.select(RUNS.c.run)).scalars().all():
        sinks = connection.execute(sa.select(*columns).where(DELIVERIES.c.run == run)).all()
        sink, reached = min(sinks, key=lambda one: one[1], default=(None, 0))
        where = "anywhere" if sink is None else f"to {sink}"
        query = sa.select(sa.func.min(RELEASES.c.number)).where(
            RELEASES.c.run == run, RELEASES.c.number > reached
        )
        first = connection.execute(query).scalar()
        remedy = f"{option('undelivered')} moves it anyway"
        yield first, f"of the run '{run}' was not delivered {where}; {remedy}"


def _releases(connection: sa.Connection, after: int, last: int) -> Iterator[dict[str, Any]]:
    """Yield releases with their charges and stored answers, in order."""
    streamed = connection.execution_options(yield_per=_AT_ONCE)
    joined = RELEASES.outerjoin(BODIES, BODIES.c.release == RELEASES.c.number)
    query = sa.select(*RELEASES.c, BODIES.c.body).select_from(joined)
    query = query.where(RELEASES.c.number > after, RELEASES.c.number <= last)
    query = query.order_by(RELEASES.c.number)
    charges = groupby(_charges(streamed, after, last), lambda row: int(row["release"]))
    pending = next(charges, None)
    with streamed.execute(query) as result:
        for row in result.mappings():
            own: list[Any] = []
            if pending is not None and pending[0] == row["number"]:
                own, pending = [dict(charge) for charge in pending[1]], next(charges, None)
            yield {**row, "charges": own}


def _charges(connection: sa.Connection, after: int, last: int) -> Iterator[Any]:
    query = sa.select(CHARGES).where(CHARGES.c.release > after, CHARGES.c.release <= last)
    with connection.execute(query.order_by(CHARGES.c.release, CHARGES.c.place)) as result:
        yield from result.mappings()


@dataclass(frozen=True, slots=True)
class _MovedReleases:
    """The releases that leave the ledger, and the charges that replace theirs."""

    known: int
    """How many archives there were before."""
    after: int
    last: int
    hash: bytes
    answers: int
    charges: int
    runs: dict[str, ArchivedRun]
    settled: list[dict[str, Any]]


def _read_chain(
    connection: sa.Connection, archives: Archives, last: int, keep: Callable[[Any], bool]
) -> _MovedReleases:
    """Read and check the releases to archive, link by link.

    `keep` is called with each release and returns whether it has answers. Raises LedgerError if the
    chain is broken; `verify` reports the details.
    """
    number, hashed, answers = archives.last, archives.hash, archives.answers
    runs, charges, merging = archives.runs, 0, _ChargeMerger()
    for row in _releases(connection, archives.last, last):
        number, before = number + 1, archives.chain_hash(number, hashed)
        hashed = link(before, row, [seal_charge(charge) for charge in row["charges"]])
        changed = row["body"] is not None and digest(row["body"]) != row["digest"]
        if row["number"] != number or row["hash"] != hashed or changed:
            raise LedgerError(
                f"release {number} was changed; {_verify_all()}. Nothing was archived"
            )
        runs[row["run"]] = runs.get(row["run"], NEVER).add_release(row, kept=keep(row))
        answers += row["answers"]
        for charge in row["charges"]:
            charges += 1
            merging.add({**charge})
    if number != last:
        raise LedgerError(f"release {number + 1} is missing; {_verify_all()}")
    return _MovedReleases(
        len(archives.rows), archives.last, last, hashed, answers, charges, runs, merging.rows()
    )


def _write(
    connection: sa.Connection, head: Any, archives: Archives, path: Path, last: int
) -> _MovedReleases:
    """Write the file."""
    ending = connection.execute(sa.select(RELEASES.c.hash).where(RELEASES.c.number == last))
    joins = [row for row in archives.rows if archives.last <= row["after"] < last]
    opening = ArchiveHead(
        head["id"],
        head["created"],
        len(archives.rows) + 1,
        archives.last + 1,
        last,
        archives.hash,
        ending.scalar_one(),
        [{name: row[name] for name in ARCHIVE} for row in joins],
    )
    writer = ArchiveWriter(path, opening)

    def keep(row: Any) -> bool:
        writer.write(row)
        return row["body"] is not None

    try:
        moved = _read_chain(connection, archives, last, keep)
        writer.finish()
    except BaseException:
        writer.abort()
        raise
    return moved


def _compare(
    connection: sa.Connection, archives: Archives, path: Path, last: int
) -> _MovedReleases:
    """Compare an existing file with the ledger, row by row."""
    file = ArchiveFile(path)
    written = file.rows()

    def keep(row: Any) -> bool:
        other = next(written, None)
        own = [{name: charge[name] for name in CHARGE_COLUMNS} for charge in row["charges"]]
        if other is None or other["hash"] != row["hash"] or other["charges"] != own:
            raise LedgerError(f"{path} does not match the releases to archive; remove it")
        if row["body"] is not None and other["body"] != row["body"]:
            raise LedgerError(f"{path} lacks answers to archive; remove it")
        return other["body"] is not None

    try:
        moved = _read_chain(connection, archives, last, keep)
        if next(written, None) is not None:
            raise LedgerError(f"{path} holds more than the releases to archive; remove it")
    finally:
        file.close()
    return moved


def _check_resumable(
    connection: sa.Connection, head: Any, archives: Archives, path: Path, last: int
) -> int:
    """Return the last release in the file of an interrupted attempt, if the ledger has them all."""
    found = ArchiveFile(path)
    try:
        found_head = found.head
    finally:
        found.close()
    query = sa.select(RELEASES.c.hash).where(RELEASES.c.number == found_head.last)
    same = (found_head.ledger, found_head.number, found_head.first, found_head.previous) == (
        head["id"],
        len(archives.rows) + 1,
        archives.last + 1,
        archives.hash,
    )
    if not same or found_head.last > last or connection.execute(query).scalar() != found_head.hash:
        raise LedgerError(f"{path} exists and holds other releases; choose another name")
    return found_head.last


def _move(ledger: Ledger, path: Path, checksum: bytes, moved: _MovedReleases) -> None:
    """Delete the releases and record the archive, in one transaction."""
    with ledger.database.writing() as connection:
        head = connection.execute(sa.select(HEAD).with_for_update()).mappings().one()
        known = connection.execute(sa.select(sa.func.count()).select_from(ARCHIVES)).scalar_one()
        if known != moved.known:
            raise LedgerError(f"releases were archived by another process meanwhile; remove {path}")
        for table, column in (
            (CHARGES, CHARGES.c.release),
            (BODIES, BODIES.c.release),
            (RELEASES, RELEASES.c.number),
        ):
            connection.execute(table.delete().where(column > moved.after, column <= moved.last))
        if moved.settled:
            connection.execute(CHARGES.insert(), moved.settled)
        before = Archives.read(connection, head)
        row = {
            "number": known + 1,
            "first": moved.after + 1,
            "last": moved.last,
            "after": head["releases"],
            "answers": moved.answers,
            "charges": before.charges + moved.charges,
            "runs": runs_to_json(moved.runs),
            "hash": moved.hash,
            "file": path.name,
            "digest": checksum,
            "settled": hash_charges(connection.execute(select_settled(moved.last)).mappings()),
            "created": now(),
        }
        connection.execute(ARCHIVES.insert().values(row))
        connection.execute(HEAD.update().values(hash=link_archive(head["hash"], before.start, row)))
        connection.execute(VERIFIED.delete().where(VERIFIED.c.release < moved.last))


class _ChargeMerger:
    """Merges charges that differ only in the window.

    No result crosses the end of its horizon, or is longer than a day. Charges of several runs may
    alternate.
    """

    def __init__(self) -> None:
        self._growing: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        """Charges by the key of the charge that would continue them."""

    def add(self, row: dict[str, Any]) -> None:
        """Add a charge, which follows those before it."""
        before = self._growing.get(_kind(row, row["first"]))
        if before and row["last"] < before[-1]["first"] + LONGEST:
            grown = before.pop()
            row |= {"first": grown["first"], "windows": grown["windows"] + row["windows"]}
        self._growing.setdefault(_kind(row, row["last"] + row["slide"]), []).append(row)

    def rows(self) -> list[dict[str, Any]]:
        """Return all merged charges, each with a new place in the last of its releases."""
        places: dict[int, int] = {}
        result = []
        for row in (row for rows in self._growing.values() for row in rows):
            place = places.get(row["release"], 0)
            places[row["release"]] = place + 1
            result.append(row | {"place": place})
        return result


def _kind(row: dict[str, Any], following: int) -> tuple[Any, ...]:
    """Return what mergeable charges have in common; `following` is the next window's start."""
    names = ("private", "amount", "horizon", "horizon_start", "limit", "slide", "offset", "ids")
    return (*(row[name] for name in names), following)
