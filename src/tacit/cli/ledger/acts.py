"""`tacit ledger acts`: who changed what, and when."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Final

import click

from tacit.cli import options
from tacit.pipeline.times import format_time

_SHOWN: Final = 100


@click.command("acts")
@options.ledger_place
@click.option("--last", metavar="NUMBER", type=click.IntRange(1), default=_SHOWN, show_default=True,
              help="How many acts to show, from the newest.")  # fmt: skip
@options.as_json("Print the acts as JSON.")
def show_acts(place: str, last: int, as_json: bool) -> None:
    """Show administrative acts: who changed what, and when.

    Tokens, proposals, approvals, rejections, changes of policies, versions that went live, and
    accounts and time zones that runs declared. Each act is a link of the hash chain, so tacit
    ledger verify checks them.

    \b
    Examples:
      tacit ledger acts taxi.ledger
      tacit ledger acts taxi.ledger --last 1000 --json
    """
    from tacit.ledger.acts import read_acts
    from tacit.ledger.ledger import Ledger

    with Ledger.open(place, read_only=True) as ledger:
        acts = read_acts(ledger.database, limit=last)
    if as_json:
        plain = [asdict(act) | {"moment": format_time(act.moment)} for act in acts]
        click.echo(json.dumps(plain, indent=2))
        return
    if not acts:
        click.echo("The ledger has no administrative acts.")
    for act in acts:
        detail = ", ".join(f"{name} {value}" for name, value in act.detail.items() if value)
        click.echo(
            f"{act.number:>5}  {format_time(act.moment)}  {act.actor}: {act.kind} {act.about}"
            + (f" ({detail})" if detail else "")
        )
