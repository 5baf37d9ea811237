"""Releases before they are written to a ledger, and before they are delivered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tacit.ledger.charges import Charge


@dataclass(frozen=True, slots=True, eq=False)
class ReleaseDraft:
    """A release to be written: the answers of consecutive windows, and their charges."""

    first: int
    """The start time of the first window."""
    windows: int
    size: int
    slide: int
    fingerprint: str
    """The specification's."""
    plan: str
    """The plan's fingerprint, or another name of the method."""
    answers: int
    """The number of answers in the body; each gets an id."""
    body: bytes
    charges: Sequence[Charge] = ()

    def __post_init__(self) -> None:
        if min(self.windows, self.size, self.slide) < 1:
            raise ValueError("a release needs at least one window, with a positive size and slide")
        if any(not self.first <= charge.first < self.until for charge in self.charges):
            raise ValueError("a release may charge only for its own windows")

    @property
    def until(self) -> int:
        """The start time of the window after these."""
        return self.first + self.windows * self.slide


@dataclass(frozen=True, slots=True, eq=False)
class UndeliveredRelease:
    """A release that was not delivered to a sink yet."""

    release: int
    first_id: int
    """The id of its first answer; the others follow."""
    answers: int
    body: bytes
    first: int
    windows: int
    size: int
    slide: int
    fingerprint: str
    plan: str
