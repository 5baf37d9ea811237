"""`tacit doctor`: whether a set-up would run, before it does."""

from __future__ import annotations

import json
import sys

import click

from tacit.cli.reporting import working
from tacit.insight.doctor import Setup, examine

FAILED = 1


def run_doctor(setup: Setup, as_json: bool) -> None:
    """Look, and say what was found; ends with 1 if anything is wrong."""
    with working("Looking ..."):
        findings = examine(setup)
    click.echo(json.dumps(findings.to_dict(), indent=2) if as_json else findings)
    if not findings.passed:
        sys.exit(FAILED)
