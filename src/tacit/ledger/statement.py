"""Statements: charges, balances and limits of subjects, and the state of runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import pairwise
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tacit.errors import LedgerError, nearest
from tacit.ledger import balances
from tacit.ledger.accounts import Key
from tacit.ledger.alchemy import sa
from tacit.ledger.archives import NEVER, ArchivedRun, Archives
from tacit.ledger.charges import LONGEST, count_windows
from tacit.ledger.codec import unpack_ids
from tacit.ledger.ledger import Ledger
from tacit.ledger.registry import Registry
from tacit.ledger.tables import BALANCES, CHARGES, HEAD, RELEASES, RUNS
from tacit.pictures import make_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Whole = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RunStatement:
    """The totals of a run."""

    run: str
    releases: int
    windows: int
    answers: int
    until: int | None
    """The start time of the first window that is not released."""


@dataclass(frozen=True, slots=True)
class Horizon:
    """The spending for a private pattern in one horizon; `spent` is the largest of a subject."""

    private: str
    start: int
    """In the subjects' local time, as microseconds since 1970."""
    length: int
    subjects: int
    """How many subjects have spent anything."""
    spent: int
    limit: int | None
    """From the last charge in it."""
    amount: int
    """The cost of a window, from the last charge in it that is not 0; 0 if there is none."""
    exhausted: int
    """How many subjects cannot pay for another window that costs as much."""
    asked: int
    """Windows that cost something, summed over subjects."""
    free: int
    """Windows that were answered and cost nothing, summed over subjects."""

    @property
    def end(self) -> int:
        """The start time of the next horizon."""
        return self.start + self.length

    @property
    def left(self) -> int | None:
        """What the subject with the largest spending has left; None without a limit."""
        return None if self.limit is None else max(0, self.limit - self.spent)

    @property
    def allowed(self) -> int | None:
        """How many such windows the limit of a horizon pays for; None without a limit or a cost."""
        if self.limit is None or self.amount == 0:
            return None
        return self.limit // self.amount


@dataclass(frozen=True, slots=True)
class Entry:
    """The charge of consecutive windows of one release to a subject."""

    private: str
    release: int
    run: str
    committed: int
    first: int
    windows: int
    slide: int
    amount: int
    """The cost of each window; 0 if it revealed nothing."""
    offset: int
    """How far the subject's local time was ahead of UTC, in microseconds."""


@dataclass(frozen=True, slots=True)
class UnpaidWindows:
    """Consecutive windows in which a subject was answered and not charged.

    A limit was reached, or saved for later; nothing was drawn for the subject.
    """

    private: str
    run: str
    first: int
    windows: int
    slide: int
    offset: int


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of a ledger, or of one subject."""

    ledger: str
    created: int
    releases: int
    answers: int
    subjects: int
    hash: str
    """The hash of the last release."""
    subject: str | None
    archived: int
    """The last release that was moved to an archive; 0 if none was."""
    runs: tuple[RunStatement, ...]
    horizons: tuple[Horizon, ...]
    """In order of private pattern and time."""
    entries: tuple[Entry, ...]
    """The charges of the subject by releases that are not archived, in order; empty for a
    statement of all subjects."""
    unpaid: tuple[UnpaidWindows, ...] = ()
    """The windows of the same releases that the subject did not pay for; from its first charge by a
    run on."""

    def plot(self, path: str | PathLike[str] | None = None, *, day: str | None = None) -> Figure:
        """Draw a day of the subject: what was spent, and how each window was answered.

        `day` is a date such as `2026-03-01`, in the subject's local time; by default the last one.
        Without a subject, draw for each private pattern what was spent in each horizon. With a
        path, write the figure to this SVG, PNG or PDF file too.
        """
        from tacit.ledger.day_picture import draw_day
        from tacit.ledger.spending_picture import draw_spending

        if self.subject is None and day is None:
            return make_picture(lambda: draw_spending(self), path)
        return make_picture(lambda: draw_day(self, day), path)


def read_statement(
    ledger: Ledger, *, subject: str | None = None, private: str | None = None
) -> Statement:
    """Read a statement of all subjects, of one subject, or of one private pattern."""
    with ledger.database.reading() as connection:
        head = connection.execute(sa.select(HEAD)).mappings().one()
        archives = Archives.read(connection, head)
        number = None if subject is None else find_subject(connection, subject)
        check_charged(connection, private)
        entries, unpaid = [], []
        if number is not None:
            charges = _SubjectCharges.read(connection, number, private)
            entries, unpaid = charges.entries, list(charges.find_unpaid(connection, number))
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
            tuple(entries),
            tuple(unpaid),
        )


def find_subject(connection: sa.Connection, subject: str) -> int:
    """Return the id of a subject; raise LedgerError if it is unknown."""
    registry = Registry()
    registry.refresh(connection)
    number = int(registry.find_ids(pa.array([subject], pa.large_string()))[0])
    if number < 0:
        raise LedgerError(f"the ledger has no subject called '{subject}'")
    return number


def check_charged(connection: sa.Connection, private: str | None) -> None:
    """Refuse the name of a private pattern without charges."""
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
        balance = balances.read_balance(connection, key)
        spent, asked, free = balance.spent, balance.asked, balance.free
        if number is not None:
            spent = spent[number : number + 1]
            asked, free = _count_windows(connection, key, number)
        if not asked + free:
            continue
        charge = _last_charge(connection, key, number)
        beyond = 0
        if charge["limit"] is not None and charge["amount"]:
            beyond = int(np.count_nonzero(spent > charge["limit"] - charge["amount"]))
        yield Horizon(
            key[0],
            key[2],
            key[1],
            int(np.count_nonzero(spent)),
            int(spent.max(initial=0)),
            charge["limit"],
            charge["amount"],
            beyond,
            asked,
            free,
        )


def _last_charge(connection: sa.Connection, key: Key, number: int | None) -> Any:
    """Return the last charge of a subject in a horizon: the cost of a window, and the limit."""
    private, horizon, start = key
    query = sa.select(*CHARGES.c["amount", "limit", "ids"]).where(
        CHARGES.c.private == private,
        CHARGES.c.horizon == horizon,
        CHARGES.c.horizon_start == start,
        CHARGES.c.last + CHARGES.c.offset >= start,
        CHARGES.c.last + CHARGES.c.offset < start + horizon,
    )
    latest = query.order_by(CHARGES.c.release.desc(), CHARGES.c.place.desc())
    with connection.execute(latest, execution_options={"yield_per": 8}) as result:
        last = free = None
        for row in result.mappings():
            last = last or row
            if len(charged_ids(row["ids"], number)):
                if row["amount"]:
                    return row
                free = free or row
        return free or last  # the subject was charged under another horizon


def _count_windows(connection: sa.Connection, key: Key, number: int) -> tuple[int, int]:
    """Count the windows of a subject in a horizon that cost something, and nothing."""
    private, horizon, start = key
    columns = CHARGES.c["ids", "amount", "first", "windows", "slide", "offset"]
    local = CHARGES.c.last + CHARGES.c.offset
    query = sa.select(*columns).where(
        CHARGES.c.private == private, local >= start, local < start + horizon + LONGEST
    )
    counts = [0, 0]
    for ids, amount, first, windows, slide, offset in connection.execute(query):
        if len(charged_ids(ids, number)):
            found = count_windows(first + offset, windows, slide, start, start + horizon)
            counts[amount == 0] += found
    return counts[0], counts[1]


@dataclass(frozen=True, slots=True)
class _SubjectCharges:
    """The charges of a subject, and the specifications under which anybody was charged."""

    entries: list[Entry]
    charging: frozenset[tuple[str, str]]
    """Private patterns and the fingerprints of specifications."""

    @classmethod
    def read(cls, connection: sa.Connection, number: int, private: str | None) -> _SubjectCharges:
        entries, charging = [], set()
        for row in iterate_charges(connection, private):
            charging.add((row["private"], row["fingerprint"]))
            if len(charged_ids(row["ids"], number)):
                entries.append(Entry(**{field.name: row[field.name] for field in fields(Entry)}))
        return cls(entries, frozenset(charging))

    def find_unpaid(self, connection: sa.Connection, number: int) -> Iterator[UnpaidWindows]:
        """Yield the released windows without a charge, of runs that charge the subject."""
        accounts: dict[tuple[str, str], list[Entry]] = {}
        for entry in self.entries:
            accounts.setdefault((entry.private, entry.run), []).append(entry)
        columns = RELEASES.c["first", "windows", "slide", "fingerprint"]
        for (private, run), entries in accounts.items():
            query = (
                sa.select(*columns)
                .where(RELEASES.c.run == run, RELEASES.c.subjects > number)
                .order_by(RELEASES.c.number)
            )
            spans = [
                (first, windows, slide)
                for first, windows, slide, fingerprint in connection.execute(query)
                if (private, fingerprint) in self.charging
            ]
            paid = [(entry.first, entry.windows, entry.slide) for entry in entries]
            yield from _list_unpaid(private, run, entries, _expand(spans), _expand(paid)[0])


def _expand(spans: Sequence[tuple[int, int, int]]) -> tuple[Whole, Whole]:
    """Return the start of each window, and the time to the next."""
    table: Whole = np.array(spans, np.int64).reshape(-1, 3)
    first, windows, slide = table[:, 0], table[:, 1], table[:, 2]
    place = np.arange(int(windows.sum())) - np.repeat(np.cumsum(windows) - windows, windows)
    slides = np.repeat(slide, windows)
    return np.asarray(np.repeat(first, windows) + place * slides, np.int64), slides


def _list_unpaid(
    private: str, run: str, entries: list[Entry], released: tuple[Whole, Whole], paid: Whole
) -> Iterator[UnpaidWindows]:
    """Yield stretches of released windows that are not paid, from the first paid one on."""
    starts, slides = released
    left = (starts > paid.min()) & ~np.isin(starts, paid)
    starts, slides = starts[left], slides[left]
    if not len(starts):
        return
    known = np.array(sorted((entry.first, entry.offset) for entry in entries))
    offsets = known[np.searchsorted(known[:, 0], starts, side="right") - 1, 1]
    apart = (np.diff(starts) != slides[:-1]) | (np.diff(offsets) != 0)
    bounds = [0, *(np.flatnonzero(apart) + 1).tolist(), len(starts)]
    for begin, end in pairwise(bounds):
        yield UnpaidWindows(
            private, run, int(starts[begin]), end - begin, int(slides[begin]), int(offsets[begin])
        )


def iterate_charges(connection: sa.Connection, private: str | None) -> Iterator[Any]:
    """Yield charges with their releases, in order."""
    columns = [*CHARGES.c, *RELEASES.c["run", "committed", "size", "fingerprint"]]
    query = sa.select(*columns).join(RELEASES, RELEASES.c.number == CHARGES.c.release)
    if private is not None:
        query = query.where(CHARGES.c.private == private)
    ordered = query.order_by(CHARGES.c.release, CHARGES.c.place)
    with connection.execute(ordered, execution_options={"yield_per": 64}) as result:
        yield from result.mappings()


@lru_cache(maxsize=4)  # most charges have the same subjects
def charged_ids(packed: bytes, number: int | None) -> NDArray[np.int64]:
    """Return the ids of the charged subjects, or only this one of them."""
    ids = np.flatnonzero(unpack_ids(packed))
    return ids if number is None else ids[ids == number]
