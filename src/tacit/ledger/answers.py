"""Read released answers from the ledger again, until they are deleted."""

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

from tacit.answers.codec import unpack, unpack_counts
from tacit.answers.counts import count_schema
from tacit.answers.rows import answer_schema
from tacit.errors import LedgerError, nearest
from tacit.ledger.alchemy import sa
from tacit.ledger.archive_file import ArchiveFile, file_digest
from tacit.ledger.archives import ArchivedRun, Archives
from tacit.ledger.chain import digest
from tacit.ledger.directory import Directory
from tacit.ledger.ledger import Ledger
from tacit.ledger.statement import find_subject
from tacit.ledger.tables import BODIES, HEAD, RELEASES, RUNS

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = answer_schema(protected=True).insert(0, pa.field("id", pa.int64()))
"""The columns of protected answers, for an empty result."""


@dataclass(frozen=True, slots=True)
class AnswerSelection:
    """A selection of answers; an empty field or None selects all."""

    runs: Collection[str] = ()
    consumers: Collection[str] = ()
    queries: Collection[str] = ()
    subjects: Collection[str] = ()
    since: int | None = None
    """Select windows that start at this time or later, in microseconds since 1970."""
    until: int | None = None
    """Select windows that start before this time."""

    def select_queries(self, consumers: Mapping[str, str]) -> dict[str, str]:
        """Select from queries with their consumers."""
        return {
            query: consumer
            for query, consumer in consumers.items()
            if (not self.queries or query in self.queries)
            and (not self.consumers or consumer in self.consumers)
        }


@dataclass(frozen=True, slots=True)
class RunAnswers:
    """The selected answers of a run that a ledger still has."""

    run: str
    releases: int
    deleted: int
    """Releases whose answers were deleted."""
    kept_from: int | None
    """The start time of the run's first window with stored answers; None if there is none."""
    archived: int = 0
    """Releases of the run whose answers are in archives that are not read."""


@dataclass
class ReleasedAnswers:
    """Answers that were released before: iterate over it for one table per release.

    Each table has the delivered rows with the same ids, in the same order. Only one release is in
    memory at a time, and no transaction stays open between releases.
    """

    ledger: Ledger
    selection: AnswerSelection = field(default_factory=AnswerSelection)
    archives: Sequence[Path] = ()
    """Archives of the ledger to read as well."""
    consumers: dict[str, str] = field(default_factory=dict, init=False)
    """The consumer of each query that was read so far, selected or not."""
    _archived: dict[str, ArchivedRun] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse names that are not in the ledger."""
        with self.ledger.database.reading() as connection:
            known = list(connection.execute(sa.select(RUNS.c.run)).scalars())
            for run in self.selection.runs:
                if run not in known:
                    raise LedgerError(f"the ledger has no run called '{run}'.{nearest(run, known)}")
            for subject in self.selection.subjects:
                find_subject(connection, subject)
            head = connection.execute(sa.select(HEAD)).mappings().one()
            archived = Archives.read(connection, head)
        self._archived = archived.runs
        numbers = {bytes(row["digest"]): int(row["number"]) for row in archived.rows}
        for path in self.archives:
            if file_digest(path) not in numbers:
                raise LedgerError(f"{path} is not an archive of this ledger, or was changed")
        self.archives = sorted(self.archives, key=lambda path: numbers[file_digest(path)])

    def runs(self) -> list[RunAnswers]:
        """Return for each run what is stored and what was deleted."""
        kept = sa.func.count(BODIES.c.release)
        first = sa.func.min(sa.case((BODIES.c.release.is_not(None), RELEASES.c.first)))
        columns = (RELEASES.c.run, sa.func.count(), kept, first)
        joined = RELEASES.outerjoin(BODIES, BODIES.c.release == RELEASES.c.number)
        query = sa.select(*columns).select_from(joined).group_by(RELEASES.c.run)
        with self.ledger.database.reading() as connection:
            whole = {run: since for run, _, _, since in connection.execute(query)}
            chosen = query.where(self._select_releases()).order_by(RELEASES.c.run)
            found = {
                run: (releases, there) for run, releases, there, _ in connection.execute(chosen)
            }
        archived_count = {} if self.archives else self._count_archived()
        return [
            RunAnswers(run, releases, releases - there, whole.get(run), archived_count.get(run, 0))
            for run in sorted(found.keys() | archived_count.keys())
            for releases, there in [found.get(run, (0, 0))]
        ]

    def _count_archived(self) -> dict[str, int]:
        """Count the releases of each selected run whose answers are in archives."""
        return {
            name: run.kept
            for name, run in self._archived.items()
            if run.kept and (not self.selection.runs or name in self.selection.runs)
        }

    def arrow(self) -> pa.Table:
        """Return all answers as one Arrow table."""
        tables = list(self)
        return pa.concat_tables(tables).unify_dictionaries() if tables else COLUMNS.empty_table()

    def polars(self) -> pl.DataFrame:
        """Return all answers as a Polars frame."""
        return pl.DataFrame(self.arrow())

    def pandas(self) -> pd.DataFrame:
        """Return all answers as a pandas frame."""
        return self.arrow().to_pandas()

    def close(self) -> None:
        """Close the ledger."""
        self.ledger.close()

    def __enter__(self) -> ReleasedAnswers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def iterate_counts(self) -> Iterator[pa.Table]:
        """Yield the selected counts, one table per release; a selection of subjects has none."""
        for row in () if self.selection.subjects else self._checked_rows():
            table, consumers = unpack_counts(row["body"])
            self.consumers |= consumers
            chosen = self._select_rows(table, consumers)
            if chosen.num_rows:
                yield chosen

    def counted(self) -> pl.DataFrame:
        """Return the selected counts as a Polars frame: a row for each window, query and group."""
        tables = list(self.iterate_counts())
        whole = pa.concat_tables(tables).unify_dictionaries() if tables else None
        return pl.DataFrame(count_schema().empty_table() if whole is None else whole)

    def _checked_rows(self) -> Iterator[Any]:
        """Yield the selected releases; raise LedgerError if one was changed."""
        for row in self._rows():
            if digest(row["body"]) != row["digest"]:
                raise LedgerError(
                    f"the answers of release {row['number']} were changed since they were released;"
                    " run tacit ledger verify, and restore a backup"
                )
            yield row

    def __iter__(self) -> Iterator[pa.Table]:
        names = Directory(self.ledger)
        for row in self._checked_rows():
            table, consumers = unpack(row["body"], row["first_id"], names)
            self.consumers |= consumers
            chosen = self._select_rows(table, consumers)
            if chosen.num_rows:
                yield chosen

    def _rows(self) -> Iterator[Any]:
        """Yield the selected releases with stored answers, in order."""
        for path in self.archives:
            with closing(ArchiveFile(path)) as file:
                yield from filter(self._is_selected, file.rows())
        yield from self._read_releases()

    def _is_selected(self, row: Any) -> bool:
        """Return whether an archived release has answers and may match the selection."""
        selection, last = self.selection, row["first"] + (row["windows"] - 1) * row["slide"]
        return (
            row["body"] is not None
            and (not selection.runs or row["run"] in selection.runs)
            and (selection.since is None or last >= selection.since)
            and (selection.until is None or row["first"] < selection.until)
        )

    def _read_releases(self) -> Iterator[Any]:
        """Yield the releases in the ledger, each read in its own transaction."""
        kept = RELEASES.join(BODIES, BODIES.c.release == RELEASES.c.number)
        columns = (*RELEASES.c["number", "first_id", "digest"], BODIES.c.body)
        query = sa.select(*columns).select_from(kept).where(self._select_releases())
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

    def _select_releases(self) -> sa.ColumnElement[bool]:
        """Return the condition for releases that may match the selection."""
        selection, until = self.selection, RELEASES.c.first + RELEASES.c.windows * RELEASES.c.slide
        conditions: list[sa.ColumnElement[bool]] = [sa.true()]
        if selection.runs:
            conditions.append(RELEASES.c.run.in_(selection.runs))
        if selection.since is not None:
            conditions.append(until - RELEASES.c.slide >= selection.since)
        if selection.until is not None:
            conditions.append(RELEASES.c.first < selection.until)
        return sa.and_(*conditions)

    def _select_rows(self, table: pa.Table, consumers: Mapping[str, str]) -> pa.Table:
        """Return the selected rows of a table."""
        selection = self.selection
        masks = []
        queries = selection.select_queries(consumers)
        if len(queries) < len(consumers):
            masks.append(_is_in(table["query"], list(queries)))
        if selection.subjects:
            masks.append(_is_in(table["subject"], list(selection.subjects)))
        start = table["window_start"].cast(pa.int64())
        if selection.since is not None:
            masks.append(pc.greater_equal(start, selection.since))
        if selection.until is not None:
            masks.append(pc.less(start, selection.until))
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
    """Read released answers from a ledger again, exactly as they were.

    Each name may be one or several. `since` and `until` select windows that start at that time or
    later, and before it; a time without a zone is in UTC. `archives` are files of
    `tacit ledger archive` to read as well. Iterate over the result for one Arrow table per release,
    or call `arrow()`, `polars()` or `pandas()` for all answers.
    """
    selection = AnswerSelection(
        _names(run),
        _names(consumer),
        _names(query),
        _names(subject),
        _parse_time(since),
        _parse_time(until),
    )
    opened = Ledger.open(os.fspath(ledger), read_only=True)
    try:
        return ReleasedAnswers(opened, selection, [Path(path) for path in archives])
    except BaseException:
        opened.close()
        raise


def _names(given: str | Collection[str]) -> Collection[str]:
    return [given] if isinstance(given, str) else given


def _parse_time(given: str | datetime | None) -> int | None:
    return None if given is None else parse_microseconds(given)


def parse_microseconds(given: str | datetime) -> int:
    """Convert a time to microseconds since 1970; a time without a zone is in UTC.

    >>> parse_microseconds(datetime(1970, 1, 1, 0, 1)), parse_microseconds("1970-01-01T00:01+01:00")
    (60000000, -3540000000)
    """
    moment = datetime.fromisoformat(given) if isinstance(given, str) else given
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (moment - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)


def _is_in(column: pa.ChunkedArray, texts: list[str]) -> pa.ChunkedArray:
    return pc.is_in(column.cast(pa.large_string()), value_set=pa.array(texts, pa.large_string()))
