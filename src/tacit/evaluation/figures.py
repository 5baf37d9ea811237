"""Figures of experiments: errors against epsilon, or against the parameter that is varied.

Each of the three mechanisms has its own colour, safe for colour-blind readers, marker and line
style. Baselines are grey. Every line is labelled at its end; lines that coincide share a label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final

from tacit.evaluation.experiments import ExperimentOutcome
from tacit.evaluation.methods import DECODES, WITHOUT_EPSILON, Method
from tacit.evaluation.palette import LineStyle, choose_own_style, find_mechanism_style
from tacit.pictures import INK, frame_axes, load_figure, make_picture
from tacit.privacy.exponentials import format_epsilon

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GREYS: Final = {"prior alone": "#333333", "suppression": "#AA4499"}
_REMARKS: Final = {"prior alone": " (epsilon 0)", "suppression": " (no epsilon)"}
_GREY: Final = "#8a8a8a"
_SAME: Final = 0.006
"""Lines that are everywhere closer than this share of the axis have one label."""
LOSS: Final = "MRE: relative loss of quality Q"
_ENOUGH: Final = 100
"""With fewer data sets, bands are so wide that they hide the lines."""
_IN_A_ROW: Final = 3
_STROKES: Final = (
    {"marker": "x", "linestyle": (0, (1, 1))},
    {"marker": "^", "linestyle": (0, (5, 2))},
    {"marker": "o", "linestyle": "solid"},
    {"marker": "D", "linestyle": (0, (3, 1, 1, 1))},
    {"marker": "P", "linestyle": (0, (7, 1))},
)
"""The styles of several variants of one mechanism in a panel."""
_VARIED: Final = tuple(
    Method(name, decode)
    for name, decodes in {
        "uniform": DECODES,
        "adaptive": DECODES,
        "optimal": ("posterior",),
        "event-level": ("posterior",),
        "prior alone": ("posterior",),
    }.items()
    for decode in decodes
)
"""The methods in figures that vary a parameter."""


@dataclass(frozen=True)
class _Line:
    """A method's line in a panel."""

    method: Method
    places: tuple[float, ...]
    means: tuple[float, ...]
    lows: tuple[float, ...]
    highs: tuple[float, ...]
    label: str
    style: LineStyle | None
    """The style of a mechanism, or of a method of one's own; None for baselines."""

    @property
    def ppm(self) -> bool:
        return self.style is not None

    @property
    def colour(self) -> str:
        return self.style.colour if self.style else _GREYS.get(self.method.name, _GREY)


def plot(outcome: ExperimentOutcome, path: str | PathLike[str] | None = None) -> Figure:
    """Draw the figure; with a path, write it to this SVG, PNG or PDF file too."""
    return make_picture(lambda: _draw_panels(outcome), path)


def _draw_panels(outcome: ExperimentOutcome) -> Figure:
    varied = outcome.experiment.variation is not None
    panels = _list_varied_panels(outcome) if varied else _epsilon_panels(outcome)
    columns = min(len(panels), 2 if len(panels) in (2, 4) else _IN_A_ROW)
    rows = -(-len(panels) // columns)
    lines = max(len(lines) for _, lines in panels)
    height = 5.6 if varied or lines > 6 else 4.4
    drawn = load_figure()(
        figsize=(11.4 if columns < _IN_A_ROW else 16, rows * height), layout="constrained"
    )
    drawn.get_layout_engine().set(wspace=0.04)  # type: ignore[union-attr, call-arg]
    bands = outcome.datasets >= _ENOUGH
    tops = [
        1.04 * max(high for line in these for high in (line.highs if bands else line.means))
        for _, these in panels
    ]
    shared = varied or outcome.experiment.comparison.one_scale
    for number, (title, lines_here) in enumerate(panels):
        axes = drawn.add_subplot(rows, columns, number + 1)
        top = max(tops) if shared else tops[number]
        axes.set_ylim(0, top)
        _draw(axes, lines_here, bands)
        _frame(axes, outcome, title)
        _name(axes, lines_here, top)
        if number % columns == 0:
            axes.set_ylabel(LOSS, color=INK)
        elif shared:
            axes.tick_params(labelleft=False)
    drawn.suptitle(_heading(outcome), x=0.01, ha="left", fontsize=11, color=INK)
    return drawn


def _heading(outcome: ExperimentOutcome) -> str:
    sets = "1 data set" if outcome.datasets == 1 else f"{outcome.datasets:,} data sets"
    bands = ", 95 % confidence bands" if outcome.datasets >= _ENOUGH else ""
    text = f"{outcome.experiment.title}: mean over {sets}{bands}, seed {outcome.experiment.seed}"
    return f"{text}. Epsilon is for {outcome.experiment.unit}."


def _epsilon_panels(outcome: ExperimentOutcome) -> list[tuple[str, list[_Line]]]:
    """Return the panels of the comparison."""
    points = [(float(e), e, None) for e in outcome.experiment.epsilons]
    return [
        (
            panel.title,
            [
                _line(outcome, method, points, label + _REMARKS.get(label, ""))
                for label, method in panel.methods
            ],
        )
        for panel in outcome.experiment.comparison.panels
    ]


def _list_varied_panels(outcome: ExperimentOutcome) -> list[tuple[str, list[_Line]]]:
    """Return a panel for each epsilon."""
    return [
        (
            f"epsilon {format_epsilon(epsilon)} (one subject, one private pattern, one window)",
            [
                _line(
                    outcome,
                    method,
                    [(float(v or 0), epsilon, v) for v in outcome.values],
                    (method.name if method.name in WITHOUT_EPSILON else str(method))
                    + _REMARKS.get(method.name, ""),
                )
                for method in (
                    *(one for one in _VARIED if one in outcome.methods),
                    *(
                        one
                        for one in outcome.methods
                        if one.name in outcome.experiment.comparison.own
                    ),
                )
            ],
        )
        for epsilon in outcome.experiment.epsilons
    ]


def _line(
    outcome: ExperimentOutcome,
    method: Method,
    points: Sequence[tuple[float, Any, Any]],
    label: str,
) -> _Line:
    bands = [outcome.band(method, epsilon, value) for _, epsilon, value in points]
    means, lows, highs = (tuple(column) for column in zip(*bands, strict=True))
    places = tuple(place for place, _, _ in points)
    own = outcome.experiment.comparison.own
    style = find_mechanism_style(method.name)
    if method.name in own:
        style = choose_own_style(own.index(method.name))
    return _Line(method, places, means, lows, highs, label, style)


def _draw(axes: Axes, lines: Sequence[_Line], bands: bool) -> None:
    for line in lines:
        name = line.method.name
        literal = line.method.decode == "literal"
        own = line.style
        if own is not None:
            style: dict[str, Any] = {
                "marker": own.marker, "linestyle": own.stroke, "linewidth": 2.0,
                "markersize": 5.5, "zorder": 3,
                "markerfacecolor": "white" if literal else line.colour,
            }  # fmt: skip
            same = [one.method for one in lines if one.method.name == name]
            if line.method.variant:
                style |= _STROKES[same.index(line.method) % len(_STROKES)]
            elif line.method.decode == "memory" and len(same) > 1:
                style |= _STROKES[3]
        else:
            stroke = (0, (4, 3)) if name in WITHOUT_EPSILON else "solid"
            style = {"linestyle": stroke, "linewidth": 1.1, "zorder": 2}
        axes.plot(line.places, line.means, color=line.colour, **style)
    # Lines that coincide have one band; several would add up to a darker one.
    for line, _ in _group_lines(lines, axes.get_ylim()[1]) if bands else ():
        axes.fill_between(
            line.places, line.lows, line.highs, color=line.colour, alpha=0.13, linewidth=0,
            zorder=1,
        )  # fmt: skip


def _name(axes: Axes, lines: Sequence[_Line], top: float) -> None:
    """Label each line at its end; labels that would overlap are moved apart."""
    named = sorted(_group_lines(lines, top), key=lambda pair: -_end(pair[0]))
    heights = _spread([(_end(line), 1 + label.count("\n")) for line, label in named], top)
    last = max(place for line in lines for place in line.places)
    for (line, label), height in zip(named, heights, strict=True):
        axes.annotate(
            label, (last, _end(line)), xytext=(1.045, height / top), textcoords="axes fraction",
            color=line.colour if line.ppm or line.method.name in _GREYS else "#5c5c5c",
            va="center", fontsize=9 if line.ppm else 8,
            fontweight="bold" if line.ppm else "normal", annotation_clip=False,
            linespacing=1.0,
            arrowprops={
                "arrowstyle": "-", "color": line.colour, "linewidth": 0.6, "shrinkA": 1,
                "shrinkB": 4, "relpos": (0, 0.5),
            },
        )  # fmt: skip


def _end(line: _Line) -> float:
    return line.means[-1]


def _group_lines(lines: Sequence[_Line], top: float) -> list[tuple[_Line, str]]:
    """Group lines by label; baselines that nearly coincide share one label."""
    groups: list[list[_Line]] = []
    for line in lines:
        for group in groups:
            apart = max(abs(a - b) for a, b in zip(line.means, group[0].means, strict=True))
            alike = line.method.name not in _GREYS and group[0].method.name not in _GREYS
            if not line.ppm and not group[0].ppm and alike and apart < _SAME * top:
                group.append(line)
                break
        else:
            groups.append([line])
    return [(group[0], _wrap(", ".join(line.label for line in group))) for group in groups]


def _wrap(label: str) -> str:
    return fill(label, 24, break_on_hyphens=False)


_STEP: Final = 0.042
"""The height of a line of text, as a share of the axis."""


def _spread(wanted: Sequence[tuple[float, int]], top: float) -> list[float]:
    """Choose heights near the given ones, from the highest to the lowest, without overlap."""
    sizes = [lines * _STEP * top for _, lines in wanted]
    heights: list[float] = []
    for number, ((want, _), size) in enumerate(zip(wanted, sizes, strict=True)):
        ceiling = top if number == 0 else heights[-1] - (sizes[number - 1] + size) / 2
        heights.append(min(want, ceiling))
    floor = 0.0
    for number in reversed(range(len(heights))):
        # Labels pushed below the axis move up again, with those above them.
        heights[number] = max(heights[number], floor + (sizes[number] / 2 if floor else 0.0))
        floor = heights[number] + sizes[number] / 2
    return heights


def _frame(axes: Axes, outcome: ExperimentOutcome, title: str) -> None:
    varied = outcome.experiment.variation
    if varied is None:
        axes.set_xscale("log")
        ticks = [float(epsilon) for epsilon in outcome.experiment.epsilons]
        axes.set_xlabel("epsilon", color=INK)
    else:
        ticks = [float(value) for value in varied.values]
        axes.set_xlabel(varied.label, color=INK)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=8.5)
    axes.minorticks_off()
    axes.set_title(title, loc="left", fontsize=9.5, color=INK)
    frame_axes(axes)
