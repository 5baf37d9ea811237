"""The picture of a plan: the precision, recall and quality that each query can expect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tacit.errors import PlanError
from tacit.pictures import INK, frame_axes, load_figure
from tacit.quantities import count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tacit.planning.plan import Plan

_MOST_ROWS: Final = 40
"""The largest number of queries in a picture."""
_MARKS: Final = {
    "precision": ("precision: how many yes are right", "#0072B2", ">"),
    "recall": ("recall: how many occurrences get a yes", "#E69F00", "<"),
    "quality": ("quality Q", "#009E73", "o"),
}
"""For each figure its label, colour and marker."""


def draw_plan(plan: Plan) -> Figure:
    """Draw a row for each query; worst first, because that is what a reader must see."""
    if plan.expected is None:
        raise PlanError(
            "there is nothing to plot: this plan was made without history, so its quality is"
            " not known; give history to tacit.plan"
        )
    rows = sorted(plan.expected.rows(), key=lambda row: -row["quality"])[-_MOST_ROWS:]
    past = {} if plan.past is None else {row["query"]: row for row in plan.past.rows()}
    figure = load_figure()(figsize=(7.2, 1.9 + 0.34 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    for height, row in enumerate(rows):
        ends = [row["precision"], row["recall"]]
        axes.plot(ends, [height, height], color="#bbbbbb", linewidth=1.4, zorder=1)
    heights = range(len(rows))
    for name, (label, colour, marker) in _MARKS.items():
        values = [row[name] for row in rows]
        axes.scatter(values, heights, color=colour, marker=marker, s=44, label=label, zorder=3)
    if past:
        axes.scatter(
            [past[row["query"]]["quality"] for row in rows], heights, marker="o", s=44,
            facecolors="none", edgecolors=INK, label="Q once a limit is reached", zorder=2,
        )  # fmt: skip
    axes.axvline(plan.expected.quality, color="#999999", linewidth=0.9, zorder=0)
    axes.annotate(
        f"all queries: Q {plan.expected.quality:.3f}", (plan.expected.quality, 0),
        xycoords=("data", "axes fraction"), xytext=(-4, 4), textcoords="offset points",
        ha="right", fontsize=8, color="#666666",
    )  # fmt: skip
    axes.set_yticks(heights, [row["query"] for row in rows], parse_math=False)
    axes.set_ylim(-0.8, len(rows) - 0.4)
    axes.set_xlim(-0.02, 1.02)
    axes.set_xlabel("expected, from held-out history; 1 is perfect", color=INK)
    axes.set_title(
        f"What consumers can expect: {plan.mechanism}, {count(plan.windows, 'window')} of history",
        loc="left", fontsize=10, color=INK,
    )  # fmt: skip
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    frame_axes(axes, "both")
    return figure
