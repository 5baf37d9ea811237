"""The base of configuration objects: frozen and checked."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    WithJsonSchema,
)

from tacit.durations import format_duration, parse_duration


class Config(BaseModel):
    """A part of a specification: frozen, and strict about unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Number(float):
    """A number read from text that remembers how it was written."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> Number:
        """Read the number; `.inf` and `.nan` as YAML writes them."""
        number = super().__new__(cls, text.replace(".inf", "inf").replace(".nan", "nan"))
        number.text = text
        return number

    def __getnewargs__(self) -> tuple[str]:  # type: ignore[override]
        return (self.text,)


def describe(value: Any) -> str:
    """Describe a value's type in plain words; show the value if it is short."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case Number():
            return value.text[:40]
        case int() | float() | Decimal():
            return str(value) if len(str(value)) <= 40 else "a number too long to show"
        case str():
            return f"'{value}'" if len(value) <= 60 else f"'{value[:57]}...'"
        case dict():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case _:
            return f"a {type(value).__name__}"


def _read_duration(value: Any) -> int:
    """Convert a duration to whole microseconds; in Python a timedelta is allowed too."""
    if isinstance(value, timedelta):
        value = value // timedelta(microseconds=1)
        if value < 0:
            raise ValueError("a duration cannot be negative")
        return int(value)
    if not isinstance(value, str):
        written = describe(value)
        hint = f", such as '{written} s'" if type(value) in (int, Number) else ": '10 min'"
        raise ValueError(f"a duration is written with its unit{hint}; got {written}")
    if value.lstrip().startswith("-"):
        raise ValueError(f"a duration cannot be negative; got {describe(value)}")
    return parse_duration(value)


def _above_zero(duration: int) -> int:
    if duration == 0:
        raise ValueError("this duration must be more than 0, such as '10 min'")
    return duration


Duration = Annotated[
    int,
    BeforeValidator(_read_duration),
    PlainSerializer(format_duration),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": r"^\s*\d+(\.\d+)?\s*[A-Za-z]+\s*$",
            "examples": ["10 min", "30 s"],
        }
    ),
]
"""A duration: `10 min` in a specification, whole microseconds inside."""

Span = Annotated[Duration, AfterValidator(_above_zero)]
"""A duration above zero."""
