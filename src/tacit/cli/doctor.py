"""`tacit doctor`: check a set-up before you run it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

import click

from tacit.cli import options
from tacit.cli.progress import show_spinner

FAILED: Final = 1


@click.command()
@options.spec
@options.allow_path
@click.argument("sources", metavar="[SOURCE...]", nargs=-1)
@options.plan
@options.ledger("The ledger that the run will use.")
@click.option("--to", "sink", metavar="SINK", help="Where the run will write answers.")
@options.name("The name of the run in the ledger.")
@options.subjects
@options.dead_letters
@options.as_json()
def doctor(
    spec: Path,
    sources: tuple[str, ...],
    plan_file: Path | None,
    ledger_place: str | None,
    sink: str | None,
    name: str | None,
    subjects: Path | None,
    dead_letters: Path | None,
    as_json: bool,
) -> None:
    """Check a set-up before you run it.

    Give it the arguments of tacit run. It checks the specification, the plan and its audit, sources
    and brokers, the last link of the ledger and the checkpoint of the run, the registry, the sink,
    disk space, the clock, file permissions and installed extras. It changes nothing and does not
    disturb a run in progress. Exits with code 1 if anything is wrong; a warning does not stop you
    from running.

    \b
    Examples:
      tacit doctor taxi.yaml
      tacit doctor taxi.yaml february.parquet --plan plan.json --ledger spent.db --to answers.jsonl
      tacit doctor taxi.yaml 'mqtt://broker/taxis/{taxi}?columns=ts:time,speed:number' --ledger l.db
    """
    from tacit.engines.setup import letters_beside
    from tacit.insight.doctor import Setup, examine

    letters = dead_letters if sink is None else letters_beside(sink, dead_letters)
    allowed = options.allowed_paths()
    setup = Setup(spec, sources, plan_file, ledger_place, name, sink, subjects, letters, allowed)
    with show_spinner("Checking ..."):
        findings = examine(setup)
    click.echo(json.dumps(findings.to_dict(), indent=2) if as_json else findings)
    if not findings.passed:
        sys.exit(FAILED)
