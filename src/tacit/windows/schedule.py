"""The public schedule: when windows begin and end, and how long late tuples are waited for."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, ValidationInfo, WithJsonSchema, field_validator

from tacit.config import Config, Duration, Span, describe
from tacit.durations import MICROSECONDS


def _read_moment(value: Any) -> datetime | None:
    """A moment in UTC; one without a zone is taken to be in UTC already."""
    if isinstance(value, str):
        with suppress(ValueError):
            value = datetime.fromisoformat(value.strip())
    elif isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise ValueError(
            f"expected a time in ISO 8601, such as '2008-02-02T00:00:00Z'; got {describe(value)}"
        )
    try:
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("this time lies outside the years 1 to 9999") from error


Moment = Annotated[
    datetime,
    BeforeValidator(_read_moment),
    WithJsonSchema({"type": "string", "examples": ["2008-02-02T00:00:00Z"]}),
]
"""A moment: ISO 8601 in a specification, UTC inside."""


class Windows(Config):
    """Tumbling windows in event time, aligned to the epoch in UTC, half-open."""

    size: Span
    """How long a window is."""
    slide: Span | None = None
    """How far apart windows begin; only the size itself (tumbling windows) in this version."""
    lateness: Duration = 0
    """How long the tuples of a window are waited for after its end, in event time."""
    future: Duration = MICROSECONDS["d"]
    """How far ahead of the largest time seen a tuple may be before it is refused."""
    start: Moment | None = None
    """The first window is the one that holds this time; by default that of the earliest tuple."""

    @field_validator("slide")
    @classmethod
    def _check_slide(cls, slide: int | None, info: ValidationInfo) -> None:
        size: int | None = info.data.get("size")
        if None not in (size, slide) and slide != size:
            raise ValueError(
                "sliding windows are not available in this version; leave slide out, "
                "or make it the size"
            )

    @property
    def start_time(self) -> int | None:
        """The start in microseconds since the epoch."""
        if self.start is None:
            return None
        return (self.start - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
