"""One day of a subject as a picture: what was spent when, and how each window was answered."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacit.durations import MICROSECONDS
from tacit.errors import LedgerError
from tacit.options import option
from tacit.pictures import load_figure
from tacit.privacy.prices import NANO
from tacit.quantities import count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tacit.ledger.statement import Horizon, Statement

Whole = NDArray[np.int64]

_HOUR: Final = MICROSECONDS["h"]
_DAY: Final = MICROSECONDS["d"]
_STEPS: Final = (3 * _HOUR, 6 * _HOUR, 12 * _HOUR, *(_DAY * n for n in (1, 2, 7, 14, 28, 56)))
"""Times between two labels of an axis."""
_MOST_TICKS: Final = 9
_INK: Final = "#333333"
_MOST_PANELS: Final = 4
"""The largest number of private patterns in a picture."""


class _Kind(NamedTuple):
    """How a window was answered."""

    label: str
    colour: str


_KINDS: Final = (
    _Kind("paid for", "#0072B2"),
    _Kind("from memory or prior", "#E69F00"),
    _Kind("free", "#8a8a8a"),
)
_PAID, _UNPAID, _FREE = range(3)


class SubjectDay(NamedTuple):
    """The windows of one subject and private pattern in a day, or a longer horizon."""

    private: str
    start: int
    """In the subject's local time, as microseconds since 1970; so are all times here."""
    end: int
    horizon: int
    limit: int | None
    starts: Whole
    """When each window starts, in order."""
    slides: Whole
    kinds: Whole
    """How each window was answered: paid for, not paid for, or free."""
    amounts: Whole

    @property
    def counts(self) -> list[int]:
        """The number of windows of each kind."""
        return [int(n) for n in np.bincount(self.kinds, minlength=len(_KINDS))]

    def accumulate(self) -> tuple[Whole, Whole]:
        """Return times, and what is spent from each on, in nano-epsilon; horizons begin at 0."""
        own = self.starts // self.horizon
        total = np.cumsum(self.amounts)
        first = np.searchsorted(own, own)
        spent = total - (total - self.amounts)[first]
        bounds = np.unique(own) * self.horizon
        begins = np.maximum(bounds, self.start)
        places = np.searchsorted(self.starts, bounds)
        times = np.insert(self.starts, places, begins)
        spent = np.insert(spent, places, 0)
        last = min(int(self.starts[-1] + self.slides[-1]), self.end)
        return np.append(times, last), np.append(spent, spent[-1])

    def list_bars(self, kind: int) -> list[tuple[int, int]]:
        """Return the start and length of each stretch of windows of one kind."""
        own = self.kinds == kind
        starts, slides = self.starts[own], self.slides[own]
        if not len(starts):
            return []
        new = np.append(True, np.diff(starts) > slides[:-1])
        first = np.flatnonzero(new)
        ends = starts + slides
        lasts = np.append(first[1:], len(starts)) - 1
        return [
            (int(begin), int(end - begin))
            for begin, end in zip(starts[first], ends[lasts], strict=True)
        ]


def find_days(statement: Statement, day: str | None = None) -> list[SubjectDay]:
    """Return the windows of a day for each private pattern; by default of the last day."""
    if statement.subject is None:
        raise LedgerError(
            f"the picture of a day is of one subject: give {option('subject', 'SUBJECT')}"
        )
    moment = None if day is None else _parse_day(day)
    horizons = statement.horizons
    if moment is None and horizons:
        moment = max(one.start for one in horizons)
    found = []
    chosen: dict[str, Horizon] = {}
    for one in horizons:
        chosen[one.private] = one
    for one in chosen.values():
        assert moment is not None
        length = max(one.length, _DAY)
        read = _read_day(statement, one, moment // length * length, length)
        if len(read.starts):
            found.append(read)
    if not found:
        when = "" if day is None else f" on {day}"
        raise LedgerError(
            f"there is nothing to plot: no window{when} is in releases that are not archived"
        )
    return found


def _parse_day(day: str) -> int:
    try:
        moment = date.fromisoformat(day)
    except ValueError as error:
        raise LedgerError(f"'{day}' is not a date; write it as 2026-03-01") from error
    return (moment - date(1970, 1, 1)).days * _DAY


def _read_day(statement: Statement, horizon: Horizon, start: int, length: int) -> SubjectDay:
    """Put the charges and the unpaid windows of a day in order."""
    spans = [
        (one.first + one.offset, one.windows, one.slide, _PAID if one.amount else _FREE, one.amount)
        for one in statement.entries
        if one.private == horizon.private
    ]
    spans += [
        (one.first + one.offset, one.windows, one.slide, _UNPAID, 0)
        for one in statement.unpaid
        if one.private == horizon.private
    ]
    first, windows, slide, kind, amount = np.array(spans, np.int64).reshape(-1, 5).T
    place = np.arange(windows.sum()) - np.repeat(np.cumsum(windows) - windows, windows)
    starts = np.repeat(first, windows) + place * np.repeat(slide, windows)
    inside = (starts >= start) & (starts < start + length)
    order = np.flatnonzero(inside)[np.argsort(starts[inside], kind="stable")]
    slides, kinds, amounts = (np.repeat(one, windows)[order] for one in (slide, kind, amount))
    same = [
        one.limit
        for one in statement.horizons
        if (one.private, one.length) == (horizon.private, horizon.length)
        and start <= one.start < start + length
    ]
    limit = same[-1] if same else horizon.limit
    return SubjectDay(
        horizon.private,
        start,
        start + length,
        horizon.length,
        limit,
        starts[order],
        slides,
        kinds,
        amounts,
    )


def draw_day(statement: Statement, day: str | None = None) -> Figure:
    """Draw a day of a subject: for each private pattern what was spent, and how it was answered."""
    figure_type = load_figure()
    days = find_days(statement, day)[:_MOST_PANELS]
    figure: Figure = figure_type(figsize=(7.2, 0.3 + 3.3 * len(days)), layout="constrained")
    ratios = [2.4, 1.0] * len(days)
    axes = figure.subplots(2 * len(days), 1, height_ratios=ratios, squeeze=False)[:, 0]
    for number, one in enumerate(days):
        spent, windows = axes[2 * number : 2 * number + 2]
        windows.sharex(spent)
        _draw_spending(spent, one)
        _draw_windows(windows, one)
        _frame(spent, windows, one)
        title = f"{one.private}, subject {statement.subject}, {_format_date(one.start)}"
        spent.set_title(title, loc="left", fontsize=10, color=_INK, parse_math=False)
    return figure


def _draw_spending(axes: Axes, day: SubjectDay) -> None:
    times, spent = day.accumulate()
    hours, epsilons = times / _HOUR, spent / NANO
    style = _KINDS[_PAID]
    axes.step(hours, epsilons, where="post", color=style.colour, linewidth=1.8)
    axes.fill_between(hours, epsilons, step="post", color=style.colour, alpha=0.12, linewidth=0)
    top = float(epsilons.max(initial=0.0))
    if day.limit is not None:
        limit = day.limit / NANO
        top = max(top, limit)
        axes.axhline(limit, color=_INK, linewidth=1.0, linestyle=(0, (5, 2)))
        axes.annotate(
            f"limit: {limit:g}", (0.0, limit), xycoords=("axes fraction", "data"),
            xytext=(4, 4), textcoords="offset points", fontsize=8, color=_INK,
        )  # fmt: skip
    axes.set_ylim(0, 1.15 * top or 1.0)
    axes.set_ylabel("epsilon spent", color=_INK)
    axes.tick_params(labelbottom=False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)


def _draw_windows(axes: Axes, day: SubjectDay) -> None:
    """Draw a row of bars for each way in which windows were answered."""
    height = 0.62
    for row, style in enumerate(_KINDS):
        axes.broken_barh(
            [(start / _HOUR, length / _HOUR) for start, length in day.list_bars(row)],
            (len(_KINDS) - 1 - row - height / 2, height),
            facecolors=style.colour, linewidth=0,
        )  # fmt: skip
    labels = [
        f"{style.label} ({number:,})" for style, number in zip(_KINDS, day.counts, strict=True)
    ]
    axes.set_yticks(range(len(_KINDS)), labels[::-1], fontsize=8)
    axes.set_ylim(-0.6, len(_KINDS) - 0.4)
    axes.tick_params(axis="y", length=0)
    total = count(len(day.kinds), "window")
    axes.set_xlabel(f"start of a window, local time ({total})", color=_INK)


def _frame(spent: Axes, windows: Axes, day: SubjectDay) -> None:
    length = day.end - day.start
    step = next((one for one in _STEPS if length / one <= _MOST_TICKS), length)
    ticks = np.arange(day.start, day.end + 1, step)
    spent.set_xlim(day.start / _HOUR, day.end / _HOUR)
    windows.set_xticks(ticks / _HOUR, [_format_tick(tick, step) for tick in ticks.tolist()])
    for axes in (spent, windows):
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)


def _format_tick(moment: int, step: int) -> str:
    if step >= _DAY:
        return _format_date(moment)[5:]
    hours, minutes = divmod(moment % _DAY // MICROSECONDS["min"], 60)
    return f"{hours:02}:{minutes:02}"


def _format_date(moment: int) -> str:
    return str(np.datetime64(moment, "us").astype("datetime64[D]"))
