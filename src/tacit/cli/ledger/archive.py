"""`tacit ledger archive`: move old releases to a file."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from tacit.cli import options
from tacit.cli.progress import show_spinner
from tacit.quantities import count


@click.command("archive")
@options.ledger_place
@options.time(
    "--before",
    required=True,
    help="Archive releases that ended before this time; UTC unless it has a zone.",
)
@options.file("-o", "--out", help="Where to write it; by default LEDGER.FIRST-LAST.archive.")
@click.option(
    "--undelivered",
    is_flag=True,
    help="Also archive releases that not all sinks have received: they will NEVER be delivered.",
)
@options.as_json()
def archive_ledger(
    place: str, before: int, out: Path | None, undelivered: bool, as_json: bool
) -> None:
    """Move old releases to a file.

    Archive regularly so that the ledger does not grow forever. A release moves if its windows and
    the horizons of its charges ended before the given time, and its answers were delivered.
    Balances and limits stay exactly as they are, and the hash chain continues from there. You can
    archive during a run. If the command is interrupted, repeat it.

    \b
    Examples:
      tacit ledger archive taxi.ledger --before 2026-01-01
      tacit ledger archive postgresql://tacit@db/tacit --before 2026-01-01 -o 2025.archive
    """
    from tacit.ledger.archival import archive
    from tacit.ledger.ledger import Ledger

    with Ledger.open(place, create=False) as ledger, show_spinner("Archiving"):
        done = archive(ledger, before, out, undelivered=undelivered)
    if as_json:
        click.echo(json.dumps(asdict(done) | {"file": str(done.file)}, indent=2))
        return
    file = "the file of an interrupted attempt" if done.resumed else str(done.file)
    click.echo(
        f"Releases {done.first:,} to {done.last:,} with {count(done.charges, 'charge')} moved to"
        f" {file}. {count(done.settled, 'merged charge')} and all balances stay in the ledger.\n"
        f"Keep {done.file}: its SHA-256 is {done.digest}, and tacit ledger verify --archive"
        " checks it."
    )
