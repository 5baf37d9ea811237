"""Areas in a specification: boxes, circles and GeoJSON polygons.

Positions are degrees of longitude and latitude. An area's edge belongs to it.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from tacit.config import Config

if TYPE_CHECKING:
    from tacit.events.shapes import Shape

_METRES = {"m": 1.0, "km": 1000.0}
_DISTANCE = re.compile(r"\s*(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*(m|km)\s*")
_FARTHEST = 20_016_000.0
"""Half the circumference of the earth, in metres."""


def parse_distance(text: str) -> float:
    """Parse a distance, such as `300 m` or `1.5 km`, into metres.

    >>> parse_distance("1.5 km")
    1500.0
    """
    found = _DISTANCE.fullmatch(text)
    if found is None:
        raise ValueError(
            f"expected a distance with its unit (m or km), such as '300 m'; got '{text}'"
        )
    metres = float(found[1]) * _METRES[found[2]]
    if not 0 < metres <= _FARTHEST:
        raise ValueError(f"a radius must be more than 0 and at most 20016 km; got '{text}'")
    return metres


def format_distance(metres: float) -> str:
    """Format a distance so that it parses back to the same number.

    >>> format_distance(300.0)
    '300 m'
    """
    return f"{repr(metres).removesuffix('.0')} m"


def _read_distance(value: Any) -> Any:
    if isinstance(value, str):
        return parse_distance(value)
    if isinstance(value, int | float):
        raise ValueError(f"a radius needs its unit, such as '{value} m' or '{value} km'")
    return value


Distance = Annotated[
    float,
    BeforeValidator(_read_distance),
    PlainSerializer(format_distance),
    WithJsonSchema({"type": "string", "examples": ["300 m", "1.5 km"]}),
]
"""A distance: `300 m` in a specification, metres inside."""


class Area(Config):
    """A geographic area, given in exactly one of three ways."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    box: tuple[float, float, float, float] | None = None
    """Least longitude, least latitude, greatest longitude, greatest latitude."""
    circle: tuple[float, float, Distance] | None = None
    """Longitude and latitude of the centre, and the radius (great-circle distance)."""
    geojson: str | dict[str, Any] | None = None
    """A GeoJSON file, relative to the specification's folder, or a GeoJSON object."""

    @field_validator("box")
    @classmethod
    def _check_box(
        cls, box: tuple[float, float, float, float] | None
    ) -> tuple[float, float, float, float] | None:
        if box is not None:
            check_position(box[0], box[1])
            check_position(box[2], box[3])
            if box[0] > box[2] or box[1] > box[3]:
                raise ValueError(
                    "a box is [min lon, min lat, max lon, max lat]; here a least value is greater "
                    "than the greatest one. For a box across the 180th meridian write two areas"
                )
        return box

    @field_validator("circle")
    @classmethod
    def _check_circle(
        cls, circle: tuple[float, float, float] | None
    ) -> tuple[float, float, float] | None:
        if circle is not None:
            check_position(circle[0], circle[1])
        return circle

    @field_validator("geojson")
    @classmethod
    def _check_geojson(cls, geojson: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
        if isinstance(geojson, dict):
            from tacit.events.shapes import parse_polygon

            parse_polygon(geojson)
        elif geojson is not None and not geojson.strip():
            raise ValueError("expected the path of a GeoJSON file, or a GeoJSON object")
        return geojson

    @model_validator(mode="after")
    def _check_one(self) -> Area:
        given = [name for name in ("box", "circle", "geojson") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                "an area is exactly one of box, circle or geojson; got "
                + (" and ".join(given) or "none of them")
            )
        return self

    def shape(self, folder: Path = Path()) -> Shape:
        """Return the shape of the area; read the GeoJSON file if there is one.

        A relative path starts at `folder`, the specification's folder. Raise ValueError if the
        file is missing or has no valid polygon.
        """
        from tacit.events import shapes

        if self.box is not None:
            return shapes.Box(*self.box)
        if self.circle is not None:
            return shapes.Circle(*self.circle)
        geojson = self.geojson
        if isinstance(geojson, str):
            geojson = _read_geojson(folder / geojson)
        return shapes.parse_polygon(geojson)


def check_position(lon: float, lat: float) -> None:
    """Raise ValueError unless these are a longitude and a latitude."""
    if not math.isfinite(lon) or not -180 <= lon <= 180:
        raise ValueError(f"a longitude must lie in [-180, 180]; got {lon}")
    if not math.isfinite(lat) or not -90 <= lat <= 90:
        raise ValueError(f"a latitude must lie in [-90, 90]; got {lat}")


def _read_geojson(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise ValueError(f"cannot read the GeoJSON file '{path}': {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"'{path}' is not GeoJSON: {error}") from error
