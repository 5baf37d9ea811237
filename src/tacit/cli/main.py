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
