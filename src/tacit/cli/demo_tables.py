"""The tables of `tacit demo`: protected answers next to the truth."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
from rich.table import Table

from tacit.planning.plan import Expected
from tacit.privacy.quality import Confusion
from tacit.spec.specification import Specification

_SHOWN: Final = 8
"""Windows of a morning that are shown."""
_BAR: Final = 40
"""The width of error bars, in characters."""
_MORNING: Final = 8
"""The hour at which a morning begins."""


def join_truth(out: Path) -> pl.DataFrame:
    """Read the protected answers and join the true ones."""
    keys = ["window_start", "subject", "query"]
    texts = pl.col("subject", "query").cast(pl.String)
    truth = pl.read_parquet(out / "truth.parquet").with_columns(texts)
    answers = pl.read_parquet(out / "answers.parquet").with_columns(texts)
    return answers.join(
        truth.select(*keys, pl.col("detected").alias("truth")), on=keys, maintain_order="left"
    )


def compare_answers(both: pl.DataFrame, spec: Specification, expected: Expected) -> Table:
    """Show for each query how often the protected answer is true, and its quality."""
    yes, true = pl.col("detected"), pl.col("truth")
    counted = both.group_by("query").agg(
        (yes == true).mean().alias("agree"),
        (yes & true).sum().alias("tp"),
        (yes & ~true).sum().alias("fp"),
        (~yes & true).sum().alias("fn"),
    )
    found = {row["query"]: row for row in counted.iter_rows(named=True)}
    table = Table("query", "asks", box=None, padding=(0, 1))
    for name in ("truly yes", "answered yes", "agree", "Q", "Q expected"):
        table.add_column(name, justify="right")
    for query, row in zip(spec.subject_queries, expected.rows(), strict=True):
        own = found[query.name]
        confusion = Confusion(float(own["tp"]), float(own["fp"]), float(own["fn"]))
        exact = own["fp"] == own["fn"] == 0 and row["mre"] == 0
        table.add_row(
            query.name,
            query.asks,
            f"{own['tp'] + own['fn']:,}",
            f"{own['tp'] + own['fp']:,}",
            f"{own['agree']:.1%}",
            "exact" if exact else f"{confusion.quality(query.alpha):.3f}",
            "exact" if exact else f"{row['quality']:.3f}",
        )
    return table


def show_morning(both: pl.DataFrame, spec: Specification) -> Table:
    """Show one taxi's morning, for queries with noise.

    The taxi is chosen by its true answers only, so its protected answers are typical.
    """
    noisy = both.filter(pl.col("confidence") < 1)["query"].unique()
    names = [query.name for query in spec.subject_queries if query.name in noisy][-4:]
    start, query, truth = pl.col("window_start"), pl.col("query"), pl.col("truth")
    asked = both.filter(query.is_in(names))
    windows = asked.select(start.unique().sort()).filter(start.dt.hour() >= _MORNING).head(_SHOWN)
    morning = asked.join(windows, on="window_start")
    varied = morning.group_by("subject", "query").agg(truth.n_unique(), truth.sum().alias("yes"))
    best = varied.group_by("subject").agg(truth.sum(), pl.col("yes").sum())
    order = best.sort("truth", "yes", "subject", descending=[True, True, False])
    subject = order.item(0, "subject")
    cells = {
        (row["window_start"], row["query"]): row
        for row in morning.filter(pl.col("subject") == subject).iter_rows(named=True)
    }
    table = Table(f"taxi {subject}", box=None, padding=(0, 2))
    for name in names:
        table.add_column(f"{name}\ntruth answer sure")
    for moment in windows["window_start"]:
        table.add_row(f"{moment:%H:%M}", *(_format_cell(cells[moment, name]) for name in names))
    return table


def _format_cell(row: dict[str, object]) -> str:
    """Format truth, answer and confidence; wrong answers are marked."""
    word = {True: "yes", False: "no"}
    truth, answer = word[bool(row["truth"])], word[bool(row["detected"])]
    shown = f"[green]{answer:<6}[/]" if truth == answer else f"[bold red]{answer + ' !':<6}[/]"
    return f"{truth:<5} {shown} {float(str(row['confidence'])):.0%}"


def join_counts(true: pl.DataFrame, counted: pl.DataFrame) -> pl.DataFrame:
    """Join true counts to released ones; where there is no estimate, what was drawn stands in."""
    drawn = {"estimate": "count", "estimate_low": "low", "estimate_high": "high"}
    return counted.with_columns(
        pl.coalesce(name, other).cast(pl.Float64).alias(name) for name, other in drawn.items()
    ).join(true.select("window_start", pl.col("count").alias("truth")), on="window_start")


def measure_counts(both: pl.DataFrame) -> tuple[float, float]:
    """Return the mean error of estimates, and the share of intervals that hold the truth."""
    values, low, high, truth = (
        both[name].to_numpy() for name in ("estimate", "estimate_low", "estimate_high", "truth")
    )
    return float(np.abs(values - truth).mean()), float(((low <= truth) & (truth <= high)).mean())


def show_counts(both: pl.DataFrame) -> Table:
    """Show counts of a day, every third hour: the estimate with its error bar, and the truth."""
    time = pl.col("window_start").dt
    both = both.filter(time.hour() % 3 == 0, time.minute() == 0)
    names = ("estimate_low", "estimate_high", "estimate", "truth")
    values = both.select(names).to_numpy()
    low = float(values.min(initial=0 if not values.size else np.inf))
    scale = (_BAR - 1) / max(1.0, float(values.max(initial=low)) - low)
    table = Table("window", box=None, padding=(0, 1))
    for name in ("truth", "drawn", "estimate", "from", "to"):
        table.add_column(name, justify="right")
    table.add_column("")
    for row in both.iter_rows(named=True):
        begin, end, estimate, truth = (round((row[name] - low) * scale) for name in names)
        bar = [" "] * _BAR
        bar[begin : end + 1] = "-" * (end + 1 - begin)
        bar[estimate], bar[truth] = "o", "x"
        table.add_row(
            f"{row['window_start']:%H:%M}",
            f"{row['truth']}",
            "" if row["count"] is None else f"{row['count']}",
            *(f"{row[name]:.0f}" for name in ("estimate", "estimate_low", "estimate_high")),
            "".join(bar),
        )
    return table
