"""The geometry of areas: test positions, and relate the cells of a grid to a shape.

Every shape has two vectorised methods: `contains` tests positions exactly, and `relate` classifies
rectangles, where PARTLY is always a safe answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.events.areas import check_position

if TYPE_CHECKING:  # it takes long to import, and only polygons need it
    from shapely.geometry.base import BaseGeometry

EARTH = 6_371_008.8
"""The earth's mean radius in metres."""
OUTSIDE, PARTLY, WHOLLY = 0, 1, 2

Floats: TypeAlias = NDArray[np.float64]
Bounds: TypeAlias = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Box:
    """All positions between two longitudes and two latitudes."""

    west: float
    south: float
    east: float
    north: float

    @property
    def bounds(self) -> Bounds:
        """Least longitude, least latitude, greatest longitude, greatest latitude."""
        return self.west, self.south, self.east, self.north

    def contains(self, lon: Floats, lat: Floats) -> NDArray[np.bool_]:
        """Which positions are inside."""
        inside = (self.west <= lon) & (lon <= self.east) & (self.south <= lat) & (lat <= self.north)
        return np.asarray(inside)

    def relate(self, cells: Floats) -> NDArray[np.int8]:
        """Whether cells (rows of west, south, east, north) are outside, partly or wholly inside."""
        west, south, east, north = cells.T
        touched = (
            (west <= self.east)
            & (east >= self.west)
            & (south <= self.north)
            & (north >= self.south)
        )
        whole = (
            (west >= self.west)
            & (east <= self.east)
            & (south >= self.south)
            & (north <= self.north)
        )
        return _relation(touched, whole)


@dataclass(frozen=True, slots=True)
class Circle:
    """All positions within a great-circle distance, in metres, of a centre."""

    lon: float
    lat: float
    radius: float

    @property
    def bounds(self) -> Bounds:
        """Least longitude, least latitude, greatest longitude, greatest latitude."""
        reach = self.radius / EARTH
        north, south = math.radians(self.lat) + reach, math.radians(self.lat) - reach
        if north >= math.pi / 2 or south <= -math.pi / 2:
            return -180.0, max(-90.0, math.degrees(south)), 180.0, min(90.0, math.degrees(north))
        # The circle's widest point is where a meridian touches it.
        width = math.degrees(
            math.asin(min(1.0, math.sin(reach) / math.cos(math.radians(self.lat))))
        )
        west, east = self.lon - width, self.lon + width
        if west < -180 or east > 180:
            west, east = -180.0, 180.0
        slack = 1e-9 * (1 + width)
        return west - slack, math.degrees(south) - slack, east + slack, math.degrees(north) + slack

    def contains(self, lon: Floats, lat: Floats) -> NDArray[np.bool_]:
        """Which positions are inside."""
        return np.asarray(haversine(self.lon, self.lat, lon, lat) <= self.radius)

    def relate(self, cells: Floats) -> NDArray[np.int8]:
        """Whether cells (rows of west, south, east, north) are outside, partly or wholly inside.

        From a cell's centre, a step along the meridian and one along a parallel reach any
        point of it, so that no point is farther away than the two steps together.
        """
        west, south, east, north = np.radians(cells.T)
        level = np.where((south <= 0) & (north >= 0), 1.0, np.maximum(np.cos(south), np.cos(north)))
        reach = EARTH * ((north - south) + (east - west) * level) / 2 + 1e-3
        centres = np.degrees((west + east) / 2), np.degrees((south + north) / 2)
        distance = haversine(self.lon, self.lat, *centres)
        return _relation(distance - reach <= self.radius, distance + reach <= self.radius)


@dataclass(frozen=True, slots=True)
class Polygon:
    """One or several polygons, with holes, in the plane of longitude and latitude."""

    geometry: BaseGeometry
    bounds: Bounds = field(init=False)

    def __post_init__(self) -> None:
        import shapely

        shapely.prepare(self.geometry)
        object.__setattr__(self, "bounds", tuple(map(float, self.geometry.bounds)))

    def contains(self, lon: Floats, lat: Floats) -> NDArray[np.bool_]:
        """Which positions are inside."""
        import shapely

        finite = np.isfinite(lon) & np.isfinite(lat)
        inside = np.zeros(len(lon), np.bool_)
        inside[finite] = shapely.intersects_xy(self.geometry, lon[finite], lat[finite])
        return inside

    def relate(self, cells: Floats) -> NDArray[np.int8]:
        """Whether cells (rows of west, south, east, north) are outside, partly or wholly inside."""
        import shapely

        boxes = np.asarray(shapely.box(*cells.T))
        touched = np.asarray(shapely.intersects(self.geometry, boxes))
        whole = np.zeros(len(cells), np.bool_)
        whole[touched] = shapely.contains_properly(self.geometry, boxes[touched])
        return _relation(touched, whole)


Shape: TypeAlias = Box | Circle | Polygon


def haversine(lon: float, lat: float, lons: Floats, lats: Floats) -> Floats:
    """Return great-circle distances in metres from one position to many."""
    phi, phis = math.radians(lat), np.radians(lats)
    with np.errstate(invalid="ignore"):  # the sine of infinity: not a number, so outside
        half = np.sin((phis - phi) / 2) ** 2
        half += math.cos(phi) * np.cos(phis) * np.sin(np.radians(lons - lon) / 2) ** 2
    return np.asarray(2 * EARTH * np.arcsin(np.sqrt(np.minimum(half, 1.0))))


def parse_polygon(geojson: Any) -> Polygon:
    """Parse a GeoJSON object with polygons; raise ValueError if it has none or is invalid."""
    import shapely

    try:
        parts = [_build_polygon(part) for part in _geometries(geojson)]
    except RecursionError:
        raise ValueError("the GeoJSON is nested too deeply") from None
    if not parts:
        raise ValueError("the GeoJSON has no polygon")
    return Polygon(parts[0] if len(parts) == 1 else shapely.union_all(parts))


def _geometries(geojson: Any) -> list[dict[str, Any]]:
    """Return all polygons and multipolygons in a GeoJSON object."""
    kind = geojson.get("type") if isinstance(geojson, dict) else None
    match kind:
        case "Polygon" | "MultiPolygon":
            return [geojson]
        case "Feature":
            return _geometries(geojson.get("geometry"))
        case "FeatureCollection" | "GeometryCollection":
            members = geojson.get("features" if kind == "FeatureCollection" else "geometries")
            if not isinstance(members, list):
                raise ValueError(f"this GeoJSON {kind} has no list of members")
            return [found for member in members for found in _geometries(member)]
    raise ValueError(
        "expected a GeoJSON Polygon, MultiPolygon, Feature, FeatureCollection or "
        f"GeometryCollection of polygons; got {kind if isinstance(kind, str) else 'something else'}"
    )


def _build_polygon(geojson: dict[str, Any]) -> BaseGeometry:
    """Build and check one polygon or multipolygon."""
    import shapely
    from shapely.validation import explain_validity

    coordinates: Any = geojson.get("coordinates")
    polygons: Any = [coordinates] if geojson["type"] == "Polygon" else coordinates
    try:
        rings = [
            [[(float(x), float(y)) for x, y, *_ in ring] for ring in part] for part in polygons
        ]
    except (TypeError, ValueError) as error:
        raise ValueError("GeoJSON coordinates must be lists of [lon, lat] positions") from error
    if not rings or not all(rings):
        raise ValueError("the GeoJSON has a polygon without an outline")
    for ring in (ring for part in rings for ring in part):
        for lon, lat in ring:
            check_position(lon, lat)
        if len(ring) < 4 or ring[0] != ring[-1]:
            raise ValueError(
                "a polygon's outline needs at least 4 positions, the last equal to the first"
            )
    shape = shapely.MultiPolygon([shapely.Polygon(part[0], part[1:]) for part in rings])
    if not shape.is_valid:
        raise ValueError(f"the polygon is not valid: {explain_validity(shape)}")
    return shape


def _relation(touched: NDArray[np.bool_], whole: NDArray[np.bool_]) -> NDArray[np.int8]:
    return np.where(whole, WHOLLY, np.where(touched, PARTLY, OUTSIDE)).astype(np.int8)
