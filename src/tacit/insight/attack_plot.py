"""The picture of an attack: prior, attacker and bounds, a panel for each kind of guess."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tacit.insight.attack_report import RATES, AttackReport, Guess, PatternAttack
from tacit.pictures import INK, frame_axes, load_figure

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINES: Final = {
    "prior_detection": ("prior: no answers", "#c4c4c4", "-", 5.5),
    "detection": ("attacker", "#0072B2", "-", 2.4),
    "window_detection": ("bound for one window", "#D55E00", "--", 1.6),
    "several_detection": ("bound for the day", "#009E73", (0, (1, 1)), 2.0),
}
"""For each curve its label, colour, stroke and width.

The prior is wide and light, and below the others: it shows where they coincide with it.
"""


def draw_attack(report: AttackReport) -> Figure:
    """Draw a row of panels for each private pattern."""
    rows = max(1, len(report.patterns))
    figure = load_figure()(figsize=(11.4, 3.9 * rows), layout="constrained")
    for row, pattern in enumerate(report.patterns):
        for column, guess in enumerate(pattern.guesses):
            axes = figure.add_subplot(rows, 3, 3 * row + column + 1)
            _draw(axes, pattern, guess)
            if column == 0:
                axes.set_ylabel("share of occurrences found", color=INK)
            if row == rows - 1:
                axes.set_xlabel("share of false alarms", color=INK)
    handles: dict[str, Artist] = {}
    for axes in figure.axes:
        for line, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, line)
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=4, fontsize=9,
        frameon=False,
    )  # fmt: skip
    figure.suptitle(
        f"What an attacker finds who knows everything else: {report.mechanism}, decoded by"
        f" {report.decode}",
        x=0.01, ha="left", fontsize=11, color=INK,
    )  # fmt: skip
    return figure


def _draw(axes: Axes, pattern: PatternAttack, guess: Guess) -> None:
    for name, (label, colour, stroke, width) in _LINES.items():
        curve = getattr(guess, name)
        if curve is not None:
            axes.plot(RATES, curve, label=label, color=colour, linestyle=stroke, linewidth=width)
    if guess.detection is None:
        axes.text(
            0.5, 0.5, "the same every time:\nnothing to guess", transform=axes.transAxes,
            ha="center", va="center", color=INK, fontsize=9,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlim(RATES[0], 1)
    axes.set_ylim(0, 1.02)
    axes.set_xticks([0.001, 0.01, 0.1, 1], ["0.1 %", "1 %", "10 %", "100 %"], fontsize=8.5)
    axes.set_title(
        f"{pattern.private} {guess.title}\n{guess.attacker:.1%} right, prior {guess.prior:.1%}",
        loc="left", fontsize=9, color=INK,
    )  # fmt: skip
    frame_axes(axes, "both")
