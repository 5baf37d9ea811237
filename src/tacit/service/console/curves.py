"""Curves as inline SVG, with axes: quality against epsilon or a limit, on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

_WIDTH, _HEIGHT = 380, 236
_LEFT, _RIGHT, _TOP, _BOTTOM = 34, 66, 10, 40
_GAP: Final = 13.0
"""The least distance of two labels."""


@dataclass(frozen=True, slots=True)
class CurveLine:
    """A line with a name, through points of x and quality."""

    name: str
    points: Sequence[tuple[float, float]]


def draw_curves(
    lines: Sequence[CurveLine], axis: str, what: str, marked: float | None = None
) -> Markup:
    """Draw lines over a logarithmic axis; `marked` is the place of what is declared now."""
    xs = sorted({x for line in lines for x, _ in line.points})
    lowest = min(y for line in lines for _, y in line.points)
    scale = _Scale(xs[0], xs[-1], max(0.0, math.floor(lowest * 10) / 10))
    parts = [_draw_axes(scale, xs, axis)]
    if marked is not None:
        x = scale.x(marked)
        parts.append(
            Markup(
                '<path class="marked" d="M{0:.1f} {1}V{2}"/><text class="marked-text" x="{0:.1f}"'
                ' y="{3}">declared: {4:g}</text>'
            ).format(x, _TOP, _HEIGHT - _BOTTOM, _HEIGHT - _BOTTOM - 5, marked)
        )
    ends = {line.name: scale.y(line.points[-1][1]) for line in lines}
    labels = _spread(ends)
    for number, line in enumerate(lines):
        points = [(scale.x(x), scale.y(y)) for x, y in line.points]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        parts.append(Markup('<path class="curve c{}" d="{}"/>').format(number, path))
        parts += [
            Markup(
                '<circle class="point c{}" cx="{:.1f}" cy="{:.1f}" r="2.6"><title>{:g}: {:.3f}'
                "</title></circle>"
            ).format(number, x, y, *point)
            for (x, y), point in zip(points, line.points, strict=True)
        ]
        parts.append(
            Markup('<text class="end c{}" x="{}" y="{:.1f}">{}</text>').format(
                number, _WIDTH - _RIGHT + 7, labels[line.name] + 3.5, line.name
            )
        )
    return Markup(
        '<svg class="curves" role="img" aria-label="{}" viewBox="0 0 {} {}">{}</svg>'
    ).format(what, _WIDTH, _HEIGHT, Markup("").join(parts))


@dataclass(frozen=True, slots=True)
class _Scale:
    """Where numbers are in the picture."""

    first: float
    last: float
    lowest: float

    def x(self, value: float) -> float:
        whole = math.log(self.last / self.first) or 1.0
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * math.log(value / self.first) / whole

    def y(self, quality: float) -> float:
        share = (quality - self.lowest) / max(1e-9, 1 - self.lowest)
        return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * share


def _draw_axes(scale: _Scale, xs: Sequence[float], axis: str) -> Markup:
    parts = []
    step = (1 - scale.lowest) / 4
    for quality in [scale.lowest + number * step for number in range(5)]:
        y = scale.y(quality)
        parts.append(
            Markup(
                '<path class="rule" d="M{} {:.1f}H{}"/><text class="tick y" x="{}" y="{:.1f}">'
                "{:.2f}</text>"
            ).format(_LEFT, y, _WIDTH - _RIGHT, _LEFT - 5, y + 3, quality)
        )
    last = -math.inf
    for x in xs:
        place = scale.x(x)
        if place - last >= 26:
            last = place
            parts.append(
                Markup('<text class="tick" x="{:.1f}" y="{}">{:g}</text>').format(
                    place, _HEIGHT - _BOTTOM + 14, x
                )
            )
    parts.append(
        Markup('<text class="axis-name" x="{:.1f}" y="{}">{}</text>').format(
            (_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, axis
        )
    )
    return Markup("").join(parts)


def _spread(ends: dict[str, float]) -> dict[str, float]:
    """Move labels apart that would overlap, the highest first."""
    placed, above = {}, -math.inf
    for name, y in sorted(ends.items(), key=lambda one: one[1]):
        above = max(y, above + _GAP)
        placed[name] = above
    return placed
