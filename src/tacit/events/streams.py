"""Streams of tuples: the columns with the subject, the time and the position."""

from __future__ import annotations

import re
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


_DIRECTIVE: Final = re.compile(r"%(\.f|.?)", re.DOTALL)
_DATES: Final = ("F", "D", "Ymd", "Yme", "Ybd", "Ybe", "YBd", "YBe", "Yj", "ymd", "yme", "ybd")
"""Directives of a format that together determine a day."""
_DIRECTIVES: Final = frozenset({*"YymdebBjHIMSpzFTRDaA%", ".f"})


def check_time_format(text: str) -> str:
    """Return the format of written times; raise ValueError if it does not determine a time.

    >>> check_time_format("%d.%m.%Y %H:%M")
    '%d.%m.%Y %H:%M'
    """
    found = _DIRECTIVE.findall(text)
    for directive in found:
        if directive == "f":
            raise ValueError("fractions of a second are written %.f, with their dot: %H:%M:%S%.f")
        if directive not in _DIRECTIVES:
            raise ValueError(
                f"'%{directive}' is not a directive of a time format; expected a format such as"
                " '%d.%m.%Y %H:%M:%S'"
            )
    if not any(set(date) <= set(found) for date in _DATES):
        raise ValueError(
            f"expected the format of a day and a time, such as '%d.%m.%Y %H:%M:%S'; '{text}'"
            " does not determine a day"
        )
    if "I" in found and "p" not in found:
        raise ValueError("hours of %I need %p for AM and PM; hours from 0 to 23 are %H")
    return text


TimeFormat = Annotated[str, AfterValidator(check_time_format)]
"""A format of written times, as in `strftime`."""


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
    format: TimeFormat | None = None
    """The format of times that are not ISO 8601, such as `%d.%m.%Y %H:%M:%S`."""
    delimiter: Literal[",", ";", "\t", "|"] = ","
    """The character between the fields of CSV files."""
    lon: str = "lon"
    """The column with the longitude, for areas."""
    lat: str = "lat"
    """The column with the latitude, for areas."""
    columns: dict[str, ColumnType] = Field(default={})
    """The types of columns, such as `{speed: number, kind: text}`; a value that does not fit its
    column's type is null. Needed for text formats if conditions do not determine the type."""

    @property
    def later_fields(self) -> set[str]:
        """Fields that were added to streams later and have their defaults.

        Fingerprints and definitions leave them out, so that they are those of earlier versions.
        """
        return {name for name in ("format", "delimiter") if name not in self._changed}

    @property
    def _changed(self) -> set[str]:
        fields = type(self).model_fields
        return {name for name, field in fields.items() if getattr(self, name) != field.default}

    @model_validator(mode="after")
    def _check_columns(self) -> Stream:
        if self.format is not None and self.unit is not None:
            raise ValueError("unit is for numbers and format for written times; keep one of them")
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
