"""No ledger: nothing is charged, nothing is kept, and a run begins anew each time.

It has the interface of `Ledger` and `Lease`, as far as a run uses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class NoLedger:
    """For runs whose answers are released once, and that nobody counts."""

    name = "no ledger"

    def take_over(self, run: str, fingerprint: str) -> NoLease:
        """Any number of runs can go on beside each other."""
        return NoLease(run, fingerprint)


class NoLease:
    """Releases that leave no trace."""

    durable = False
    """Whether what is committed is kept."""

    def __init__(self, run: str, fingerprint: str) -> None:
        self.run = run
        self.fingerprint = fingerprint
        self._released = 0

    def checkpoint(self) -> None:
        """There is nothing to go on from."""

    def until(self) -> None:
        """Nothing was released before."""

    def drop(self, sinks: Sequence[str], before: int) -> int:  # noqa: ARG002
        """Nothing is kept."""
        return 0

    def commit(self, checkpoint: bytes, *releases: Any) -> int | None:  # noqa: ARG002
        """Number the releases; nothing is written."""
        self._released += len(releases)
        return self._released if releases else None
