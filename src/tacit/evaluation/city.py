"""A simulated city similar to Beijing: its roads, its places, and the demand for trips.

It is fictional, and the same for every seed, so that places keep their coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

EXTENT: Final = (116.2, 39.75, 116.6, 40.05)
"""Smallest longitude and latitude, largest longitude and latitude."""
CENTRE: Final = (116.4, 39.9)
METRES: Final = (85_400.0, 111_000.0)
"""Metres per degree of longitude and of latitude, here."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place that people travel to, as a circle with its radius in metres."""

    lon: float
    lat: float
    radius: float

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Return the smallest box around the circle: smallest lon and lat, largest lon and lat."""
        width, height = self.radius / METRES[0], self.radius / METRES[1]
        return (
            round(self.lon - width, 5),
            round(self.lat - height, 5),
            round(self.lon + width, 5),
            round(self.lat + height, 5),
        )


HOSPITAL: Final = Place(116.365, 39.935, 600)
STATION: Final = Place(116.427, 39.903, 500)
WEST_STATION: Final = Place(116.322, 39.895, 600)
BUSINESS_DISTRICT: Final = Place(116.460, 39.912, 1000)
UNIVERSITY: Final = Place(116.316, 39.988, 900)
BARS: Final = Place(116.455, 39.937, 400)
AIRPORT: Final = Place(116.565, 40.024, 700)
AIRPORT_ROAD: Final = Place(116.528, 39.997, 1200)
"""On the motorway to the airport: most taxis pass it without a stop."""

PARKS: Final = (
    (116.397, 39.918, 800.0),
    (116.275, 39.997, 1900.0),
    (116.410, 39.882, 900.0),
    (116.478, 39.944, 900.0),
    (116.395, 40.018, 1700.0),
)
"""Longitude, latitude and radius of areas that only main roads cross."""

STREET, ARTERY, MOTORWAY = 0, 1, 2
FREE_SPEED: Final = (28.0, 38.0, 54.0)
"""Kilometres per hour on an empty street, main road and motorway."""

_LINES = 18  # on each side of the centre, in both directions
_RINGS = (5, 8, 11, 14)
_ARTERIES = (0, 3, 6, 9)
_HALF = (16_300.0, 15_900.0)
_COMPASS = ((1, 0), (1, 1), (0, 1), (-1, 1), (-1, 0), (-1, -1), (0, -1), (1, -1))
_BUSINESS = ((116.460, 39.912, 1300.0), (116.358, 39.915, 900.0), (116.318, 39.980, 1100.0))
_SHARES: tuple[tuple[Place, float, Sequence[int]], ...] = (
    (HOSPITAL, 0.040, range(6, 20)),
    (STATION, 0.020, range(4, 24)),
    (WEST_STATION, 0.030, range(4, 24)),
    (UNIVERSITY, 0.020, range(7, 23)),
    (BARS, 0.040, (20, 21, 22, 23, 0, 1, 2)),
    (AIRPORT, 0.030, range(4, 24)),
)
# The share of offices among destinations and origins, by hour.
_TO_OFFICES = np.concatenate(
    (
        [0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.4, 0.6, 0.65, 0.6, 0.5, 0.45],
        [0.45, 0.45, 0.45, 0.4, 0.35, 0.25, 0.2, 0.15, 0.15, 0.15, 0.15, 0.15],
    )
)
_FROM_OFFICES = np.concatenate(
    (
        [0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.1, 0.15, 0.2, 0.3, 0.4, 0.45],
        [0.45, 0.45, 0.45, 0.5, 0.55, 0.6, 0.6, 0.55, 0.5, 0.4, 0.3, 0.25],
    )
)


class City(NamedTuple):
    """Crossings, the roads between them, and the demand for each crossing.

    `links[c, k]` is the crossing reached from `c` in compass direction `k`, or -1;
    `routes[g, c]` is the direction in which the fastest way from `c` to `g` leaves.
    Demand is cumulative over crossings, for each hour of the day.
    """

    x: np.ndarray[Any, Any]
    y: np.ndarray[Any, Any]
    links: np.ndarray[Any, Any]
    roads: np.ndarray[Any, Any]
    routes: np.ndarray[Any, Any]
    spread: np.ndarray[Any, Any]
    homes: np.ndarray[Any, Any]
    origins: np.ndarray[Any, Any]
    destinations: np.ndarray[Any, Any]


@cache
def build_city() -> City:
    """Create the roads, find the fastest routes, and distribute the demand."""
    chance = np.random.Generator(np.random.PCG64(1949))
    x, y = _place_crossings(chance)
    links, roads = _connect_crossings(x, y, chance)
    routes = _route(links, _compute_travel_times(x, y, links, roads))
    reached = routes[_crossing(0, 0)] >= 0
    reached[_crossing(0, 0)] = True
    spread = np.zeros(len(x))
    for place, _, _ in _SHARES:
        spread[_nearest(x, y, place)] = 0.8 * place.radius
    homes, origins, destinations = _distribute_demand(x, y, reached, chance)
    return City(x, y, links, roads, routes, spread, homes, origins, destinations)


def to_metres(lon: float, lat: float) -> tuple[float, float]:
    """Convert a position to metres east and north of the centre."""
    return (lon - CENTRE[0]) * METRES[0], (lat - CENTRE[1]) * METRES[1]


def _crossing(column: int, row: int) -> int:
    return (row + _LINES) * (2 * _LINES + 1) + column + _LINES


def _nearest(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], place: Place) -> int:
    px, py = to_metres(place.lon, place.lat)
    return int(np.argmin((x - px) ** 2 + (y - py) ** 2))


def _place_crossings(chance: np.random.Generator) -> tuple[np.ndarray[Any, Any], ...]:
    """Place crossings: dense in the centre, far apart outside; outer rings are rounder."""
    lines = np.arange(-_LINES, _LINES + 1) / _LINES
    lines = 0.55 * lines + 0.45 * lines * lines * lines
    u, v = (grid.ravel() for grid in np.meshgrid(lines, lines))
    x = _HALF[0] * u * np.sqrt(1 - 0.25 * v * v)
    y = _HALF[1] * v * np.sqrt(1 - 0.25 * u * u)
    main = np.isin(np.abs(np.arange(-_LINES, _LINES + 1)), _RINGS + _ARTERIES)
    across, along = (grid.ravel() for grid in np.meshgrid(main, main))
    wobble = np.where(across | along, 30.0, 120.0)
    x += wobble * chance.uniform(-1, 1, len(x))
    y += wobble * chance.uniform(-1, 1, len(y))
    for place, _, _ in _SHARES:
        moved = _nearest(x, y, place)
        x[moved], y[moved] = to_metres(place.lon, place.lat)
    return x, y


def _connect_crossings(
    x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], chance: np.random.Generator
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Choose which crossings are connected, and the kind of road."""
    links = np.full((len(x), 8), -1, np.int16)
    roads = np.zeros((len(x), 8), np.int8)
    span = range(-_LINES, _LINES + 1)
    for row in span:
        for column in span:
            for k in range(4):
                ahead = (column + _COMPASS[k][0], row + _COMPASS[k][1])
                if abs(ahead[0]) > _LINES or abs(ahead[1]) > _LINES:
                    continue
                road = _choose_road((column, row), ahead)
                here, there = _crossing(column, row), _crossing(*ahead)
                middle = (x[here] + x[there]) / 2, (y[here] + y[there]) / 2
                missing = chance.random() < (0.4 if max(abs(row), abs(column)) > 14 else 0.12)
                if road < STREET or (road == STREET and (missing or _in_park(*middle))):
                    continue
                links[here, k], links[there, k + 4] = there, here
                roads[here, k] = roads[there, k + 4] = road
    return links, roads


def _choose_road(here: tuple[int, int], there: tuple[int, int]) -> int:
    """Choose the kind of road, or -1 for none; diagonals are motorways out of the third ring."""
    columns, rows = (abs(here[0]), abs(there[0])), (abs(here[1]), abs(there[1]))
    if here[0] != there[0] and here[1] != there[1]:
        out_of_town = columns == rows and min(columns) >= _RINGS[1]
        return MOTORWAY if out_of_town else -1
    fixed, moving = (rows[0], max(columns)) if here[1] == there[1] else (columns[0], max(rows))
    if fixed in _RINGS and moving <= fixed:
        return MOTORWAY
    return ARTERY if fixed in _ARTERIES else STREET


def _in_park(x: float, y: float) -> bool:
    for lon, lat, radius in PARKS:
        px, py = to_metres(lon, lat)
        if (x - px) ** 2 + (y - py) ** 2 < radius**2:
            return True
    return False


def _compute_travel_times(
    x: np.ndarray[Any, Any],
    y: np.ndarray[Any, Any],
    links: np.ndarray[Any, Any],
    roads: np.ndarray[Any, Any],
) -> np.ndarray[Any, Any]:
    """Compute whole milliseconds per link: integers give the same routes on every machine."""
    length = np.sqrt((x[links] - x[:, None]) ** 2 + (y[links] - y[:, None]) ** 2)
    speed = np.array(FREE_SPEED)[roads] / 3.6
    at_crossing = np.array([12.0, 9.0, 0.0])[roads]
    times: np.ndarray[Any, Any] = (length / speed + at_crossing) * 1000
    return times.astype(np.int64)


def _route(links: np.ndarray[Any, Any], times: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Find the first direction from every crossing to every goal; -1 if there is no way."""
    here, direction = np.nonzero(links >= 0)
    there = links[here, direction]
    # Roads are reversed, so that the crossing before a crossing is the next one to the goal.
    reverse = csr_array((times[here, direction], (there, here)), (len(links), len(links)))
    following = dijkstra(reverse, return_predecessors=True)[1]
    routes = np.full(following.shape, -1, np.int8)
    for k in range(8):
        routes[(following == links[:, k]) & (following >= 0)] = k
    return routes


def _distribute_demand(
    x: np.ndarray[Any, Any],
    y: np.ndarray[Any, Any],
    reached: np.ndarray[Any, Any],
    chance: np.random.Generator,
) -> tuple[np.ndarray[Any, Any], ...]:
    """Distribute demand: homes everywhere, offices in clusters, places by hour."""
    away = (x * x + y * y) / 9_000.0**2
    homes = reached * (0.2 + chance.random(len(x)) ** 2) / (1 + away)
    offices = np.zeros(len(x))
    for lon, lat, radius in _BUSINESS:
        px, py = to_metres(lon, lat)
        offices += reached / (1 + ((x - px) ** 2 + (y - py) ** 2) / radius**2) ** 2
    homes, offices = homes / homes.sum(), offices / offices.sum()
    places = np.zeros((24, len(x)))
    for place, share, hours in _SHARES:
        places[list(hours), _nearest(x, y, place)] += share
    rest = 1 - places.sum(axis=1, keepdims=True)
    origins, destinations = (
        places + rest * (share[:, None] * offices + (1 - share[:, None]) * homes)
        for share in (_FROM_OFFICES, _TO_OFFICES)
    )
    return homes.cumsum(), origins.cumsum(axis=1), destinations.cumsum(axis=1)
