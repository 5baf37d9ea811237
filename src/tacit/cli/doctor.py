"""`tacit doctor`: check a set-up before you run it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Final

import click

from tacit.cli import options
from tacit.cli.progress import show_spinner

if TYPE_CHECKING:
    from tacit.engines.setup import RunOptions

FAILED: Final = 1


@click.command()
@options.spec
@options.allow_path
@click.argument("sources", metavar="[SOURCE...]", nargs=-1)
@options.plan
@options.mechanism
@options.ledger("The ledger that the run will use.")
@options.no_ledger
@click.option("--to", "sink", metavar="SINK", help="Where the run will write answers.")
@options.name("The name of the run in the ledger.")
@options.subjects
@options.learn
@options.seed
@options.follow("The run will keep reading files and folders as they grow.")
@options.retain
@options.dead_letters
@options.as_json()
@options.as_run
def doctor(given: RunOptions, as_json: bool) -> None:
    """Check a set-up before you run it.

    Give it the arguments of tacit run. It checks the specification, the plan and its audit, sources
    and brokers, the last link of the ledger and the checkpoint of the run, how far its memory has
    drifted from history, the registry, the sink, disk space, the clock, file permissions and
    installed extras. It changes nothing and does not
    disturb a run in progress. Exits with code 1 if anything is wrong; a warning does not stop you
    from running.

    \b
    Examples:
      tacit doctor taxi.yaml
      tacit doctor taxi.yaml february.parquet --plan plan.json --ledger spent.db --to answers.jsonl
      tacit doctor taxi.yaml 'mqtt://broker/taxis/{taxi}?columns=ts:time,speed:number' --ledger l.db
    """
    from tacit.insight.doctor import examine

    with show_spinner("Checking ..."):
        findings = examine(given)
    click.echo(json.dumps(findings.to_dict(), indent=2) if as_json else findings)
    if not findings.passed:
        sys.exit(FAILED)
