"""Areas: how they are written, and which positions are inside."""

from __future__ import annotations

import itertools
import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shapely
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from tacit.events.areas import Area
from tacit.events.grid import Grid
from tacit.events.shapes import EARTH, PARTLY, WHOLLY, Box, Circle, Polygon, Shape, parse_polygon

SQUARE = [[0, 0], [4, 0], [4, 4], [0, 4], [0, 0]]
HOLE = [[1, 1], [2, 1], [2, 2], [1, 2], [1, 1]]
HOLED = {"type": "Polygon", "coordinates": [SQUARE, HOLE]}
BOW_TIE = {"type": "Polygon", "coordinates": [[[0, 0], [1, 1], [1, 0], [0, 1], [0, 0]]]}


@pytest.mark.parametrize(
    ("area", "part"),
    [
        ({"box": [2, 0, 1, 1]}, "greater than the greatest"),
        ({"box": [0, 2, 1, 1]}, "greater than the greatest"),
        ({"box": [-181, 0, 1, 1]}, "longitude"),
        ({"box": [0, 0, 181, 1]}, "longitude"),
        ({"box": [0, 0, 1, 91]}, "latitude"),
        ({"box": [0, -91, 1, 1]}, "latitude"),
        ({"box": [math.nan, 0, 1, 1]}, "longitude"),
        ({"box": [0, 0, math.inf, 1]}, "longitude"),
        ({"box": [0, 0, 1]}, "box"),
        ({"circle": [0, 0, "0 m"]}, "more than 0"),
        ({"circle": [0, 0, "-5 m"]}, "with its unit"),
        ({"circle": [0, 0, 300]}, "needs its unit"),
        ({"circle": [0, 0, "300"]}, "with its unit"),
        ({"circle": [0, 0, "30000 km"]}, "more than 0"),
        ({"circle": [200, 0, "1 m"]}, "longitude"),
        ({"geojson": BOW_TIE}, "Self-intersection"),
        ({"geojson": {"type": "Point", "coordinates": [0, 0]}}, "got Point"),
        ({"geojson": {}}, "something else"),
        ({"geojson": {"type": "Polygon", "coordinates": []}}, "outline"),
        ({"geojson": {"type": "Polygon", "coordinates": [[[0, 0], [1, 1], [0, 0]]]}}, "at least 4"),
        ({"geojson": {"type": "Polygon", "coordinates": [["x"]]}}, r"\[lon, lat\]"),
        ({"geojson": {"type": "Polygon"}}, r"\[lon, lat\]"),
        ({"geojson": {"type": "FeatureCollection", "features": []}}, "no polygon"),
        ({"geojson": {"type": "Polygon", "coordinates": [[[0, 0], [999, 0], [1, 1], [0, 0]]]}},
         "longitude"),
        ({"geojson": " "}, "path"),
        ({}, "none of them"),
        ({"box": [0, 0, 1, 1], "circle": [0, 0, "1 m"]}, "box and circle"),
        ({"bix": [0, 0, 1, 1]}, "bix"),
    ],
)  # fmt: skip
def test_wrong_areas_are_refused(area: dict[str, Any], part: str) -> None:
    with pytest.raises(ValidationError, match=part):
        Area.model_validate(area)


@pytest.mark.parametrize(
    "area",
    [{"box": [116.38, 39.9, 116.4, 39.92]}, {"circle": [116.42, 39.9, "300 m"]},
     {"circle": [0.1, -0.2, "1.234567 km"]}, {"geojson": "campus.geojson"}, {"geojson": HOLED}],
)  # fmt: skip
def test_areas_are_written_and_read_without_loss(area: dict[str, Any]) -> None:
    read = Area.model_validate(area)
    written = json.loads(json.dumps(read.model_dump(mode="json", exclude_defaults=True)))
    assert Area.model_validate(written) == read


def test_a_geojson_path_starts_at_the_given_folder(tmp_path: Path) -> None:
    feature = {"type": "Feature", "properties": {}, "geometry": HOLED}
    (tmp_path / "a.geojson").write_text(json.dumps(feature))
    shape = Area(geojson="a.geojson").shape(tmp_path)
    assert shape.contains(np.array([0.5, 1.5]), np.array([0.5, 1.5])).tolist() == [True, False]


def test_a_geojson_file_that_is_missing_or_broken_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot read the GeoJSON file"):
        Area(geojson="none.geojson").shape(tmp_path)
    for content in (b"{", b"\xff\xfe", b"[]", b"[" * 100_000):
        (tmp_path / "b.geojson").write_bytes(content)
        with pytest.raises(ValueError, match="GeoJSON"):
            Area(geojson="b.geojson").shape(tmp_path)


def test_a_collection_is_all_of_its_polygons() -> None:
    other = {"type": "MultiPolygon", "coordinates": [[[[3, 3], [6, 3], [6, 6], [3, 3]]]]}
    shape = parse_polygon({"type": "GeometryCollection", "geometries": [HOLED, other]})
    inside = shape.contains(np.array([0.5, 5.5, 1.5, 5.0]), np.array([0.5, 3.5, 1.5, 5.9]))
    assert inside.tolist() == [True, True, False, False]


def haversine(lon1: float, lat1: float, lon2: float, lat2: float) -> float:
    phi1, phi2 = math.radians(lat1), math.radians(lat2)
    half = math.sin((phi2 - phi1) / 2) ** 2
    half += math.cos(phi1) * math.cos(phi2) * math.sin(math.radians(lon2 - lon1) / 2) ** 2
    return 2 * EARTH * math.asin(min(1.0, math.sqrt(half)))


def obviously_inside(shape: Shape, lon: float, lat: float) -> bool | None:
    """Without grid and without vectors; None within a millimetre of a circle's edge."""
    if not (abs(lon) <= 180 and abs(lat) <= 90):
        return False
    if isinstance(shape, Box):
        return shape.west <= lon <= shape.east and shape.south <= lat <= shape.north
    if isinstance(shape, Circle):
        margin = haversine(shape.lon, shape.lat, lon, lat) - shape.radius
        return None if abs(margin) < 1e-3 else margin < 0
    return bool(shape.geometry.covers(shapely.Point(lon, lat)))


def random_shape(rng: random.Random, scale: float) -> Shape:
    x, y = rng.uniform(-scale, scale), rng.uniform(-scale, scale)
    match rng.randrange(4):
        case 0:
            width = rng.choice([0, rng.uniform(0, scale)])
            return Box(x, y, min(180, x + width), min(90, y + rng.uniform(0, scale)))
        case 1:
            return Circle(x, y, rng.choice([50.0, 5e3, 2e5 * scale]))
        case 2:
            angles = sorted(rng.uniform(0, 2 * math.pi) for _ in range(rng.randrange(5, 9)))
            ring = [
                (x / 2 + math.cos(a) * r, y / 2 + math.sin(a) * r)
                for a in angles
                for r in [rng.uniform(0.1, scale / 3)]
            ]
            star = shapely.Polygon(ring)
            return Polygon(star if star.is_valid else star.convex_hull)
    return parse_polygon({"type": "Polygon", "coordinates": [SQUARE, HOLE]})


def positions(rng: random.Random, shapes: list[Shape], scale: float) -> NDArray[np.float64]:
    """Anywhere, on corners, on edges, on the outermost bounds, and nowhere."""
    found = [(rng.uniform(-scale, scale), rng.uniform(-scale, scale)) for _ in range(300)]
    for shape in shapes:
        west, south, east, north = shape.bounds
        found += [(west, south), (east, north), (west, north), ((west + east) / 2, north)]
        if isinstance(shape, Polygon):
            found += [tuple(p[:2]) for p in shapely.get_coordinates(shape.geometry)]
    found += [(x, y) for x in range(5) for y in range(5)]
    found += [(math.nan, 0), (0, math.nan), (math.inf, 0), (0, -math.inf), (1e300, 1e300)]
    return np.array([p for p in found if not (abs(p[0]) > 180 or abs(p[1]) > 90) or p[0] > 1e9])


@pytest.mark.parametrize("seed", range(25))
def test_the_grid_agrees_with_plain_geometry(seed: int) -> None:
    rng = random.Random(seed)
    scale = rng.choice([0.01, 5.0, 80.0])
    shapes = [random_shape(rng, scale) for _ in range(rng.choice([1, 3, 12]))]
    masks = np.zeros((len(shapes), 2), np.uint64)
    for number in range(len(shapes)):
        masks[number, number * 7 // 64] = 1 << number * 7 % 64
    lon, lat = np.ascontiguousarray(positions(rng, shapes, scale).T)
    found = Grid(shapes, masks).inside(lon, lat)
    for number, shape in enumerate(shapes):
        bits = found[:, number * 7 // 64] >> np.uint64(number * 7 % 64) & np.uint64(1)
        for x, y, bit in zip(lon.tolist(), lat.tolist(), bits.tolist(), strict=True):
            assert obviously_inside(shape, x, y) in (None, bool(bit)), (shape, x, y)


@settings(max_examples=40, deadline=None)
@given(
    st.floats(-180, 180), st.floats(-90, 90), st.floats(1, 2e7),
    st.floats(-180, 179), st.floats(-90, 89), st.floats(0.01, 40), st.integers(0, 2**32),
)  # fmt: skip
def test_a_circle_never_promises_too_much_of_a_cell(
    lon: float, lat: float, radius: float, west: float, south: float, size: float, seed: int
) -> None:
    circle = Circle(lon, lat, radius)
    east, north = min(180, west + size), min(90, south + size)
    relation = circle.relate(np.array([[west, south, east, north]]))[0]
    rng = np.random.default_rng(seed)
    inside = circle.contains(rng.uniform(west, east, 200), rng.uniform(south, north, 200))
    assert relation == PARTLY or (inside == (relation == WHOLLY)).all()


@pytest.mark.parametrize("centre", [(0, 0), (179.9, 10), (-60, 89.9), (0, -90), (20, 60)])
def test_a_circles_bounds_hold_all_of_it(centre: tuple[float, float]) -> None:
    rng = np.random.default_rng(1)
    circle = Circle(*centre, 300_000.0)
    lon = rng.uniform(-180, 180, 200_000)
    lat = np.clip(rng.normal(centre[1], 3, 200_000), -90, 90)
    inside = circle.contains(lon, lat)
    west, south, east, north = circle.bounds
    assert inside.any()
    assert (lon[inside] >= west).all()
    assert (lon[inside] <= east).all()
    assert (lat[inside] >= south).all()
    assert (lat[inside] <= north).all()


def test_a_box_has_all_of_its_edges_and_nothing_beyond() -> None:
    box = Box(1, 2, 3, 4)
    for x, y in itertools.product((1.0, 2.0, 3.0), (2.0, 3.0, 4.0)):
        assert box.contains(np.array([x]), np.array([y])).all()
    lon = np.array([np.nextafter(1.0, 0), np.nextafter(3.0, 4), 2.0, 2.0])
    lat = np.array([3.0, 3.0, np.nextafter(2.0, 0), np.nextafter(4.0, 5)])
    assert not box.contains(lon, lat).any()


def test_a_grid_without_areas_holds_nothing() -> None:
    grid = Grid([], np.empty((0, 1), np.uint64))
    assert grid.inside(np.zeros(3), np.zeros(3)).tolist() == [[0], [0], [0]]


def test_a_grid_over_a_single_point_holds_that_point() -> None:
    grid = Grid([Box(1, 2, 1, 2)], np.array([[1]], np.uint64))
    found = grid.inside(np.array([1.0, np.nextafter(1.0, 2)]), np.array([2.0, 2.0]))
    assert found.tolist() == [[1], [0]]
