"""Event types: named predicates over the tuples of one stream."""

from __future__ import annotations

from pydantic import field_validator

from tacit.config import Config


class EventType(Config):
    """A predicate that selects tuples of a stream; without conditions, all of them."""

    stream: str
    """The stream whose tuples are tested."""
    where: str | None = None
    """An SQL expression over the tuple's columns; null is no match."""
    inside: str | tuple[str, ...] | None = None
    """An area, or several; the position must be inside at least one."""

    @field_validator("where")
    @classmethod
    def _check_where(cls, where: str | None) -> str | None:
        if where is not None:
            from tacit.events.predicates import parse_predicate

            parse_predicate(where)
        return where

    @field_validator("inside")
    @classmethod
    def _check_inside(cls, inside: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
        if inside == ():
            raise ValueError("inside needs at least one area; leave it out for no condition")
        return inside

    @property
    def areas(self) -> tuple[str, ...]:
        """The areas of `inside`; empty without such a condition."""
        return (self.inside,) if isinstance(self.inside, str) else self.inside or ()
