"""`tacit explain`: a specification in plain words."""

from __future__ import annotations

import json
from pathlib import Path

import click

from tacit.cli.paths import allowed_paths
from tacit.insight.explain import explain
from tacit.spec.reading import load


def run_explain(spec_path: Path, as_json: bool) -> None:
    """Say what is protected, how well, and what is not."""
    told = explain(load(spec_path, allowed_paths()))
    click.echo(json.dumps(told.to_dict(), indent=2) if as_json else told)
