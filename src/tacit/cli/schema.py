"""`tacit schema`: the JSON Schema of specifications."""

from __future__ import annotations

import json

import click


@click.command()
def schema() -> None:
    """Print the JSON Schema of specifications, for editors.

    \b
    Example:
      tacit schema > tacit.schema.json
    """
    from tacit.spec.schema import json_schema

    click.echo(json.dumps(json_schema(), indent=2))
