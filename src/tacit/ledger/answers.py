"""Released answers, given again as they were, for as long as the ledger keeps them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from tacit.answers.answers import schema
from tacit.answers.codec import unpack
from tacit.errors import LedgerError, nearest
from tacit.ledger.alchemy import sa
from tacit.ledger.archive_file import ArchiveFile, file_digest
from tacit.ledger.archives import ArchivedRun, Archives
from tacit.ledger.chain import digest
from tacit.ledger.directory import Directory
from tacit.ledger.ledger import Ledger
from tacit.ledger.statement import subject_id
from tacit.ledger.tables import BODIES, HEAD, RELEASES, RUNS

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = schema(protected=True).insert(0, pa.field("id", pa.int64()))
"""The columns of protected answers, where there are none to say what they are."""


@dataclass(frozen=True, slots=True)
class AnswerSelection:
    """Which answers are wanted; what is empty or None selects all."""

    runs: Collection[str] = ()
    consumers: Collection[str] = ()
    queries: Collection[str] = ()
    subjects: Collection[str] = ()
    since: int | None = None
    """Of windows that start at this time or later, in microseconds since 1970."""
    until: int | None = None
    """Of windows that start before this time."""

    def queries_of(self, consumers: Mapping[str, str]) -> dict[str, str]:
        """Those of these queries that are wanted, each with who asked it."""
        return {
            query: consumer
            for query, consumer in consumers.items()
            if (not self.queries or query in self.queries)
            and (not self.consumers or consumer in self.consumers)
        }


@dataclass(frozen=True, slots=True)
class RunAnswers:
    """What a ledger still has of a run's answers, as far as they are selected."""

    run: str
    releases: int
    deleted: int
    """Releases whose answers are no longer kept."""
    kept_from: int | None
    """When the first window starts whose answers are kept, of all of the run; None: none are."""
    archived: int = 0
    """Releases of the run whose answers are in archives, where no archive is read."""


@dataclass
class ReleasedAnswers:
    """Answers that were released before: iterate over them as tables, one for each release.

    Each table has the rows that were delivered, with the same ids, in the same order. Only one
    release is in memory at a time, and no transaction stays open between two of them.
    """

    ledger: Ledger
    selection: AnswerSelection = field(default_factory=AnswerSelection)
    archives: Sequence[Path] = ()
    """Archives of the ledger whose answers are given too."""
    asked: dict[str, str] = field(default_factory=dict, init=False)
    """Who asked each query that was met so far, selected or not."""
    _archived: dict[str, ArchivedRun] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse names that the ledger does not know."""
        with self.ledger.database.reading() as connection:
            known = list(connection.execute(sa.select(RUNS.c.run)).scalars())
            for run in self.selection.runs:
                if run not in known:
                    raise LedgerError(
                        f"the ledger knows no run called '{run}'.{nearest(run, known)}"
                    )
            for subject in self.selection.subjects:
                subject_id(connection, subject)
            head = connection.execute(sa.select(HEAD)).mappings().one()
            archived = Archives.read(connection, head)
        self._archived = archived.runs
        numbers = {bytes(row["digest"]): int(row["number"]) for row in archived.rows}
        for path in self.archives:
            if file_digest(path) not in numbers:
                raise LedgerError(f"{path} is not an archive of this ledger, or was changed")
        self.archives = sorted(self.archives, key=lambda path: numbers[file_digest(path)])

    def runs(self) -> list[RunAnswers]:
        """What is kept of each run, and what was deleted."""
        kept = sa.func.count(BODIES.c.release)
        first = sa.func.min(sa.case((BODIES.c.release.is_not(None), RELEASES.c.first)))
        columns = (RELEASES.c.run, sa.func.count(), kept, first)
        joined = RELEASES.outerjoin(BODIES, BODIES.c.release == RELEASES.c.number)
        query = sa.select(*columns).select_from(joined).group_by(RELEASES.c.run)
        with self.ledger.database.reading() as connection:
            whole = {run: since for run, _, _, since in connection.execute(query)}
            chosen = query.where(self._selected()).order_by(RELEASES.c.run)
            found = {
                run: (releases, there) for run, releases, there, _ in connection.execute(chosen)
            }
        kept_away = {} if self.archives else self._kept_away()
        return [
            RunAnswers(run, releases, releases - there, whole.get(run), kept_away.get(run, 0))
            for run in sorted(found.keys() | kept_away.keys())
            for releases, there in [found.get(run, (0, 0))]
        ]

    def _kept_away(self) -> dict[str, int]:
        """Releases of each selected run whose answers are in archives."""
        return {
            name: run.kept
            for name, run in self._archived.items()
            if run.kept and (not self.selection.runs or name in self.selection.runs)
        }

    def arrow(self) -> pa.Table:
        """All of them as one Arrow table."""
        tables = list(self)
        return pa.concat_tables(tables).unify_dictionaries() if tables else COLUMNS.empty_table()

    def polars(self) -> pl.DataFrame:
        """The same as a Polars frame."""
        return pl.DataFrame(self.arrow())

    def pandas(self) -> pd.DataFrame:
        """The same as a pandas frame."""
        return self.arrow().to_pandas()

    def close(self) -> None:
        """Close the ledger."""
        self.ledger.close()

    def __enter__(self) -> ReleasedAnswers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[pa.Table]:
        names = Directory(self.ledger)
        for row in self._rows():
            if digest(row["body"]) != row["digest"]:
                raise LedgerError(
                    f"the answers of release {row['number']} were changed since they were released;"
                    " run tacit ledger verify, and restore a backup"
                )
            table, consumers = unpack(row["body"], row["first_id"], names)
            self.asked |= consumers
            chosen = self._chosen(table, consumers)
            if chosen.num_rows:
                yield chosen

    def _rows(self) -> Iterator[Any]:
        """The releases whose answers are kept, in order."""
        for path in self.archives:
            with closing(ArchiveFile(path)) as file:
                yield from filter(self._is_selected, file.rows())
        yield from self._live()

    def _is_selected(self, row: Any) -> bool:
        """Whether an archived release has answers, and may hold what is selected."""
        wanted, last = self.selection, row["first"] + (row["windows"] - 1) * row["slide"]
        return (
            row["body"] is not None
            and (not wanted.runs or row["run"] in wanted.runs)
            and (wanted.since is None or last >= wanted.since)
            and (wanted.until is None or row["first"] < wanted.until)
        )

    def _live(self) -> Iterator[Any]:
        """The releases in the ledger, one after the other, each read by itself."""
        kept = RELEASES.join(BODIES, BODIES.c.release == RELEASES.c.number)
        columns = (*RELEASES.c["number", "first_id", "digest"], BODIES.c.body)
        query = sa.select(*columns).select_from(kept).where(self._selected())
        query = query.order_by(RELEASES.c.number).limit(1)
        after = 0
        while True:
            with self.ledger.database.reading() as connection:
                later = query.where(RELEASES.c.number > after)
                row = connection.execute(later).mappings().one_or_none()
            if row is None:
                return
            yield row
            after = row["number"]

    def _selected(self) -> sa.ColumnElement[bool]:
        """The releases that may hold what is selected."""
        wanted, until = self.selection, RELEASES.c.first + RELEASES.c.windows * RELEASES.c.slide
        conditions: list[sa.ColumnElement[bool]] = [sa.true()]
        if wanted.runs:
            conditions.append(RELEASES.c.run.in_(wanted.runs))
        if wanted.since is not None:
            conditions.append(until - RELEASES.c.slide >= wanted.since)
        if wanted.until is not None:
            conditions.append(RELEASES.c.first < wanted.until)
        return sa.and_(*conditions)

    def _chosen(self, table: pa.Table, consumers: Mapping[str, str]) -> pa.Table:
        """The rows that are selected, as they are."""
        wanted = self.selection
        masks = []
        queries = wanted.queries_of(consumers)
        if len(queries) < len(consumers):
            masks.append(_is_in(table["query"], list(queries)))
        if wanted.subjects:
            masks.append(_is_in(table["subject"], list(wanted.subjects)))
        start = table["window_start"].cast(pa.int64())
        if wanted.since is not None:
            masks.append(pc.greater_equal(start, wanted.since))
        if wanted.until is not None:
            masks.append(pc.less(start, wanted.until))
        for mask in masks[1:]:
            masks[0] = pc.and_(masks[0], mask)
        return table.filter(masks[0]) if masks else table


def released(
    ledger: str | os.PathLike[str],
    *,
    run: str | Collection[str] = (),
    consumer: str | Collection[str] = (),
    query: str | Collection[str] = (),
    subject: str | Collection[str] = (),
    since: str | datetime | None = None,
    until: str | datetime | None = None,
    archives: Sequence[str | os.PathLike[str]] = (),
) -> ReleasedAnswers:
    """Answers that a ledger has released, exactly as they were, for as long as it keeps them.

    Each name may be one or several. `since` and `until` select windows that start at that time or
    later, and before it; a time without a zone is in UTC. `archives` are files by
    `tacit ledger archive` whose answers are wanted too. Iterate over the result for one Arrow
    table per release, or call `arrow()`, `polars()` or `pandas()` for all of them.
    """
    selection = AnswerSelection(
        _names(run),
        _names(consumer),
        _names(query),
        _names(subject),
        _given_time(since),
        _given_time(until),
    )
    opened = Ledger.open(os.fspath(ledger), read_only=True)
    try:
        return ReleasedAnswers(opened, selection, [Path(path) for path in archives])
    except BaseException:
        opened.close()
        raise


def _names(given: str | Collection[str]) -> Collection[str]:
    return [given] if isinstance(given, str) else given


def _given_time(given: str | datetime | None) -> int | None:
    return None if given is None else microseconds(given)


def microseconds(given: str | datetime) -> int:
    """A time in microseconds since 1970; one without a zone is in UTC.

    >>> microseconds(datetime(1970, 1, 1, 0, 1)), microseconds("1970-01-01T00:01+01:00")
    (60000000, -3540000000)
    """
    moment = datetime.fromisoformat(given) if isinstance(given, str) else given
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (moment - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)


def _is_in(column: pa.ChunkedArray, texts: list[str]) -> pa.ChunkedArray:
    return pc.is_in(column.cast(pa.large_string()), value_set=pa.array(texts, pa.large_string()))
