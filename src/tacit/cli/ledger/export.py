"""`tacit ledger export`: charges as rows."""

from __future__ import annotations

import click

from tacit.cli import options
from tacit.quantities import count


@click.command("export")
@options.ledger_place
@click.option(
    "--to",
    "target",
    metavar="FILE",
    required=True,
    help="Where to write charges: .parquet, .csv, .jsonl or .arrow; - means JSON lines on standard"
    " output.",
)
@options.subject
@options.private
def export_ledger(place: str, target: str, subject: str | None, private: str | None) -> None:
    """Write charges as rows.

    There is one row for each window, subject and private pattern.

    \b
    Examples:
      tacit ledger export taxi.ledger --to charges.parquet
      tacit ledger export taxi.ledger --subject 4711 --to charges.csv
    """
    from tacit.connectors.openers import open_sink
    from tacit.ledger.ledger import Ledger
    from tacit.ledger.rows import SCHEMA, iterate_rows

    rows = 0
    with Ledger.open(place, read_only=True) as ledger, open_sink(target, SCHEMA) as sink:
        for table in iterate_rows(ledger, subject=subject, private=private):
            sink.write(table)
            rows += table.num_rows
    click.echo(f"{count(rows, 'charge')} written to {sink.name}", err=True)
