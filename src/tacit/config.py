"""What people write down is read into frozen, checked objects."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, WithJsonSchema

from tacit.durations import format_duration, parse_duration


class Config(BaseModel):
    """A part of a specification: frozen, and strict about unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _read_duration(value: Any) -> Any:
    if isinstance(value, str):
        return parse_duration(value)
    if isinstance(value, int | float):
        raise ValueError(f"a length of time needs its unit, such as '{value} s' or '{value} min'")
    return value


def _read_microseconds(value: Any) -> Any:
    """Durations are whole microseconds inside; in Python they may be given as a timedelta."""
    from datetime import timedelta

    return value // timedelta(microseconds=1) if isinstance(value, timedelta) else value


Duration = Annotated[
    int,
    BeforeValidator(_read_microseconds),
    BeforeValidator(_read_duration),
    PlainSerializer(format_duration),
    WithJsonSchema({"type": "string", "examples": ["10 min", "30 s"]}),
]
"""A length of time: `10 min` in a specification, whole microseconds inside."""
