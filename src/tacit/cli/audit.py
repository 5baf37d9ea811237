"""`tacit audit`: the exact epsilon of every channel in a plan."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

import click

from tacit.cli import options

FAILED: Final = 7


@click.command()
@click.argument("plan_file", metavar="PLAN", type=click.Path(path_type=Path))
@options.file(
    "--spec",
    metavar="SPEC",
    help="The specification that the plan must be for; by default the one stored in the plan.",
)
@options.allow_path
@options.as_json("Report as JSON, with every channel.")
def audit(plan_file: Path, spec: Path | None, as_json: bool) -> None:
    """Compute the exact epsilon of every channel in a plan.

    For every private pattern the report has the true epsilon of the whole pattern and of a single
    element, as certified upper bounds, and compares it with the epsilon that the specification
    grants. Exits with code 7 if anything exceeds it.

    \b
    Example:
      tacit audit plan.json --spec taxi.yaml
    """
    from tacit.errors import PlanError, PrivacyError
    from tacit.insight.audit import audit as audit_plan
    from tacit.planning.plan import Plan, read_plain
    from tacit.spec.yaml_reader import load

    plain = read_plain(plan_file)
    checked = None if spec is None else load(spec, options.allowed_paths())
    try:
        report = audit_plan(Plan.from_dict(plain, checked))
    except (PlanError, PrivacyError) as error:
        # The file is a plan, but its tables or its neighbours are wrong.
        if as_json:
            click.echo(json.dumps({"passed": False, "error": str(error)}, indent=2))
        else:
            click.echo(f"Audit FAILED: {error}")
        sys.exit(FAILED)
    click.echo(json.dumps(report.to_dict(), indent=2) if as_json else report)
    if not report.passed:
        sys.exit(FAILED)
