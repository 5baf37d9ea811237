"""`tacit ledger answers`: released answers, written again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tacit.cli import options
from tacit.errors import LedgerError, SinkError
from tacit.pipeline.times import format_time
from tacit.quantities import count

if TYPE_CHECKING:
    import pyarrow as pa

    from tacit.ledger.answers import ReleasedAnswers, RunAnswers


@click.command("answers")
@options.ledger_place
@click.option(
    "--run", "runs", metavar="RUN", multiple=True, help="Only answers of this run. Repeatable."
)
@click.option(
    "--consumer",
    "consumers",
    metavar="NAME",
    multiple=True,
    help="Only answers to this consumer. Repeatable.",
)
@click.option(
    "--query",
    "queries",
    metavar="NAME",
    multiple=True,
    help="Only answers to this query. Repeatable.",
)
@click.option(
    "--subject",
    "subjects",
    metavar="SUBJECT",
    multiple=True,
    help="Only answers about this subject. Repeatable.",
)
@options.time(
    "--from",
    "since",
    help="Only windows that start at this time or later; UTC unless it has a zone.",
)
@options.time("--until", help="Only windows that start before this time.")
@options.archives("Include the answers in this archive of the ledger.")
@click.option("--counts", is_flag=True, help="Write counts, not answers about single subjects.")
@options.sink
@options.as_json()
def write_released(
    place: str,
    runs: tuple[str, ...],
    consumers: tuple[str, ...],
    queries: tuple[str, ...],
    subjects: tuple[str, ...],
    since: int | None,
    until: int | None,
    archives: tuple[Path, ...],
    counts: bool,
    sink: str,
    as_json: bool,
) -> None:
    """Write released answers again, exactly as they were.

    This works as long as the ledger keeps them. No noise is drawn and nothing is charged.

    \b
    Examples:
      tacit ledger answers spent.db --run taxi --to answers.csv
      tacit ledger answers spent.db --consumer city --from 2026-03-01 --until 2026-03-02
      tacit ledger answers spent.db --query jam --subject 4711 --to 4711.parquet
    """
    from tacit.answers.counts import count_schema
    from tacit.connectors.openers import open_sink
    from tacit.ledger.answers import COLUMNS, AnswerSelection, ReleasedAnswers
    from tacit.ledger.ledger import Ledger

    selection = AnswerSelection(runs, consumers, queries, subjects, since, until)
    rows = releases = 0
    with Ledger.open(place, read_only=True) as ledger:
        released = ReleasedAnswers(ledger, selection, archives)
        found = released.runs()
        if not archives and found and all(one.deleted == one.releases for one in found):
            raise LedgerError("\n".join(_list_deleted(found)) + "\nNothing was written.")
        tables = released.iterate_counts() if counts else iter(released)
        first = next(tables, None)
        empty = count_schema() if counts else COLUMNS
        columns = empty if first is None else first.schema
        with open_sink(sink, columns, selection.select_queries(released.consumers)) as file:
            for table in chain([] if first is None else [first], tables):
                _check_columns(table, columns, sink)
                file.write(table)
                rows += table.num_rows
                releases += 1
    if as_json:
        report = {"answers": rows, "releases": releases, "to": file.name, "runs": _to_dicts(found)}
        click.echo(json.dumps(report, indent=2), err=sink == "-")
        return
    for line in (*_list_deleted(found), *_list_known(released, rows)):
        click.echo(f"tacit: {line}", err=True)
    what = count(rows, "count" if counts else "answer")
    written = f"{what} of {count(releases, 'release')} written to {file.name}"
    click.echo(f"{written}, as they were released", err=True)


def _check_columns(table: pa.Table, columns: pa.Schema, target: str) -> None:
    """Refuse to put answers with different columns into one file."""
    if target != "-" and table.schema != columns:
        start = table["window_start"][0].as_py()
        raise SinkError(
            f"answers from the window at {start:%Y-%m-%dT%H:%M:%SZ} on have the columns"
            f" {', '.join(table.schema.names)}, those before {', '.join(columns.names)}. Write them"
            " to different files with --run, --from and --until, or as JSON lines to -"
        )


def _list_deleted(runs: Sequence[RunAnswers]) -> Iterator[str]:
    for one in runs:
        if one.deleted:
            kept = "no answers of this run are left"
            if one.kept_from is not None:
                kept = f"answers are kept from the window at {format_time(one.kept_from)} on"
            yield (
                f"run '{one.run}': the answers of {count(one.deleted, 'release')} were deleted"
                f" after their retention time (--retain); {kept}."
            )
        if one.archived:
            yield (
                f"run '{one.run}': the answers of {count(one.archived, 'release')} are in archives;"
                " give the archives with --archive to include them."
            )


def _list_known(released: ReleasedAnswers, rows: int) -> Iterator[str]:
    """Name the queries and consumers in the ledger, if no answer matched."""
    if rows == 0 and released.consumers:
        yield (
            f"no answer matches. The ledger has answers to {', '.join(sorted(released.consumers))}"
            f" for {', '.join(sorted(set(released.consumers.values())))}."
        )


def _to_dicts(runs: Sequence[RunAnswers]) -> list[dict[str, Any]]:
    return [
        asdict(one) | {"kept_from": None if one.kept_from is None else format_time(one.kept_from)}
        for one in runs
    ]
