"""`tacit init`: draft a specification from a file, or start from a template."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from shlex import quote
from typing import Final

import click

from tacit.cli import options
from tacit.errors import OptionError, SinkError

TEMPLATES: Final = ("taxi", "home", "mqtt")
SCHEMA_FILE: Final = "tacit.schema.json"
_MQTT_SOURCE: Final = "'mqtt://USER@BROKER/{base}/+?received=at&password_file=SECRET'"
_NEXT: Final = {
    "taxi": "tacit demo writes trips to try it with: --history demo-output/history.parquet",
    "home": "give each stream its file: motion=motion.csv doors=doors.csv",
    "mqtt": f"its source is {_MQTT_SOURCE}",
}


@click.command()
@click.argument(
    "source", metavar="[FILE]", required=False, type=click.Path(path_type=Path, dir_okay=False)
)
@click.option(
    "--template", type=click.Choice(TEMPLATES), help="Start from a template instead of a file."
)
@options.file("-o", "--out", metavar="SPEC", help="Where to write it. [default: NAME.yaml]")
def init(source: Path | None, template: str | None, out: Path | None) -> None:
    """Draft a specification from a file, or start from a template.

    FILE is a CSV, Parquet, JSON lines or Arrow file. The draft guesses the columns of subject and
    time, column types, the window and some events, explains itself in comments, and can be run at
    once; decide yourself what is private. It names only values that several subjects share. The
    JSON Schema for editors is written beside it. Nothing is overwritten.

    \b
    Examples:
      tacit init trips.csv
      tacit init trips.parquet -o fleet.yaml
      tacit init --template mqtt
    """
    if (source is None) == (template is None):
        raise OptionError("give a file to draft from, or --template " + "|".join(TEMPLATES))
    if source is not None:
        from tacit.insight.drafting import draft_specification

        draft = draft_specification(source)
        text = draft.to_yaml(SCHEMA_FILE)
        remarks = [f"Guessed: {guess}" for guess in draft.guesses]
        remarks += [f"Note: {note}" for note in draft.notes]
        target = out or Path(f"{Path(source).name.partition('.')[0] or draft.stream}.yaml")
        given = str(source)
    else:
        text = (files("tacit.insight") / "templates" / f"{template}.yaml").read_text("utf-8")
        remarks, target, given = [], out or Path(f"{template}.yaml"), "SOURCE"
    _write(target, text)
    schema = target.with_name(SCHEMA_FILE)
    if not schema.exists():
        _write(schema, _schema_text())
    click.echo(f"Wrote {target}, and {schema} for editors.")
    for remark in remarks:
        click.echo(f"  {remark}.")
    click.echo("\nRead it and change it. Then, step by step:")
    limited = " --ledger spent.db" if "limit: " in text and template is not None else ""
    spec, given = quote(str(target)), quote(given)
    for command, what in (
        (f"tacit validate {spec}", "check it"),
        (f"tacit explain {spec}", "what it promises, in plain words"),
        (f"tacit plan {spec} --history {given} -o plan.json", "what quality to expect"),
        (f"tacit run {spec} {given} --plan plan.json{limited} --to answers.csv", "answers"),
    ):
        click.echo(f"  {command}\n      {what}")
    if template is not None:
        click.echo(f"\nFor this template: {_NEXT[template]}.")


def _schema_text() -> str:
    from tacit.spec.schema import json_schema

    return json.dumps(json_schema(), indent=2) + "\n"


def _write(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise SinkError(f"{path} exists already; choose another place with -o") from error
    except OSError as error:
        raise SinkError(f"{path} cannot be written: {error.strerror}; use -o") from error
