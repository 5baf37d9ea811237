"""The public schedule: when windows begin and end, and how long late tuples are waited for."""

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


MOST_PANES: Final = 1000
"""A tuple may lie in so many windows."""
_JUMP: Final = 100
"""So many windows one tuple may open by itself, where nothing else is said."""


class Windows(Config):
    """Windows in event time, aligned to the epoch in UTC, half-open; tumbling or sliding.

    A sliding window is cut into panes as long as its slide.
    """

    size: Span
    """How long a window is."""
    slide: Span | None = None
    """How far apart windows begin, where they overlap: the size is a multiple of it."""
    lateness: Duration = 0
    """How long the tuples of a window are waited for after its end, in event time."""
    future: Duration = 7 * MICROSECONDS["d"]
    """How far ahead of the largest time seen a tuple may be before it is refused.

    Where windows close by the clock, ahead of the clock, and if nothing is said, as far as the
    lateness or one window, whichever is longer.
    """
    jump: Duration | None = None
    """How far ahead one tuple may be by itself; further only if the next one confirms it.

    By default 100 windows; never more than `future`. Not used where the clock closes windows.
    """
    start: Moment | None = None
    """The first window is the one that holds this time; by default that of the earliest tuple."""
    close: Literal["events", "clock"] = "events"
    """What closes windows: event time, or the clock on the wall, which no tuple can move."""

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
            # A new specification holds from the first window on that no tuple can have reached.
            vars(self)["future"] = max(self.lateness, self.pane)
        return self

    @property
    def pane(self) -> int:
        """How far apart windows begin; a pane is as long."""
        return self.slide or self.size

    @property
    def panes(self) -> int:
        """How many panes a window has: 1 where windows do not overlap."""
        return self.size // self.pane

    @property
    def jumps(self) -> tuple[int, int]:
        """How far ahead a tuple may be where event time closes windows: by itself, and at all."""
        future = self.future
        if self.close == "clock" and "future" not in self.model_fields_set:
            future = Windows.model_fields["future"].default  # it is replayed
        jump = _JUMP * self.pane if self.jump is None else self.jump
        return min(jump, future), future

    @property
    def unit(self) -> str:
        """What an epsilon is for: all that happens in a window, or one occurrence of a pattern.

        An occurrence has one event of each of the pattern's elements, all inside one window.
        """
        return "window" if self.panes == 1 else "occurrence"

    @property
    def start_time(self) -> int | None:
        """The start in microseconds since the epoch."""
        if self.start is None:
            return None
        return (self.start - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
