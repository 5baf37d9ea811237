"""Streams of tuples: which columns hold the subject, the time and the position."""

from __future__ import annotations

from typing import Literal
from zoneinfo import ZoneInfo

from pydantic import field_validator

from tacit.config import Config


class Stream(Config):
    """Where a stream's tuples keep what the engine needs of them."""

    subject: str
    """The column that holds the subject: whose tuple it is."""
    time: str
    """The column that holds the event time."""
    zone: str = "UTC"
    """The zone of times that carry none."""
    unit: Literal["s", "ms", "us", "ns"] | None = None
    """The unit of numeric times; by default seconds or milliseconds, told by their size."""
    lon: str = "lon"
    """The column that holds the longitude, for areas."""
    lat: str = "lat"
    """The column that holds the latitude, for areas."""

    @field_validator("zone")
    @classmethod
    def _check_zone(cls, zone: str) -> str:
        try:
            ZoneInfo(zone)
        except (KeyError, ValueError, OSError) as error:
            raise ValueError(
                f"expected the name of a time zone, such as 'Europe/Berlin' or 'UTC'; got '{zone}'"
            ) from error
        return zone
