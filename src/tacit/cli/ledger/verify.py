"""`tacit ledger verify`: whether a ledger was changed."""

from __future__ import annotations

import json
import string
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tacit.cli import options
from tacit.cli.progress import show_spinner
from tacit.errors import LedgerError
from tacit.quantities import count

if TYPE_CHECKING:
    from tacit.ledger.verification import Verdict

FAILED: Final = 8
_FAULTS: Final = 20
"""Faults that are shown as text."""


def _read_anchors(
    _context: click.Context, _param: click.Parameter, given: tuple[str, ...]
) -> dict[int, str]:
    """Read numbers of releases and their hashes."""
    anchors = {}
    for text in given:
        number, _, noted = text.partition(":")
        if not number.isdecimal() or len(noted) != 64 or set(noted.lower()) - set(string.hexdigits):
            raise click.BadParameter(f"expected NUMBER:HASH, as verify prints it; got {text!r}")
        anchors[int(number)] = noted.lower()
    return anchors


@click.command("verify")
@options.ledger_place
@click.option(
    "--anchor",
    "anchors",
    metavar="NUMBER:HASH",
    multiple=True,
    callback=_read_anchors,
    help="A release and its hash, as verify printed them earlier. Repeatable.",
)
@options.archives("Verify this archive too, and that it continues into the ledger.")
@click.option("--full", is_flag=True, help="Verify everything, also what was verified before.")
@options.as_json()
def verify_ledger(
    place: str, anchors: dict[int, str], archives: tuple[Path, ...], full: bool, as_json: bool
) -> None:
    """Verify that nobody changed a ledger.

    Names the first broken link. Checks the hash chain of releases and charges, the stored answers,
    administrative acts, the accounts, time zones, tokens, proposals and versions that they are
    about, the registry of subjects, and that balances are the sum of charges. The ledger remembers
    what was verified: the next time only new entries and a random sample of the rest are checked.
    Exits with code 8 if anything was changed.

    \b
    Examples:
      tacit ledger verify taxi.ledger
      tacit ledger verify taxi.ledger --full --archive taxi.ledger.1-44640.archive
    """
    from tacit.ledger.ledger import Ledger
    from tacit.ledger.verification import record_verification, verify

    with Ledger.open(place, read_only=True) as ledger, show_spinner("Verifying the ledger"):
        verdict = verify(ledger, anchors, full=full, archives=archives)
        name = ledger.name
    if verdict.passed:
        try:
            with Ledger.open(place, create=False) as ledger:
                record_verification(ledger, verdict)
        except LedgerError as error:
            click.echo(f"tacit: cannot store what was verified: {error}", err=True)
    if as_json:
        click.echo(json.dumps({"passed": verdict.passed} | asdict(verdict), indent=2))
    else:
        click.echo("\n".join(_format_verdict(name, verdict)))
    if not verdict.passed:
        sys.exit(FAILED)


def _format_verdict(name: str, verdict: Verdict) -> Iterator[str]:
    looked = (
        f"{count(verdict.releases, 'release')}, {count(verdict.charges, 'charge')},"
        f" {count(verdict.bodies, 'release')} with stored answers,"
        f" {count(verdict.balances, 'balance')}, {count(verdict.subjects, 'subject')},"
        f" {count(verdict.acts, 'administrative act')}"
    )
    if verdict.passed:
        yield f"The ledger {name} is unchanged: {looked}."
        if verdict.archived:
            yield f"Releases up to {verdict.archived:,} are archived."
        for path in verdict.archives:
            yield f"The archive {path} is unchanged and continues into the ledger."
        if verdict.since > verdict.archived:
            yield (
                f"Releases up to {verdict.since:,} were verified before; a random sample of"
                f" {verdict.sampled:,} was checked again. --full checks all."
            )
        if verdict.releases:
            yield f"Release {verdict.releases} has the hash {verdict.hash}. Store it elsewhere:"
            yield f"--anchor {verdict.releases}:{verdict.hash} checks later that it is the same."
        return
    yield f"The ledger {name} was CHANGED ({looked} read):"
    for fault in verdict.faults[:_FAULTS]:
        yield f"  {fault}"
    if len(verdict.faults) > _FAULTS:
        yield f"  and {len(verdict.faults) - _FAULTS:,} more; --json shows all"
