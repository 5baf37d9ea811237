"""`tacit explain`: what a specification protects, in plain words."""

from __future__ import annotations

import json
from pathlib import Path

import click

from tacit.cli import options


@click.command()
@options.spec
@options.allow_path
@options.file(
    "--plan", "plan_file", metavar="PLAN", help="Explain counts as this plan splits epsilon."
)
@options.as_json()
def explain(spec: Path, plan_file: Path | None, as_json: bool) -> None:
    """Explain what is protected, how well, and what is not.

    Shows what each private pattern's epsilon means as odds, which queries it affects and why, and
    what the guarantee covers.

    \b
    Example:
      tacit explain examples/taxi.yaml
    """
    from tacit.insight.explain import explain as explain_spec
    from tacit.spec.yaml_reader import load

    loaded = load(spec, options.allowed_paths())
    plan = None
    if plan_file is not None:
        from tacit.planning.plan import Plan

        plan = Plan.load(plan_file, loaded)
    explanation = explain_spec(loaded, plan)
    click.echo(json.dumps(explanation.to_dict(), indent=2) if as_json else explanation)
