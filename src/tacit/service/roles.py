"""Who may do what: the four roles, and a principal, who has one of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What someone may do."""

    SOURCE = "source"
    """May send tuples to its streams."""
    CONSUMER = "consumer"
    """Sees the answers to its own queries."""
    SUBJECT = "subject"
    """Sees what is private about it, what was spent, and what consumers were told about it."""
    OPERATOR = "operator"
    """Runs the service: sees everything except other people's secrets."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Someone whose token was checked."""

    role: Role
    name: str
    """The consumer, the subject, the producer of tuples, or the operator."""
    token: str
    """The public id of the token, for the log."""
    streams: tuple[str, ...] = ()
    """The streams that a source may send to; empty means all."""

    def __str__(self) -> str:
        return f"{self.role} {self.name}"
