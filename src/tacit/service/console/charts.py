"""Charts as inline SVG, without styles or scripts of their own: the style sheet colours classes.

Every text is escaped by Markup. A chart is an image with a description for screen readers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from markupsafe import Markup

from tacit.service.console.timelines import AnswerGrid

_CELL, _GAP = 16, 3
_WIDEST = 114
_FEWEST = 40
"""For how many bars there is room at least: few bars are not drawn wider."""


def draw_grid(grid: AnswerGrid, what: str) -> Markup:
    """Draw a cell for every row and window: filled if detected, stronger if more confident.

    Names of rows are a picture of their own, which stays where it is while the cells scroll.
    """
    step = _CELL + _GAP
    label_width = min(_WIDEST, 16 + 7 * max((len(name) for name in grid.rows), default=0))
    width, height = step * max(2, len(grid.starts)), step * len(grid.rows) + 18
    names = Markup("").join(
        Markup('<text x="{}" y="{}">{}</text>').format(
            label_width - 8, row * step + 12, _shorten(name)
        )
        for row, name in enumerate(grid.rows)
    )
    cells = Markup("").join(
        _draw_cell(grid, row, column)
        for row in range(len(grid.rows))
        for column in range(len(grid.starts))
        if grid.there[row, column]
    )
    every = max(1, len(grid.starts) // 8)
    axis = Markup("").join(
        Markup('<text class="axis" data-time="{}" x="{}" y="{}">{:%H:%M}</text>').format(
            _iso(grid.starts[column]), column * step, height - 2, grid.starts[column]
        )
        for column in range(0, max(1, len(grid.starts) - 1), every)
    )
    label = f"{what}: {len(grid.rows)} rows, the last {len(grid.starts)} windows"
    return Markup(
        '<svg class="names" aria-hidden="true" width="{0}" height="{2}">{4}</svg>'
        '<svg class="grid" role="img" aria-label="{3}" width="{1}" height="{2}">{5}{6}</svg>'
    ).format(label_width, width, height, label, names, cells, axis)


def _draw_cell(grid: AnswerGrid, row: int, column: int) -> Markup:
    sure = float(grid.confidence[row, column])
    yes = bool(grid.detected[row, column])
    kind = grid.value[row, column] or ("yes" if yes else "no")
    x, y = column * (_CELL + _GAP), row * (_CELL + _GAP)
    # A confidence of one half tells nothing: the weakest shade.
    shade = 0.25 + 0.75 * max(0.0, min(1.0, 2 * sure - 1)) if yes else 1.0
    mark = Markup("")
    if grid.exhausted[row, column]:
        kind += ", not paid for"
        mark = Markup(
            '<rect class="exhausted" x="{}" y="{}" width="{}" height="2.5" rx="1"/>'
        ).format(x + 3, y + _CELL - 4.5, _CELL - 6)
    return Markup(
        '<rect class="{}" x="{}" y="{}" width="{}" height="{}" rx="4" fill-opacity="{:.2f}">'
        "<title>{}, {:%Y-%m-%dT%H:%MZ}: {}, {:.0f} % sure</title></rect>{}"
    ).format(
        "yes" if yes else "no",
        x,
        y,
        _CELL,
        _CELL,
        shade,
        grid.rows[row],
        grid.starts[column],
        kind,
        100 * sure,
        mark,
    )


def _shorten(name: str) -> str:
    return name if len(name) <= 14 else f"{name[:13]}…"


def draw_bars(values: Sequence[float], what: str, height: int = 56) -> Markup:
    """Draw a bar for each value."""
    top = max([1.0, *values])
    width = 8 * max(_FEWEST, len(values))
    parts = []
    for number, value in enumerate(values):
        tall = max(1.5, value / top * (height - 4)) if value else 1.5
        kind = "bar" if value else "bar empty"
        parts.append(
            Markup('<rect class="{}" x="{}" y="{:.1f}" width="6" height="{:.1f}" rx="2"/>').format(
                kind, 8 * number + 1, height - tall, tall
            )
        )
    return Markup(
        '<svg class="bars" role="img" aria-label="{}" viewBox="0 0 {} {}"'
        ' preserveAspectRatio="none">{}</svg>'
    ).format(what, width, height, Markup("").join(parts))


def draw_counts(rows: Sequence[Mapping[str, Any]], what: str, height: int = 72) -> Markup:
    """Draw a mark for each count, on a bar from `low` to `high`; no mark where none was drawn."""
    parts_of = ("count", "low", "high")
    values = [0, *(row[name] for row in rows for name in parts_of if row[name] is not None)]
    bottom, top = min(values), max(1, *values)
    scale = (height - 8) / (top - bottom)
    parts = []
    for number, row in enumerate(rows):
        x = 10 * number
        low, high = (height - 4 - scale * (row[name] - bottom) for name in ("low", "high"))
        mark, shown = Markup(""), "not drawn"
        if row["count"] is not None:
            shown = f"{row['count']}"
            middle = height - 4 - scale * (row["count"] - bottom)
            mark = Markup(
                '<rect class="bar" x="{}" y="{:.1f}" width="8" height="3" rx="1"/>'
            ).format(x + 1, middle - 1.5)
        parts.append(
            Markup(
                "<g><title>{:%Y-%m-%dT%H:%MZ}: {}, from {} to {}</title>"
                '<rect class="interval" x="{}" y="{:.1f}" width="2" height="{:.1f}"/>{}</g>'
            ).format(
                row["window_start"],
                shown,
                row["low"],
                row["high"],
                x + 4,
                high,
                max(1.0, low - high),
                mark,
            )
        )
    return Markup(
        '<svg class="bars counts" role="img" aria-label="{}" viewBox="0 0 {} {}"'
        ' preserveAspectRatio="none"><rect class="zero" y="{:.1f}" width="{}" height="1"/>{}</svg>'
    ).format(
        what,
        10 * max(_FEWEST, len(rows)),
        height,
        height - 4 + scale * bottom,
        10 * max(_FEWEST, len(rows)),
        Markup("").join(parts),
    )


def draw_line(values: Sequence[float], what: str, height: int = 56) -> Markup:
    """Draw a line with the area below it."""
    top = max([1.0, *values])
    width = 240
    if len(values) < 2:
        values = [0.0, 0.0]
    step = width / (len(values) - 1)
    points = [
        f"{number * step:.1f},{height - 2 - value / top * (height - 6):.1f}"
        for number, value in enumerate(values)
    ]
    line = " ".join(points)
    return Markup(
        '<svg class="line" role="img" aria-label="{}" viewBox="0 0 {} {}"'
        ' preserveAspectRatio="none"><polygon class="area" points="0,{} {} {},{}"/>'
        '<polyline class="stroke" points="{}"/></svg>'
    ).format(what, width, height, height, line, width, height, line)


def draw_meter(value: float, limit: float | None, what: str, *, warn: bool = True) -> Markup:
    """Draw a share of a limit; with `warn` it changes its colour where little is left."""
    share = 0.0 if limit is None or limit <= 0 else min(1.0, value / limit)
    kind = "fill full" if share >= 1 else "fill high" if share >= 0.8 else "fill"
    kind = kind if warn else "fill"
    return Markup(
        '<svg class="meter" role="img" aria-label="{}" viewBox="0 0 200 10"'
        ' preserveAspectRatio="none"><rect class="track" width="200" height="10"/>'
        '<rect class="{}" width="{:.1f}" height="10"/></svg>'
    ).format(what, kind, 200 * share)


def draw_odds(after: float, what: str) -> Markup:
    """Draw a 50:50 guess, and what it becomes at most."""
    return Markup(
        '<svg class="odds" role="img" aria-label="{}" viewBox="0 0 200 12"'
        ' preserveAspectRatio="none"><rect class="track" width="200" height="12"/>'
        '<rect class="fill" width="{:.1f}" height="12"/>'
        '<rect class="half" x="99.2" width="1.6" height="12"/></svg>'
    ).format(what, 2 * min(100.0, after))


def _iso(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
