"""`tacit explain`: what a specification protects, in plain words."""

from __future__ import annotations

import json
from pathlib import Path

import click

from tacit.cli import options


@click.command()
@options.spec
@options.allow_path
@options.as_json()
def explain(spec: Path, as_json: bool) -> None:
    """Explain what is protected, how well, and what is not.

    Shows what each private pattern's epsilon means as odds, which queries it affects and why, and
    what the guarantee covers.

    \b
    Example:
      tacit explain examples/taxi.yaml
    """
    from tacit.insight.explain import explain as explain_spec
    from tacit.spec.yaml_reader import load

    explanation = explain_spec(load(spec, options.allowed_paths()))
    click.echo(json.dumps(explanation.to_dict(), indent=2) if as_json else explanation)
