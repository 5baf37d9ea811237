"""A whole year of one-minute releases for 10,000 subjects, written, verified and archived."""

from __future__ import annotations

from pathlib import Path

from benchmarks.ledger_growth import measure


def test_a_year_of_releases_is_archived_and_verified(tmp_path: Path) -> None:
    """It ends with an error where anything is not as it was written; what it took is printed."""
    measure(tmp_path, days=365, subjects=10_000)
