"""The public schedule: when windows start and end, and how long they wait for late tuples."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BeforeValidator,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from tacit.config import Config, Duration, Span, describe
from tacit.durations import MICROSECONDS, format_duration


def _read_moment(value: Any) -> datetime | None:
    """Parse a moment into UTC; without a time zone it is taken as UTC."""
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
        raise ValueError("this time is outside the years 1 to 9999") from error


Moment = Annotated[
    datetime,
    BeforeValidator(_read_moment),
    WithJsonSchema({"type": "string", "examples": ["2008-02-02T00:00:00Z"]}),
]
"""A moment: ISO 8601 in a specification, UTC inside."""


MOST_PANES: Final = 1000
"""The largest number of windows that a tuple can be in."""
_JUMP: Final = 100
"""The default of `jump`, in windows."""


class Windows(Config):
    """Windows in event time, aligned to the epoch in UTC, half-open; tumbling or sliding.

    A sliding window is divided into panes as long as its slide.
    """

    size: Span
    """The length of a window."""
    slide: Span | None = None
    """The time between the starts of overlapping windows; the size is a multiple of it."""
    lateness: Duration = 0
    """How long a window waits for late tuples after its end, in event time."""
    future: Duration = 7 * MICROSECONDS["d"]
    """How far ahead of the largest time so far a tuple may be; beyond that it is refused.

    If windows close by the clock: how far ahead of the clock. The default is then the lateness or
    one window, whichever is longer.
    """
    jump: Duration | None = None
    """How far ahead a single tuple may be; further only if the next tuples confirm it.

    By default 100 windows; never more than `future`. Not used if windows close by the clock.
    """
    start: Moment | None = None
    """The first window is the one that contains this time; by default that of the first tuple."""
    close: Literal["events", "clock"] = "events"
    """What closes windows: event time, or the wall clock, which no tuple can move."""

    @field_validator("slide")
    @classmethod
    def _check_slide(cls, slide: int | None, info: ValidationInfo) -> int | None:
        size: int | None = info.data.get("size")
        if size is None or slide is None or slide == size:
            return None
        if size % slide or size // slide > MOST_PANES:
            raise ValueError(
                f"windows of {format_duration(size)} cannot begin every {format_duration(slide)}: "
                f"the size must be a multiple of slide, and at most {MOST_PANES:,} times as long"
            )
        return slide

    @model_validator(mode="after")
    def _choose_future(self) -> Windows:
        if self.close == "clock" and "future" not in self.model_fields_set:
            # A new specification applies from the first window that no tuple can have reached.
            vars(self)["future"] = max(self.lateness, self.pane)
        return self

    @property
    def pane(self) -> int:
        """The time between window starts, which is the length of a pane."""
        return self.slide or self.size

    @property
    def panes(self) -> int:
        """The number of panes of a window: 1 if windows do not overlap."""
        return self.size // self.pane

    @property
    def jumps(self) -> tuple[int, int]:
        """How far ahead a tuple may be if windows close by event time: unconfirmed, and at most."""
        future = self.future
        if self.close == "clock" and "future" not in self.model_fields_set:
            future = Windows.model_fields["future"].default  # this is a replay
        jump = _JUMP * self.pane if self.jump is None else self.jump
        return min(jump, future), future

    @property
    def unit(self) -> str:
        """The unit of epsilon: everything in a window, or one occurrence of a pattern.

        An occurrence has one event of each of the pattern's elements, all inside one window.
        """
        return "window" if self.panes == 1 else "occurrence"

    @property
    def start_time(self) -> int | None:
        """The start in microseconds since the epoch."""
        if self.start is None:
            return None
        return (self.start - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
