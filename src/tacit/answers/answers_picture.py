"""The picture of answers: yes and no over time, a panel for each query.

Answers about few subjects are drawn one by one, with their confidence. Answers about many are drawn
as the share of subjects with a yes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tacit.errors import OptionError
from tacit.pictures import INK, frame_axes, load_figure
from tacit.quantities import count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tacit.answers.collection import CollectedAnswers

_MOST_PANELS: Final = 8
"""The largest number of queries in a picture: the first ones."""
_FEW: Final = 24
"""Up to so many subjects, answers are drawn one by one."""
_LINE: Final = "#0072B2"


def draw_answers(answers: CollectedAnswers) -> Figure:
    """Draw a panel for each query."""
    from matplotlib.dates import ConciseDateFormatter

    if not len(answers):
        raise OptionError("there is nothing to plot: there are no answers")
    rows = _read(answers)
    queries = list(answers.queries)[:_MOST_PANELS]
    few = rows["subject"].n_unique() <= _FEW
    height = max(0.6 + 0.1 * rows["subject"].n_unique(), 1.0) if few else 1.4
    figure = load_figure()(figsize=(7.2, 1.2 + len(queries) * height), layout="constrained")
    panels = figure.subplots(len(queries), 1, sharex=True, squeeze=False)[:, 0]
    for axes, query in zip(panels, queries, strict=True):
        own = rows.filter(pl.col("query") == query)
        (_draw_each if few else _draw_shares)(axes, own)
        axes.set_title(_describe(query, own), loc="left", fontsize=9, color=INK, parse_math=False)
    panels[-1].set_xlabel("start of the window, UTC", color=INK)
    dates = panels[-1].xaxis
    style = ConciseDateFormatter(dates.get_major_locator())  # type: ignore[no-untyped-call]
    dates.set_major_formatter(style)
    if few:
        bar = figure.colorbar(
            panels[0].collections[0], ax=list(panels), ticks=[0, 0.5, 1], orientation="horizontal",
            fraction=0.12 / height, aspect=50, shrink=0.5, pad=0.03,
        )  # fmt: skip
        bar.ax.set_xticklabels(["surely no", "unknown", "surely yes"], fontsize=8)
        bar.outline.set_visible(False)
    kind = answers.kind
    figure.suptitle(
        f"{kind[0].upper()}{kind[1:]} answers", x=0.01, ha="left", fontsize=11, color=INK
    )
    return figure


def _read(answers: CollectedAnswers) -> pl.DataFrame:
    """Return the answers with `chance`: how likely a yes is, by the answer and its confidence."""
    frame = answers.polars()
    sure = pl.col("confidence") if "confidence" in frame.columns else pl.lit(1.0)
    chance = pl.when("detected").then(sure).otherwise(1 - sure)
    return frame.select(
        pl.col("window_start").dt.replace_time_zone(None),
        pl.col("window_end").dt.replace_time_zone(None),
        pl.col("subject").cast(pl.String),
        pl.col("query").cast(pl.String),
        "detected",
        chance.cast(pl.Float64).alias("chance"),
        sure.cast(pl.Float64).alias("confidence"),
    )


def _describe(query: str, own: pl.DataFrame) -> str:
    yes = int(own["detected"].sum())
    text = f"{query}: {count(yes, 'yes', 'yes')} of {count(own.height, 'answer')}"
    sure = float(own["confidence"].mean() or 0.0)  # type: ignore[arg-type]
    return text if sure == 1 else f"{text}, {sure:.0%} sure on average"


def _draw_each(axes: Axes, own: pl.DataFrame) -> None:
    """Draw a row for each subject and a column for each window."""
    order = sorted(own["subject"].unique(), key=lambda name: (len(name), name))
    rows = own["subject"].replace_strict(order, range(len(order))).to_numpy()
    starts, columns = np.unique(own["window_start"].to_numpy(), return_inverse=True)
    values = np.full((len(order), len(starts)), np.nan)
    values[rows, columns] = own["chance"].to_numpy()
    ends = own["window_end"].to_numpy().max()
    last = starts[-1] + np.diff(starts).min() if len(starts) > 1 else ends
    edges = np.append(starts, last)
    axes.pcolormesh(edges, np.arange(len(order) + 1), values, cmap="Blues", vmin=-0.05, vmax=1)
    axes.set_ylim(len(order), 0)
    step = -(-len(order) // 20)
    axes.set_yticks(np.arange(len(order))[::step] + 0.5, order[::step], fontsize=7)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_shares(axes: Axes, own: pl.DataFrame) -> None:
    """Draw the share of subjects with a yes in each window."""
    shares = own.group_by("window_start").agg(pl.col("detected").mean()).sort("window_start")
    starts, values = shares["window_start"].to_numpy(), shares["detected"].to_numpy()
    axes.step(starts, values, where="post", color=_LINE, linewidth=1.4)
    axes.fill_between(starts, values, step="post", color=_LINE, alpha=0.12, linewidth=0)
    axes.set_ylim(0, max(1.15 * float(values.max()), 0.01))
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    axes.set_ylabel("subjects with yes", color=INK, fontsize=8)
    frame_axes(axes)
