"""Test positions against many areas: a grid look-up, and exact geometry only near edges.

A uniform grid covers all areas. Each cell stores which areas cover it completely and which need an
exact test. Cells with the same areas share one *class*, so the grid is a table of small numbers
that stays in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tacit.events.columns import freeze
from tacit.events.shapes import EARTH, OUTSIDE, PARTLY, WHOLLY, Box, Circle, Floats, Shape
from tacit.kernels import compiled

SIDE = 256
"""The number of cells along each side of the grid."""
_BOX, _CIRCLE, _POLYGON = 0, 1, 2


class Grid:
    """Finds, for each position, the combined mask of all areas that contain it."""

    def __init__(self, shapes: Sequence[Shape], masks: NDArray[np.uint64]) -> None:
        self.shapes = tuple(shapes)
        self.masks = np.ascontiguousarray(masks, np.uint64)
        bounds = np.array([shape.bounds for shape in shapes], np.float64).reshape(-1, 4)
        corner = bounds[:, :2].min(axis=0, initial=np.inf)
        size = bounds[:, 2:].max(axis=0, initial=-np.inf) - corner
        # Not empty if all areas are one point, and finite if there are none.
        step = np.where(np.isfinite(size), np.maximum(size, 1e-9), 1.0) / SIDE
        self._place = np.array([*corner, *step], np.float64)
        self._kinds, self._figures = _describe(shapes)
        self._fill()

    def inside(self, lon: Floats, lat: Floats) -> NDArray[np.uint64]:
        """Return the masks `[n, W]` of positions; a non-finite position is outside of all areas."""
        lon, lat = freeze(lon), freeze(lat)
        found = np.zeros((len(lon), self.masks.shape[1]), np.uint64)
        if not self.shapes:
            return found
        pending = np.empty((max(1024, len(lon)), 2), np.int64)
        start = 0
        while start < len(lon):
            start, asked = _look_up(
                lon, lat, start, self._place, self._cells, self._covers, self._first, self._asked,
                self._kinds, self._figures, self.masks, found, pending,
            )  # fmt: skip
            self._ask(lon, lat, pending[:asked], found)
        return found

    def _ask(
        self, lon: Floats, lat: Floats, pending: NDArray[np.int64], found: NDArray[np.uint64]
    ) -> None:
        """Test positions near edges with the exact polygons."""
        for area in np.unique(pending[:, 1]):
            rows = pending[pending[:, 1] == area, 0]
            rows = rows[self.shapes[area].contains(lon[rows], lat[rows])]
            found[rows] |= self.masks[area]

    def _fill(self) -> None:
        """Compute each cell's class: the areas that cover it, and those that need an exact test.

        Each area splits the classes of the cells that it intersects.
        """
        classes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((), ())]
        cells = np.zeros(SIDE * SIDE, np.int64)
        for area, shape in enumerate(self.shapes):
            touched, relation = self._related(shape)
            splits, place = np.unique(
                2 * cells[touched] + (relation == WHOLLY), return_inverse=True
            )
            cells[touched] = len(classes) + place
            for kind, wholly in (divmod(int(split), 2) for split in splits):
                covers, asked = classes[kind]
                classes.append(((*covers, area), asked) if wholly else (covers, (*asked, area)))
        used, place = np.unique(np.append(0, cells), return_inverse=True)
        self._cells = place[1:].astype(np.int32)
        kept = [classes[number] for number in used]
        self._covers = np.zeros((len(kept), self.masks.shape[1]), np.uint64)
        for number, (covers, _) in enumerate(kept):
            self._covers[number] = np.bitwise_or.reduce(self.masks[list(covers)], axis=0)
        counts = [len(asked) for _, asked in kept]
        self._first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._asked = np.array([area for _, asked in kept for area in asked], np.int64)

    def _related(self, shape: Shape) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
        """Return the cells that a shape intersects and how, by halving blocks of cells."""
        found: list[NDArray[np.int64]] = []
        relations: list[NDArray[np.int8]] = []
        blocks, side = np.zeros((1, 2), np.int64), SIDE
        while len(blocks):
            relation = shape.relate(self._rectangles(blocks, side))
            done = (relation == WHOLLY) | ((relation == PARTLY) & (side == 1))
            inner = (np.arange(side)[:, None] * SIDE + np.arange(side)).reshape(-1)
            cells = (blocks[done] @ np.array([SIDE, 1]))[:, None] + inner
            found.append(cells.reshape(-1))
            relations.append(np.repeat(relation[done], side * side))
            blocks = blocks[(relation != OUTSIDE) & ~done]
            side //= 2
            halves = np.array([[0, 0], [0, side], [side, 0], [side, side]])
            blocks = (blocks[:, None, :] + halves).reshape(-1, 2)
        return np.concatenate(found), np.concatenate(relations)

    def _rectangles(self, blocks: NDArray[np.int64], side: int) -> Floats:
        """Return the blocks' edges, slightly widened, since positions are rounded."""
        corner, step = self._place[:2], self._place[2:]
        slack = 1e-6 * step
        low = corner + blocks * step - slack
        return np.hstack([low, low + side * step + 2 * slack])


def _describe(shapes: Sequence[Shape]) -> tuple[NDArray[np.int8], Floats]:
    """Return the parameters of boxes and circles for the compiled test."""
    kinds = np.full(len(shapes), _POLYGON, np.int8)
    figures = np.zeros((len(shapes), 4), np.float64)
    for number, shape in enumerate(shapes):
        if isinstance(shape, Box):
            kinds[number], figures[number] = _BOX, shape.bounds
        elif isinstance(shape, Circle):
            phi = np.radians(shape.lat)
            kinds[number] = _CIRCLE
            figures[number] = shape.lon, phi, np.cos(phi), shape.radius
    return kinds, figures


@compiled
def _look_up(
    lon: Floats,
    lat: Floats,
    start: int,
    place: Floats,
    cells: NDArray[np.int32],
    covers: NDArray[np.uint64],
    first: NDArray[np.int64],
    asked: NDArray[np.int64],
    kinds: NDArray[np.int8],
    figures: Floats,
    masks: NDArray[np.uint64],
    found: NDArray[np.uint64],
    pending: NDArray[np.int64],
) -> tuple[int, int]:
    """Write masks from `start` on until `pending` (row, polygon) may be full."""
    words = masks.shape[1]
    across, up = 1.0 / place[2], 1.0 / place[3]
    waiting = 0
    for row in range(start, len(lon)):
        x = (lon[row] - place[0]) * across
        y = (lat[row] - place[1]) * up
        # Written so that NaN fails too; the tolerance covers rounding at the edges.
        if not (-1e-6 <= x <= SIDE + 1e-6 and -1e-6 <= y <= SIDE + 1e-6):
            continue
        column = min(max(int(x), 0), SIDE - 1)
        kind = cells[column * SIDE + min(max(int(y), 0), SIDE - 1)]
        if kind == 0:
            continue
        if waiting + first[kind + 1] - first[kind] > len(pending):
            return row, waiting
        for word in range(words):
            found[row, word] = covers[kind, word]
        for which in range(first[kind], first[kind + 1]):
            area = asked[which]
            if kinds[area] == _POLYGON:
                pending[waiting, 0] = row
                pending[waiting, 1] = area
                waiting += 1
            elif _contains(kinds[area], figures[area], lon[row], lat[row]):
                for word in range(words):
                    found[row, word] |= masks[area, word]
    return len(lon), waiting


@compiled
def _contains(kind: int, figures: Floats, lon: float, lat: float) -> bool:
    """Return whether a box or circle contains a position."""
    if kind == _BOX:
        return bool(figures[0] <= lon <= figures[2] and figures[1] <= lat <= figures[3])
    phi = np.radians(lat)
    half = np.sin((phi - figures[1]) / 2) ** 2
    half += figures[2] * np.cos(phi) * np.sin(np.radians(lon - figures[0]) / 2) ** 2
    return bool(2 * EARTH * np.arcsin(np.sqrt(min(half, 1.0))) <= figures[3])
