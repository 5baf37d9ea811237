"""`tacit ledger`: a module for each of its commands."""

from __future__ import annotations

import click

from tacit.cli.ledger.acts import show_acts
from tacit.cli.ledger.answers import write_released
from tacit.cli.ledger.archive import archive_ledger
from tacit.cli.ledger.export import export_ledger
from tacit.cli.ledger.show import show_ledger
from tacit.cli.ledger.verify import verify_ledger


@click.group()
def ledger() -> None:
    """Show and verify what was released and what it cost.

    A LEDGER is a file, or postgresql://USER@HOST/DATABASE. You can use these commands during a run.
    None of them changes what was released or spent; archive moves old releases to a file.

    \b
    Examples:
      tacit ledger show taxi.ledger
      tacit ledger show taxi.ledger --subject 4711
      tacit ledger verify postgresql://tacit@localhost/tacit
    """


for command in (
    show_acts,
    write_released,
    archive_ledger,
    export_ledger,
    show_ledger,
    verify_ledger,
):
    ledger.add_command(command)
