"""`tacit validate`: check a specification."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tacit.cli import options

if TYPE_CHECKING:
    from tacit.spec.specification import Specification

FAILED = 3


@click.command()
@options.spec
@options.allow_path
@options.as_json()
def validate(spec: Path, as_json: bool) -> None:
    """Check a specification and report every mistake in it.

    \b
    Example:
      tacit validate examples/taxi.yaml
    """
    from dataclasses import asdict

    from tacit.errors import SpecificationError
    from tacit.insight.shared_attributes import find_shared_attributes, format_sharing
    from tacit.spec.columntypes import SpecColumns, format_columns
    from tacit.spec.yaml_reader import load

    try:
        checked = load(spec, options.allowed_paths())
        warnings = check_registry(checked, spec)
    except SpecificationError as error:
        if not as_json:
            raise
        mistakes = [
            {"message": m.message, "file": m.file, "line": m.line, "column": m.column}
            for m in error.mistakes
        ]
        click.echo(json.dumps({"valid": False, "mistakes": mistakes}, indent=2))
        sys.exit(FAILED)
    if as_json:
        columns = {
            stream: {one.column: {"type": one.type, "origin": one.origin} for one in found}
            for stream, found in SpecColumns(checked).report().items()
        }
        report = {
            "valid": True,
            "mistakes": [],
            "warnings": warnings,
            "fingerprint": checked.fingerprint,
            "columns": columns,
            "shared_attributes": [asdict(one) for one in find_shared_attributes(checked)],
        }
        click.echo(json.dumps(report, indent=2))
        return
    click.echo(f"{spec} is valid: {checked}")
    for line in (*format_columns(SpecColumns(checked)), *format_sharing(checked)):
        click.echo(line)
    for message in warnings:
        click.echo(f"Warning: {message}.", err=True)


def check_registry(spec: Specification, file: Path) -> list[str]:
    """Check the listed subjects against the protected ones; returns warnings.

    Raises SpecificationError if a protected subject is not registered.
    """
    from tacit.errors import Mistake, SpecificationError
    from tacit.spec.subjects import list_subjects, list_zones

    list_zones(spec.subjects, spec.folder)  # raises if one is unknown
    if not any(private.subjects for private in spec.private):
        return []
    names = list_subjects(spec.subjects, spec.folder)
    if not names:
        return []
    import pyarrow as pa

    from tacit.privacy.named_subjects import check_names

    try:
        return check_names(spec, pa.array(names, pa.large_string()))
    except SpecificationError as error:
        mistakes = [Mistake(mistake.message, str(file)) for mistake in error.mistakes]
        raise SpecificationError(mistakes) from error
