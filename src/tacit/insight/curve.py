"""Quality against epsilon: the expected quality of each mechanism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from os import PathLike
from typing import TYPE_CHECKING, Any, Final

from tacit.engines.local import load_spec, survey_history
from tacit.engines.setup import SpecSource
from tacit.errors import PlanError
from tacit.evaluation.palette import find_mechanism_style
from tacit.html_tables import format_html_table
from tacit.insight.tabular import align
from tacit.pictures import INK, frame_axes, load_figure, make_picture
from tacit.planning.planner import choose_split, make_plan
from tacit.privacy.exponentials import format_epsilon
from tacit.privacy.statistics import Statistics
from tacit.progress import ProgressCallback, ignore_progress, scale_progress
from tacit.spec.mechanisms import MECHANISMS
from tacit.spec.specification import Specification

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EPSILONS: Final = tuple(
    Fraction(tenths, 10) for tenths in (1, 2, 5, 10, 15, 20, 25, 30, 40, 50, 70, 100)
)
"""The epsilons of a curve, for the private pattern with the largest one."""


@dataclass(frozen=True, slots=True)
class Point:
    """The expected quality of a mechanism at some epsilon."""

    mechanism: str
    epsilon: Fraction
    """That of the private pattern with the largest one."""
    quality: float
    """The expected Q, micro average over all queries."""
    queries: dict[str, float]
    """The expected Q of each query."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Expected quality against epsilon, for each mechanism.

    All private patterns have their epsilons in the same proportions as in the specification;
    points state the largest of them.
    """

    private: dict[str, Fraction]
    """The epsilons in the specification."""
    decode: str
    windows: int
    """The number of windows of history."""
    points: tuple[Point, ...]
    per: str = "window"
    """The unit of an epsilon; with sliding windows, an occurrence."""

    @property
    def declared(self) -> Fraction:
        """The largest epsilon in the specification."""
        return max(self.private.values())

    def of(self, mechanism: str) -> list[Point]:
        """Return the points of one mechanism, in order of epsilon."""
        chosen = [point for point in self.points if point.mechanism == mechanism]
        return sorted(chosen, key=lambda point: point.epsilon)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, fit for JSON; exact numbers are text."""
        return {
            "private": {name: format_epsilon(epsilon) for name, epsilon in self.private.items()},
            "decode": self.decode,
            "windows": self.windows,
            "points": [
                {
                    "mechanism": point.mechanism,
                    "epsilon": format_epsilon(point.epsilon),
                    "quality": point.quality,
                    "queries": point.queries,
                }
                for point in self.points
            ],
        }

    def rows(self) -> list[tuple[str, ...]]:
        """Return a header, then for each epsilon the expected Q of each mechanism."""
        columns = [self.of(mechanism) for mechanism in MECHANISMS]
        body = [
            (format_epsilon(points[0].epsilon), *(f"{point.quality:.3f}" for point in points))
            for points in zip(*columns, strict=True)
        ]
        return [("epsilon", *MECHANISMS), *body]

    def __str__(self) -> str:
        return "\n".join([f"Expected Q against {self.unit}:", *align(self.rows())])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        head, *rows = self.rows()
        return format_html_table(f"Expected Q against {self.unit}", head, rows)

    @property
    def unit(self) -> str:
        """The unit of the epsilon of a quality."""
        if len(set(self.private.values())) == 1:
            return f"epsilon (for one subject, one private pattern, one {self.per})"
        widest = next(name for name, own in self.private.items() if own == self.declared)
        return f"epsilon of {widest} (one subject, one {self.per}; the others in proportion)"

    def plot(self, path: str | PathLike[str] | None = None) -> Figure:
        """Draw the curve; with a path, write it to this SVG, PNG or PDF file too."""
        return make_picture(self._draw, path)

    def _draw(self) -> Figure:
        figure = load_figure()(figsize=(7.2, 4.2), layout="constrained")
        axes = figure.add_subplot()
        lowest = min(point.quality for point in self.points)
        axes.set_ylim(max(0.0, lowest - 0.25 * (1.02 - lowest)), 1.02)
        for mechanism in MECHANISMS:
            style = find_mechanism_style(mechanism)
            assert style is not None
            colour, shape, stroke = style
            points = self.of(mechanism)
            axes.plot(
                [float(point.epsilon) for point in points],
                [point.quality for point in points],
                color=colour, marker=shape, linestyle=stroke, markersize=5, linewidth=1.8,
            )  # fmt: skip
        _label(axes, self)
        _frame(axes, self)
        return figure


def compute_curve(
    spec: Specification,
    statistics: Sequence[Statistics],
    decode: str | None = None,
    *,
    epsilons: Sequence[Fraction] = EPSILONS,
    progress: ProgressCallback = ignore_progress,
) -> Curve:
    """Compute the expected quality of every mechanism at each epsilon and the declared one.

    Every window is paid for: limits are left out.
    """
    paid = tuple(one.model_copy(update={"limit": None}) for one in spec.private)
    spec = spec.model_copy(update={"private": paid}).checked()
    private = {pattern.name: Fraction(pattern.epsilon) for pattern in spec.private}
    windows = int(sum(part.windows for part in statistics))
    if not private or not windows:
        lacking = "windows of history" if private else "private patterns"
        raise PlanError(f"a curve of quality against epsilon needs {lacking}; there are none")
    declared = max(private.values())
    places = sorted({*epsilons, declared})
    points: list[Point] = []
    split, _ = choose_split(spec, statistics, decode=decode)
    for epsilon in places:
        for mechanism in MECHANISMS:
            share = epsilon / declared
            plan = make_plan(
                spec, statistics, mechanism, decode, share, fall_back=False, split=split
            )
            expected = plan.expected
            assert expected is not None, "there are windows of history"
            each = {row["query"]: row["quality"] for row in expected.rows()}
            points.append(Point(mechanism, epsilon, expected.quality, each))
            number = len(places) * len(MECHANISMS)
            progress(len(points) / number, f"computing the curve, {len(points)} of {number}")
    return Curve(private, decode or spec.decode, windows, tuple(points), spec.windows.unit)


def curve(
    spec: SpecSource,
    *history: Any,
    decode: str | None = None,
    progress: ProgressCallback | None = None,
    **streams: Any,
) -> Curve:
    """Compute quality against epsilon from history: frames or files, as for `tacit.plan`.

    The result's `plot` draws it. `progress` is as for `tacit.plan`.
    """
    spec, progress = load_spec(spec), progress or ignore_progress
    statistics = survey_history(spec, history, streams, decode, scale_progress(progress, 0, 0.5))
    return compute_curve(spec, statistics, decode, progress=scale_progress(progress, 0.5, 1))


def _label(axes: Axes, curve: Curve) -> None:
    """Label each line at its end; labels that would overlap are moved apart."""
    low, high = axes.get_ylim()
    gap = 0.06 * (high - low)
    # If lines end at the same height, the better mechanism is labelled above.
    names = list(MECHANISMS)
    ends = [(round(curve.of(name)[-1].quality, 3), rank) for rank, name in enumerate(names)]
    last = max(float(point.epsilon) for point in curve.points)
    height, place = high, {}
    for quality, rank in sorted(ends, reverse=True):
        height = min(quality, height - gap)
        place[names[rank]] = height
    for mechanism, own in place.items():
        style = find_mechanism_style(mechanism)
        assert style is not None
        axes.annotate(
            mechanism, (last, own), xytext=(10, 0), textcoords="offset points",
            color=style.colour, va="center", fontweight="bold", annotation_clip=False,
        )  # fmt: skip


def _frame(axes: Axes, curve: Curve) -> None:
    axes.set_xscale("log")
    ticks = sorted({float(point.epsilon) for point in curve.points})
    shown = [tick for tick in ticks if tick in (0.1, 0.2, 0.5, 1, 2, 3, 5, 10)]
    axes.set_xticks(shown, [f"{tick:g}" for tick in shown])
    axes.minorticks_off()
    axes.set_xlabel(curve.unit, color=INK)
    axes.set_ylabel("expected quality Q (micro average)", color=INK)
    axes.set_title(
        f"Quality against epsilon: {curve.windows:,} windows of history, {curve.decode} decoding",
        loc="left", fontsize=10, color=INK,
    )  # fmt: skip
    axes.axvline(float(curve.declared), color="#999999", linewidth=0.9, zorder=0)
    axes.annotate(
        f"specification: {format_epsilon(curve.declared)}",
        (float(curve.declared), axes.get_ylim()[0]),
        xytext=(4, 5), textcoords="offset points", fontsize=8, color="#666666",
    )  # fmt: skip
    frame_axes(axes)
