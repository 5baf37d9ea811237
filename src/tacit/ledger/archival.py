"""Archiving: old releases leave the ledger for a file, and everything else goes on as before.

1. The file is written, checked link by link, put on the disk, and given its name.
2. One transaction takes the releases out of the ledger, and notes the archive in the chain.

After a crash between the two the file is there and the ledger is as it was: the same command again
finds the file and goes on with the second step. Balances stay, and so do charges, merged where
they differ in nothing but the window: what anyone has spent in any horizon, also one of a length
that nobody has used before, is always the sum of the charges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from tacit.errors import LedgerError
from tacit.ledger.alchemy import sa
from tacit.ledger.archive_file import ArchiveFile, ArchiveHead, ArchiveWriter, file_digest
from tacit.ledger.archives import NEVER, ArchivedRun, Archives, runs_to_json, settled
from tacit.ledger.chain import ARCHIVE, CHARGE, archived, digest, link, seal, settlement
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
"""Rows that are fetched at a time."""


@dataclass(frozen=True, slots=True)
class ArchiveResult:
    """What was archived."""

    file: Path
    number: int
    """Of the archive."""
    first: int
    last: int
    charges: int
    """How many charges were moved to the file."""
    settled: int
    """How many merged charges stay in the ledger in their place."""
    digest: str
    resumed: bool
    """Whether the file was there, from an attempt that was cut off."""


def _verify_all() -> str:
    return command("run tacit ledger verify --full", "call tacit.verify_ledger(full=True)")


def archive(
    ledger: Ledger, before: int, file: Path | None = None, *, undelivered: bool = False
) -> ArchiveResult:
    """Move all releases to a file whose windows, and the horizons of their charges, ended before.

    A release moves only if all releases before it do, and if its answers have been delivered
    everywhere, unless `undelivered` says otherwise.
    """
    if before > now():
        raise LedgerError(
            f"only the past can be archived: {option('before')} must not lie in the future"
        )
    with ledger.database.reading() as connection:
        head = connection.execute(sa.select(HEAD)).mappings().one()
        archives = Archives.read(connection, head)
        last = _last(connection, archives.last, before, undelivered=undelivered)
        path = file or _usual_file(ledger, archives.last + 1, last)
        resumed = path.exists()
        if resumed:
            last = _check_same(connection, head, archives, path, last)
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


def _usual_file(ledger: Ledger, first: int, last: int) -> Path:
    """Beside a ledger in a file; else in the folder of the process."""
    place = Path(ledger.name) if ledger.database.sqlite else Path("tacit")
    return place.with_name(f"{place.name}.{first}-{last}.archive")


def _last(connection: sa.Connection, after: int, before: int, *, undelivered: bool) -> int:
    """The last release that can be archived; raises LedgerError where there is none."""
    end = RELEASES.c.first + (RELEASES.c.windows - 1) * RELEASES.c.slide + RELEASES.c.size
    horizon = CHARGES.c.horizon_start + CHARGES.c.horizon
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
        obstacles += _undelivered(connection)
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


def _undelivered(connection: sa.Connection) -> Iterator[tuple[int | None, str]]:
    """For each run the first release that has not been delivered everywhere."""
    columns = (DELIVERIES.c.outlet, DELIVERIES.c.release)
    for run in connection.execute(sa.select(RUNS.c.run)).scalars().all():
        outlets = connection.execute(sa.select(*columns).where(DELIVERIES.c.run == run)).all()
        outlet, reached = min(outlets, key=lambda one: one[1], default=(None, 0))
        where = "anywhere" if outlet is None else f"to {outlet}"
        query = sa.select(sa.func.min(RELEASES.c.number)).where(
            RELEASES.c.run == run, RELEASES.c.number > reached
        )
        first = connection.execute(query).scalar()
        remedy = f"{option('undelivered')} moves it anyway"
        yield first, f"of the run '{run}' was not delivered {where}; {remedy}"


def _releases(connection: sa.Connection, after: int, last: int) -> Iterator[dict[str, Any]]:
    """Releases with their charges and the answers that are kept, in order."""
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
    """What leaves the ledger, and what stays in its place."""

    known: int
    """How many archives there were before."""
    after: int
    last: int
    hash: bytes
    answers: int
    charges: int
    runs: dict[str, ArchivedRun]
    settled: list[dict[str, Any]]


def _read(
    connection: sa.Connection, archives: Archives, last: int, keep: Callable[[Any], bool]
) -> _MovedReleases:
    """Go through what is archived, link by link; `keep` takes each release, if it has answers.

    Raises LedgerError where the chain does not hold: what is wrong is for verify to say.
    """
    number, hashed, answers = archives.last, archives.hash, archives.answers
    runs, charges, merging = archives.runs, 0, _ChargeMerger()
    for row in _releases(connection, archives.last, last):
        number, before = number + 1, archives.joined(number, hashed)
        hashed = link(before, row, [seal(CHARGE, charge) for charge in row["charges"]])
        changed = row["body"] is not None and digest(row["body"]) != row["digest"]
        if row["number"] != number or row["hash"] != hashed or changed:
            raise LedgerError(
                f"release {number} is not as it was written; {_verify_all()}. Nothing was archived"
            )
        runs[row["run"]] = runs.get(row["run"], NEVER).then(row, kept=keep(row))
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
        moved = _read(connection, archives, last, keep)
        writer.finish()
    except BaseException:
        writer.abort()
        raise
    return moved


def _compare(
    connection: sa.Connection, archives: Archives, path: Path, last: int
) -> _MovedReleases:
    """Compare a file that is there with the ledger, row by row."""
    file = ArchiveFile(path)
    written = file.rows()

    def keep(row: Any) -> bool:
        other = next(written, None)
        own = [{name: charge[name] for name in CHARGE} for charge in row["charges"]]
        if other is None or other["hash"] != row["hash"] or other["charges"] != own:
            raise LedgerError(f"{path} does not hold what is to be archived; remove it")
        if row["body"] is not None and other["body"] != row["body"]:
            raise LedgerError(f"{path} lacks answers that are to be archived; remove it")
        return other["body"] is not None

    try:
        moved = _read(connection, archives, last, keep)
        if next(written, None) is not None:
            raise LedgerError(f"{path} holds more than is to be archived; remove it")
    finally:
        file.close()
    return moved


def _check_same(
    connection: sa.Connection, head: Any, archives: Archives, path: Path, last: int
) -> int:
    """The last release in a file that an earlier attempt left, if the ledger still has them all."""
    found = ArchiveFile(path)
    try:
        begun = found.head
    finally:
        found.close()
    query = sa.select(RELEASES.c.hash).where(RELEASES.c.number == begun.last)
    same = (begun.ledger, begun.number, begun.first, begun.previous) == (
        head["id"],
        len(archives.rows) + 1,
        archives.last + 1,
        archives.hash,
    )
    if not same or begun.last > last or connection.execute(query).scalar() != begun.hash:
        raise LedgerError(f"{path} is there already, and holds other releases; choose another name")
    return begun.last


def _move(ledger: Ledger, path: Path, checksum: bytes, moved: _MovedReleases) -> None:
    """Take the releases out of the ledger, and note the archive, in one transaction."""
    with ledger.database.writing() as connection:
        head = connection.execute(sa.select(HEAD).with_for_update()).mappings().one()
        known = connection.execute(sa.select(sa.func.count()).select_from(ARCHIVES)).scalar_one()
        if known != moved.known:
            raise LedgerError(f"others have archived releases meanwhile; remove {path}")
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
            "settled": settlement(connection.execute(settled(moved.last)).mappings()),
            "created": now(),
        }
        connection.execute(ARCHIVES.insert().values(row))
        connection.execute(HEAD.update().values(hash=archived(head["hash"], before.start, row)))
        connection.execute(VERIFIED.delete().where(VERIFIED.c.release < moved.last))


class _ChargeMerger:
    """Charges, those that differ in nothing but the window put together.

    None reaches over the end of its horizon, or over a day. Charges of several runs may alternate.
    """

    def __init__(self) -> None:
        self._growing: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        """By what the charge must be that goes on with them."""

    def add(self, row: dict[str, Any]) -> None:
        """Add a charge, which follows those before it."""
        before = self._growing.get(_kind(row, row["first"]))
        if before and row["last"] < before[-1]["first"] + LONGEST:
            grown = before.pop()
            row |= {"first": grown["first"], "windows": grown["windows"] + row["windows"]}
        self._growing.setdefault(_kind(row, row["last"] + row["slide"]), []).append(row)

    def rows(self) -> list[dict[str, Any]]:
        """All of them, each at a place of its own in the last release that it is merged from."""
        places: dict[int, int] = {}
        result = []
        for row in (row for rows in self._growing.values() for row in rows):
            place = places.get(row["release"], 0)
            places[row["release"]] = place + 1
            result.append(row | {"place": place})
        return result


def _kind(row: dict[str, Any], following: int) -> tuple[Any, ...]:
    """What charges must have in common; `following` is when the next window starts."""
    names = ("private", "amount", "horizon", "horizon_start", "limit", "slide", "ids")
    return (*(row[name] for name in names), following)
