"""The picture of quality against limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tacit.errors import PlanError
from tacit.pictures import INK, frame_axes, load_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tacit.planning.limits import LimitCurve


def draw_limits(curve: LimitCurve) -> Figure:
    """Draw a line for all queries, and a thin one for each."""
    if not curve:
        raise PlanError("there is nothing to plot: the curve has no points")
    figure = load_figure()(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.add_subplot()
    places = [float(point.factor) for point in curve]
    each = [{row["query"]: row["quality"] for row in point.expected.rows()} for point in curve]
    for number, query in enumerate(each[0]):
        axes.plot(
            places, [values[query] for values in each], linewidth=1.0, alpha=0.8,
            color=f"C{number % 10}", marker=".", label=query,
        )  # fmt: skip
    total = [point.expected.quality for point in curve]
    axes.plot(places, total, linewidth=2.4, color=INK, marker="o", label="all queries")
    axes.set_xscale("log")
    labels = ["\n".join(dict.fromkeys(point.limits.values())) for point in curve]
    axes.set_xticks(places, labels, fontsize=8)
    axes.minorticks_off()
    axes.set_ylim(0, 1.02)
    axes.set_xlabel(f"limit of {', '.join(curve[0].limits)}", color=INK, parse_math=False)
    axes.set_ylabel("expected quality Q", color=INK)
    axes.set_title("Quality against limits", loc="left", fontsize=10, color=INK)
    figure.legend(loc="outside right center", fontsize=8, frameon=False)
    frame_axes(axes)
    return figure
