"""Releases on their way into a ledger, and out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tacit.ledger.charges import Charge


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """What is to be released: the answers of consecutive windows, and what they cost."""

    first: int
    """When the first of the windows starts."""
    windows: int
    size: int
    slide: int
    fingerprint: str
    """The specification's."""
    plan: str
    """The plan's fingerprint, or another name for how answers were made."""
    answers: int
    """How many answers the body holds; each gets an id."""
    body: bytes
    charges: Sequence[Charge] = ()

    def __post_init__(self) -> None:
        if min(self.windows, self.size, self.slide) < 1:
            raise ValueError("a release has at least one window, of some length")
        if any(not self.first <= charge.first < self.until for charge in self.charges):
            raise ValueError("a release may charge for its own windows alone")

    @property
    def until(self) -> int:
        """When the window after these starts."""
        return self.first + self.windows * self.slide


@dataclass(frozen=True, slots=True, eq=False)
class UndeliveredRelease:
    """A release that an outlet has not delivered yet."""

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
