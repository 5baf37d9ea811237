"""A map as inline SVG: outlines of areas, their names and numbers, and a scale.

It loads nothing: there are no streets, only the areas themselves, with north up and true distances.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import shapely
from markupsafe import Markup

from tacit.events.shapes import EARTH, Bounds, Box, Circle, Shape
from tacit.service.console.maps import AreaFigure

_WIDTH: Final = 360
_HEIGHTS: Final = (150.0, 340.0)
_MARGIN: Final = 26.0
_LINE: Final = 12.5
"""The height of a line of text."""
_LETTER: Final = 5.9
"""The mean width of a letter."""
_MOST_LINES: Final = 3
"""Lines below the name of an area."""
_CORNERS: Final = 48

Ring = list[tuple[float, float]]


def draw_map(shapes: Mapping[str, Shape], figures: Sequence[AreaFigure], what: str) -> Markup:
    """Draw areas with what was released about them; the larger the share, the darker."""
    outlines = {name: _list_rings(shape) for name, shape in shapes.items()}
    frame = _Frame.around(outlines)
    texts: dict[str, list[str]] = {name: [] for name in shapes}
    shares = dict.fromkeys(shapes, 0.0)
    alone = len({figure.query for figure in figures}) == 1
    for figure in figures:
        texts[figure.area].append(_describe(figure, alone=alone))
        shares[figure.area] = max(shares[figure.area], figure.share)
    projected = {name: [frame.project(ring) for ring in rings] for name, rings in outlines.items()}
    boxes = {name: _find_bounds(rings) for name, rings in projected.items()}
    largest_first = sorted(boxes, key=lambda name: -_size(boxes[name]))
    areas = Markup("").join(
        Markup(
            '<path class="place" fill-rule="evenodd" fill-opacity="{:.2f}" d="{}">'
            "<title>{}: {}</title></path>"
        ).format(
            0.12 + 0.68 * shares[name],
            _to_path(projected[name]),
            name,
            ", ".join(texts[name]) or "nothing yet",
        )
        for name in largest_first
    )
    labels = _draw_labels({name: boxes[name] for name in reversed(largest_first)}, texts, frame)
    return Markup(
        '<svg class="map" role="img" aria-label="{}" viewBox="0 0 {} {:.0f}">{}{}{}</svg>'
    ).format(what, _WIDTH, frame.height, areas, labels, _draw_scale(frame))


def _describe(figure: AreaFigure, *, alone: bool) -> str:
    """Say in a few words what a query says about an area."""
    name = "" if figure.about == figure.area else figure.about
    name = name or ("" if alone else figure.query)
    number = f"{figure.number:,} of {figure.subjects:,}" if alone else f"{figure.number:,}"
    if figure.interval is not None:
        low, high = figure.interval
        number = f"{figure.number:,}" + ("" if low == high else f" ({low:,} to {high:,})")
    return f"{name} {number}".strip()


@dataclass(frozen=True, slots=True)
class _Frame:
    """How degrees become places in the picture: north is up, and distances are true."""

    west: float
    north: float
    scale: float
    """Units of the picture per degree of latitude."""
    narrow: float
    """How much shorter a degree of longitude is."""
    height: float

    @classmethod
    def around(cls, outlines: Mapping[str, Sequence[Ring]]) -> _Frame:
        points = [point for rings in outlines.values() for ring in rings for point in ring]
        west, east = (pick(x for x, _ in points) for pick in (min, max))
        south, north = (pick(y for _, y in points) for pick in (min, max))
        narrow = max(0.05, math.cos(math.radians((south + north) / 2)))
        wide, tall = max(1e-6, (east - west) * narrow), max(1e-6, north - south)
        room = _WIDTH - 2 * _MARGIN, _HEIGHTS[1] - 2 * _MARGIN
        scale = min(room[0] / wide, room[1] / tall)
        height = max(_HEIGHTS[0], scale * tall + 2 * _MARGIN)
        middle = (west + east) / 2, (south + north) / 2
        return cls(
            middle[0] - _WIDTH / 2 / scale / narrow,
            middle[1] + height / 2 / scale,
            scale,
            narrow,
            height,
        )

    def project(self, ring: Ring) -> Ring:
        return [
            ((lon - self.west) * self.narrow * self.scale, (self.north - lat) * self.scale)
            for lon, lat in ring
        ]


def _list_rings(shape: Shape) -> list[Ring]:
    """Return the outlines of a shape, and those of its holes."""
    if isinstance(shape, Box):
        west, south, east, north = shape.bounds
        return [[(west, south), (east, south), (east, north), (west, north)]]
    if isinstance(shape, Circle):
        west, south, east, north = shape.bounds
        middle, wide, tall = (south + north) / 2, (east - west) / 2, (north - south) / 2
        angles = [2 * math.pi * number / _CORNERS for number in range(_CORNERS)]
        return [
            [(shape.lon + wide * math.sin(one), middle + tall * math.cos(one)) for one in angles]
        ]
    west, south, east, north = shape.bounds
    simple = shapely.simplify(shape.geometry, max(east - west, north - south) / 1000)
    polygons = [part for part in shapely.get_parts(simple) if not part.is_empty]
    lines = [line for part in polygons for line in (part.exterior, *part.interiors)]
    return [[(float(x), float(y)) for x, y, *_ in line.coords] for line in lines]


def _find_bounds(rings: Sequence[Ring]) -> Bounds:
    xs, ys = zip(*(point for ring in rings for point in ring), strict=True)
    return min(xs), min(ys), max(xs), max(ys)


def _size(bounds: Bounds) -> float:
    return (bounds[2] - bounds[0]) * (bounds[3] - bounds[1])


def _to_path(rings: Sequence[Ring]) -> str:
    return "".join("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in ring) + "Z" for ring in rings)


def _draw_labels(
    boxes: Mapping[str, Bounds], texts: Mapping[str, Sequence[str]], frame: _Frame
) -> Markup:
    """Draw names and numbers where no other label is; without room the table has them."""
    placed: list[Bounds] = []
    parts = []
    for name, box in boxes.items():
        lines = [_shorten(name), *map(_shorten, texts[name][:_MOST_LINES])]
        if len(texts[name]) > _MOST_LINES:
            lines[-1] = f"and {len(texts[name]) - _MOST_LINES + 1} more"
        place = _find_room(box, lines, placed, frame)
        if place is None:
            continue
        placed.append(place)
        middle = (place[0] + place[2]) / 2
        parts += [
            Markup('<text class="{}" x="{:.1f}" y="{:.1f}">{}</text>').format(
                "number" if number else "area-name",
                middle,
                place[1] + _LINE * (number + 1) - 3,
                line,
            )
            for number, line in enumerate(lines)
        ]
    return Markup("").join(parts)


def _find_room(
    box: Bounds, lines: Sequence[str], placed: Sequence[Bounds], frame: _Frame
) -> Bounds | None:
    """Return where a label fits: in the middle of its area, below, above, or beside it."""
    wide, tall = _LETTER * max(map(len, lines)) + 4, _LINE * len(lines) + 2
    left, top, right, bottom = box
    x, y = (left + right) / 2, (top + bottom) / 2
    inside = right - left >= wide and bottom - top >= tall
    middles = [(x, y)] if inside else []
    middles += [(x, bottom + tall / 2 + 1), (x, top - tall / 2 - 1)]
    middles += [(right + wide / 2 + 3, y), (left - wide / 2 - 3, y)]
    if inside:
        middles = [(x, y), (x, top + tall / 2 + 3), (x, bottom - tall / 2 - 3), *middles[1:]]
    for across, down in middles:
        place = (across - wide / 2, down - tall / 2, across + wide / 2, down + tall / 2)
        if (
            place[0] >= 0
            and place[1] >= 0
            and place[2] <= _WIDTH
            and place[3] <= frame.height
            and not any(_overlap(place, other) for other in placed)
        ):
            return place
    return None


def _overlap(one: Bounds, other: Bounds) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _draw_scale(frame: _Frame) -> Markup:
    """Draw a bar as long as a round distance."""
    metre = frame.scale * 180 / math.pi / EARTH
    steps = [digit * 10**power for power in range(8) for digit in (1, 2, 5)]
    metres = max((step for step in steps if step * metre <= _WIDTH / 4), default=1)
    text = f"{metres:,} m" if metres < 1000 else f"{metres // 1000:,} km"
    y = frame.height - 6
    return Markup(
        '<path class="scale" d="M6 {0:.1f}v4h{1:.1f}v-4"/><text class="scale-text" x="{2:.1f}"'
        ' y="{3:.1f}">{4}</text>'
    ).format(y - 4, metres * metre, 10 + metres * metre, y, text)


def _shorten(text: str) -> str:
    return text if len(text) <= 26 else f"{text[:25]}…"
