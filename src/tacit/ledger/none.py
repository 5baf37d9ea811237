"""The replacement of a ledger for runs without one: nothing is charged or stored.

It has the part of the interface of `Ledger` and `Lease` that a run uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class NoLedger:
    """Replaces the ledger in runs that are not charged and cannot be resumed."""

    name = "no ledger"

    def take_over(self, run: str, fingerprint: str) -> NoLease:
        """Create a lease; any number of them can exist at the same time."""
        return NoLease(run, fingerprint)


class NoLease:
    """Replaces the lease: it only numbers releases."""

    durable = False
    """Whether commits are stored."""

    def __init__(self, run: str, fingerprint: str) -> None:
        self.run = run
        self.fingerprint = fingerprint
        self._released = 0

    def read_checkpoint(self) -> None:
        """Return None: there is no checkpoint."""

    def read_until(self) -> None:
        """Return None: there are no earlier releases."""

    def drop_delivered(self, sinks: Sequence[str], before: int) -> int:  # noqa: ARG002
        """Return 0: nothing is stored."""
        return 0

    def commit(self, checkpoint: bytes, *releases: Any) -> int | None:  # noqa: ARG002
        """Number the releases without writing them."""
        self._released += len(releases)
        return self._released if releases else None
