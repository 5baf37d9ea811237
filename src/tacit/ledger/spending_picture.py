"""Spending as a picture: for each private pattern what was spent in each horizon, beside limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tacit.errors import LedgerError
from tacit.pictures import INK, frame_axes, load_figure
from tacit.privacy.prices import NANO
from tacit.quantities import count
from tacit.spec.epsilon import name_horizon

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tacit.ledger.statement import Horizon, Statement

_MOST_PANELS: Final = 4
_MOST_BARS: Final = 31
"""The largest number of horizons in a panel: the last ones."""
_BAR: Final = "#0072B2"
_FULL: Final = "#D55E00"


def draw_spending(statement: Statement) -> Figure:
    """Draw a panel for each private pattern and length of horizon."""
    panels: dict[tuple[str, int], list[Horizon]] = {}
    for one in statement.horizons:
        panels.setdefault((one.private, one.length), []).append(one)
    if not panels:
        raise LedgerError("there is nothing to plot: nothing was charged yet")
    chosen = list(panels.values())[:_MOST_PANELS]
    figure = load_figure()(figsize=(7.2, 0.3 + 2.7 * len(chosen)), layout="constrained")
    for number, horizons in enumerate(chosen):
        _draw(figure.add_subplot(len(chosen), 1, number + 1), horizons[-_MOST_BARS:])
    return figure


def _draw(axes: Axes, horizons: list[Horizon]) -> None:
    places = np.arange(len(horizons))
    spent = [one.spent / NANO for one in horizons]
    colours = [_FULL if one.exhausted else _BAR for one in horizons]
    bars = axes.bar(places, spent, width=0.62, color=colours)
    for bar, one in zip(bars, horizons, strict=True):
        if one.exhausted:
            text = f"{count(one.exhausted, 'subject')}\nat the limit"
            axes.annotate(
                text, (bar.get_x() + bar.get_width() / 2, bar.get_height()), xytext=(0, 3),
                textcoords="offset points", ha="center", fontsize=7, color=INK,
            )  # fmt: skip
    limits = [one.limit / NANO for one in horizons if one.limit is not None]
    for place, one in zip(places, horizons, strict=True):
        if one.limit is not None:
            ends = (place - 0.45, place + 0.45)
            axes.plot(ends, [one.limit / NANO] * 2, color=INK, linewidth=1.2)
    first = horizons[0]
    limit = f", limit {limits[-1]:g} (black line)" if limits else ", no limit"
    axes.set_title(
        f"{first.private}: the largest spending of a subject per"
        f" {name_horizon(first.length)}{limit}",
        loc="left", fontsize=10, color=INK, parse_math=False,
    )  # fmt: skip
    axes.set_ylim(0, 1.3 * max(*spent, *limits, 0.0) or 1.0)
    axes.set_ylabel("epsilon", color=INK)
    step = -(-len(horizons) // 8)
    axes.set_xticks(places[::step], [_format_start(one) for one in horizons[::step]], fontsize=8)
    axes.set_xlim(-0.6, max(len(horizons), 4) - 0.4)
    frame_axes(axes)


def _format_start(horizon: Horizon) -> str:
    whole = horizon.start % 86_400_000_000 == 0 and horizon.length % 86_400_000_000 == 0
    unit = "D" if whole else "m"
    return str(np.datetime64(horizon.start, "us").astype(f"datetime64[{unit}]")).replace("T", "\n")
