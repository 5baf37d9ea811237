"""Streams of tuples: the columns with the subject, the time and the position."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias, get_args
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field, model_validator

from tacit.config import Config

ColumnType: TypeAlias = Literal["text", "number", "integer", "boolean", "time"]
"""The type of a column's values."""
COLUMN_TYPES: Final[tuple[ColumnType, ...]] = get_args(ColumnType)


def check_zone(zone: str) -> str:
    """Return the name of a time zone; raise ValueError if it is unknown."""
    try:
        ZoneInfo(zone)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(
            f"expected the name of a time zone, such as 'Europe/Berlin' or 'UTC'; got '{zone}'"
        ) from error
    return zone


Zone = Annotated[str, AfterValidator(check_zone)]
"""The name of a time zone."""


class Stream(Config):
    """The columns of a stream's tuples that the engine needs."""

    subject: str
    """The column with the subject."""
    time: str
    """The column with the event time."""
    zone: Zone = "UTC"
    """The time zone of times without a zone."""
    unit: Literal["s", "ms", "us", "ns"] | None = None
    """The unit of numeric times; by default seconds or milliseconds, depending on their size."""
    lon: str = "lon"
    """The column with the longitude, for areas."""
    lat: str = "lat"
    """The column with the latitude, for areas."""
    columns: dict[str, ColumnType] = Field(default={})
    """The types of columns, such as `{speed: number, kind: text}`; a value that does not fit its
    column's type is null. Needed for text formats if conditions do not determine the type."""

    @model_validator(mode="after")
    def _check_columns(self) -> Stream:
        if self.columns.get(self.subject, "text") != "text":
            raise ValueError(
                f"columns: subjects are text, exactly as written; '{self.subject}' cannot be"
                f" {self.columns[self.subject]}"
            )
        if self.columns.get(self.time) == "boolean":
            raise ValueError(f"columns: '{self.time}' is the event time; write {self.time}: time")
        for column in (self.lon, self.lat):
            if self.columns.get(column, "number") not in ("number", "integer"):
                raise ValueError(f"columns: '{column}' is a position; write {column}: number")
        return self
