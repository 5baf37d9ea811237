"""The command line: `tacit COMMAND`.

Commands import what they need when they run, so that `tacit --help` stays quick.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from tacit.cli.endings import EXIT_CODES, ending

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class _Group(click.Group):
    def invoke(self, context: click.Context) -> Any:
        with ending():
            return super().invoke(context)


@click.group(cls=_Group, context_settings=_CONTEXT, epilog=EXIT_CODES)
@click.version_option(package_name="tacit")
def main() -> None:
    """Complex event processing that keeps private patterns unsaid.

    \b
    Example:
      tacit validate examples/taxi.yaml
      tacit detect examples/taxi.yaml trips.parquet --to answers.parquet
    """


@main.command()
@click.argument("spec", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
def validate(spec: Path, as_json: bool) -> None:
    """Check a specification and report every mistake in it.

    \b
    Example:
      tacit validate examples/taxi.yaml
    """
    from tacit.errors import SpecificationError
    from tacit.spec.reading import load

    try:
        checked = load(spec)
    except SpecificationError as error:
        if not as_json:
            raise
        mistakes = [
            {"message": m.message, "file": m.file, "line": m.line, "column": m.column}
            for m in error.mistakes
        ]
        click.echo(json.dumps({"valid": False, "mistakes": mistakes}, indent=2))
        sys.exit(3)
    if as_json:
        report = {"valid": True, "mistakes": [], "fingerprint": checked.fingerprint}
        click.echo(json.dumps(report, indent=2))
    else:
        click.echo(f"{spec} is right: {checked}")


@main.command()
def schema() -> None:
    """Print the JSON Schema of specifications, for editors.

    \b
    Example:
      tacit schema > tacit.schema.json
    """
    from tacit.spec.schema import json_schema

    click.echo(json.dumps(json_schema(), indent=2))


@main.command()
@click.argument("spec", type=click.Path(path_type=Path))
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@click.option(
    "--to",
    "sink",
    metavar="SINK",
    default="-",
    show_default=True,
    help="Where answers go: .parquet, .csv, .jsonl or .arrow; - is JSON lines on standard output.",
)
@click.option(
    "--dead-letters",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where refused tuples go, as JSON lines; by default beside the sink.",
)
@click.option(
    "--subjects",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file with the registered subjects, one in a line; instead of the specification's.",
)
@click.option(
    "--learn",
    metavar="DURATION",
    help="Learn the subjects from this stretch of the stream; instead of the specification's.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def detect(
    spec: Path,
    sources: tuple[str, ...],
    sink: str,
    dead_letters: Path | None,
    subjects: Path | None,
    learn: str | None,
    as_json: bool,
) -> None:
    """Detect patterns: the TRUE, UNPROTECTED answers, for operators alone.

    A SOURCE is a path (.parquet, .csv, .jsonl, .arrow, a folder or a pattern of these), or - for
    JSON lines on standard input; STREAM=SOURCE where the specification has several streams.
    Subjects that no one names are learned: from the whole input, or, if that is a pipe, from its
    first ten windows.

    \b
    Examples:
      tacit detect examples/taxi.yaml trips.parquet --to answers.parquet
      tacit detect home.yaml doors=doors.csv power=power.jsonl --to answers.csv
      zcat trips.jsonl.gz | tacit detect examples/taxi.yaml - > answers.jsonl
    """
    from tacit.cli.detecting import run_detection

    run_detection(spec, sources, sink, dead_letters, subjects, learn, as_json)


@main.command()
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default="demo-output",
              show_default=True, help="The folder that everything is written to.")  # fmt: skip
@click.option("--taxis", type=click.IntRange(1, 100_000), default=500, show_default=True,
              help="How many taxis there are.")  # fmt: skip
@click.option("--days", type=click.FloatRange(0.05, 60), default=2.0, show_default=True,
              help="How many days they drive.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True,
              help="Another seed gives other trips.")  # fmt: skip
def demo(out: Path, taxis: int, days: float, seed: int) -> None:
    """Show the engine at work on generated taxi trips.

    \b
    Example:
      tacit demo --taxis 1000 --days 7
    """
    from tacit.cli.showing import show

    show(out, taxis, days, seed)
