"""`tacit audit`: what a plan gives away, exactly."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from tacit.cli.paths import allowed_paths
from tacit.errors import PlanError, PrivacyError
from tacit.insight.audit import audit
from tacit.planning.plan import Plan, read_plain
from tacit.spec.reading import load

FAILED = 7


def run_audit(plan_file: Path, spec_file: Path | None, as_json: bool) -> None:
    """Report on a plan; ends with 7 if anything gives away more than it may, or does not fit."""
    plain = read_plain(plan_file)
    spec = None if spec_file is None else load(spec_file, allowed_paths())
    try:
        report = audit(Plan.from_dict(plain, spec))
    except (PlanError, PrivacyError) as error:
        # It is a plan, but not one that could be used: its tables or its neighbours are wrong.
        if as_json:
            click.echo(json.dumps({"passed": False, "error": str(error)}, indent=2))
        else:
            click.echo(f"Audit FAILED: {error}")
        sys.exit(FAILED)
    click.echo(json.dumps(report.to_dict(), indent=2) if as_json else report)
    if not report.passed:
        sys.exit(FAILED)
