"""Fleets of taxis for tests of counts: the registry, the specification and what was spent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

import tacit
from tacit.ledger.ledger import Ledger
from tacit.ledger.statement import read_statement
from tacit.ledger.verification import verify


def write_registry(fleets: Sequence[str]) -> None:
    """Write the registry of taxis, each with its fleet."""
    taxis = [f"t{number}" for number in range(len(fleets))]
    pl.DataFrame({"taxi": taxis, "fleet": fleets}).write_csv("taxis.csv")


def load_spec(text: str) -> tacit.Specification:
    """Read a specification from its file: paths begin there."""
    Path("spec.yaml").write_text(text)
    return tacit.load("spec.yaml")


def read_spent(place: str, taxi: str) -> list[int]:
    """What a taxi has spent in each horizon, by a ledger that nobody changed."""
    with Ledger.open(place) as ledger:
        verdict = verify(ledger, full=True)
        assert verdict.passed, verdict.faults
        return [one.spent for one in read_statement(ledger, subject=taxi, private="stop").horizons]
