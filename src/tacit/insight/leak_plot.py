"""The picture of leaks: odds ratios with their bounds, the strongest on top."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tacit.insight.leak_report import WHEN, Leak, LeakReport, When
from tacit.pictures import INK, frame_axes, load_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST: Final = 25
_STYLES: Final[dict[When, tuple[str, str]]] = {
    "same": ("#0072B2", "o"),
    "before": ("#D55E00", "<"),
    "after": ("#009E73", ">"),
}
"""The colour and the marker of each lag."""


def draw_leaks(report: LeakReport) -> Figure:
    """Draw the strongest findings."""
    shown = report.leaks[:_MOST]
    figure = load_figure()(figsize=(8.6, 1.7 + 0.3 * max(1, len(shown))), layout="constrained")
    axes = figure.add_subplot()
    heights = np.arange(len(shown))[::-1]
    edges = _edges(shown)
    for leak, height in zip(shown, heights.tolist(), strict=True):
        colour, marker = _STYLES[leak.when]
        low, high = max(leak.low, edges[0]), min(leak.high, edges[1])
        axes.plot([low, high], [height, height], color=colour, linewidth=1.6)
        for end, value, arrow in ((low, leak.low, 4), (high, leak.high, 5)):
            bounded = end == value
            axes.plot(
                [end], [height], color=colour, marker="|" if bounded else arrow, clip_on=False
            )
        if leak.bounded:
            axes.plot([leak.odds_ratio], [height], color=colour, marker=marker, markersize=6)
    _frame(axes, report, shown, heights.tolist(), edges)
    return figure


def _edges(shown: tuple[Leak, ...]) -> tuple[float, float]:
    """Return the range of the axis: all ratios and finite bounds, and 1."""
    values = [1.0, *(leak.odds_ratio for leak in shown if leak.bounded)]
    values += [bound for leak in shown for bound in (leak.low, leak.high) if 0 < bound < np.inf]
    return min(min(values) / 1.3, 0.7), max(max(values) * 1.5, 1.5)


def _frame(
    axes: Axes,
    report: LeakReport,
    shown: tuple[Leak, ...],
    heights: list[int],
    edges: tuple[float, float],
) -> None:
    axes.set_xscale("log")
    axes.set_xlim(*edges)
    axes.set_ylim(-0.7, max(len(shown), 1) - 0.3)
    several = len({leak.private for leak in shown}) > 1
    labels = [f"{leak.described} → {leak.private}" if several else leak.described for leak in shown]
    axes.set_yticks(heights, labels, fontsize=9)
    axes.axvline(1, color="#999999", linewidth=0.9, zorder=0)
    about = "the private pattern" if several or not shown else shown[0].private
    axes.set_xlabel(f"odds of {about}, with the signal relative to without it", color=INK)
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    title = (
        f"What public events and exact answers tell: {report.windows:,} windows of history,"
        f" error rate {report.rate:g}"
    )
    if not shown:
        axes.text(0.5, 0.5, "no finding", transform=axes.transAxes, ha="center", color=INK)
    elif len(report.leaks) > len(shown):
        title += f"; the strongest {len(shown)} of {len(report.leaks)}"
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    for when in dict.fromkeys(leak.when for leak in shown):
        colour, marker = _STYLES[when]
        axes.plot([], [], color=colour, marker=marker, label=WHEN[when])
    if shown:
        axes.figure.legend(
            loc="outside right upper", fontsize=8, title_fontsize=8, frameon=False,
            title="the signal's window",
        )  # fmt: skip
    frame_axes(axes, "x")
