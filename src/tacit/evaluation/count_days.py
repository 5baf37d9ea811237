"""Counts over a day: our own channel, the paper's way, FAST, PeGaSus and RescueDP compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib.resources import files
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa

from tacit.engines.local import detect
from tacit.errors import SourceError
from tacit.evaluation.baselines.count_series import (
    AroundCourse,
    CountMethod,
    CountSetting,
    Floats,
    TunedMethod,
)
from tacit.evaluation.baselines.fast import Fast
from tacit.evaluation.baselines.pegasus import Pegasus
from tacit.evaluation.baselines.rescue_dp import RescueDp
from tacit.evaluation.count_release import PacedCounts, SummedResponses
from tacit.evaluation.trips import Trips
from tacit.pictures import INK, load_figure
from tacit.spec.yaml_reader import loads

EPSILONS: Final = (5.0, 10.0, 20.0, 50.0, 100.0, 200.0)
QUERIES: Final = ("free_taxi", "cruising", "centre_rank")
"""The queries of the generated city that look at something private."""
_DAY: Final = 144
"""Windows of 10 minutes."""
_CENTRE: Final = (116.34, 39.88, 116.44, 39.96)
_PAST: Final = 3
"""The days of T-Drive that are history."""
_FAST: Final = tuple(
    Fast(share=share, theta=theta, target=target)
    for share in (0.1, 0.25, 0.5, 1.0)
    for theta in (1.0, 5.0)
    for target in (0.1, 0.5)
)
_PEGASUS: Final = tuple(
    Pegasus(perturbing=share, tolerance=tolerance)
    for share in (0.5, 0.8, 0.95)
    for tolerance in (1.0, 5.0, 25.0)
)
_RESCUE_DP: Final = tuple(
    RescueDp(phi=phi, p_max=most, largest=largest, theta=theta, ahead=ahead)
    for phi in (0.02, 0.05, 0.2)
    for most in (0.1, 0.6)
    for largest, ahead in ((0.2, True), (1.0, False))
    for theta in (0.5, 2.0, 10.0)
)
METHODS: Final[tuple[CountMethod, ...]] = (
    SummedResponses(),
    *(
        TunedMethod((*given, *(AroundCourse(one) for one in given)))
        for given in (_FAST, _PEGASUS, _RESCUE_DP)
    ),
    PacedCounts(),
)
"""Published methods have the parameters that are best on history, and use the usual course of a
day where that is better."""
_STYLES: Final = {
    "summed responses": ("#8a8a8a", "o"),
    "FAST": ("#D55E00", "s"),
    "PeGaSus": ("#009E73", "^"),
    "RescueDP": ("#CC79A7", "D"),
    "own channel": ("#0072B2", "*"),
}


@dataclass(frozen=True, eq=False)
class CountSeries:
    """True counts of a query: past days, and days to release."""

    data: str
    subjects: int
    query: str
    days: Floats
    """`[day][window]`"""
    past: int
    """How many of the days are history."""

    def measure(
        self, method: CountMethod, epsilon: float, repeats: int, seed: int
    ) -> dict[str, float]:
        """Return the mean errors of a method over several releases."""
        setting = CountSetting(self.days[: self.past], self.subjects)
        true = self.days[self.past :].ravel()
        random = np.random.default_rng(seed)
        if isinstance(method, TunedMethod | PacedCounts):
            method = method.choose(setting, epsilon)
        released = [method.release(true, setting, epsilon, random).counts for _ in range(repeats)]
        found = [np.clip(one, 0, self.subjects) - true for one in released]
        errors = np.abs(np.stack(found))
        return {
            "mae": float(errors.mean()),
            "rmse": float(np.sqrt((errors**2).mean())),
            "mre": float((errors / np.maximum(true, 1.0)).mean()),
        }


def generate_series(taxis: int, past: int, days: int, seed: int) -> list[CountSeries]:
    """Count the queries of generated taxis, window by window."""
    spec = loads(files("tacit.evaluation").joinpath("taxi.yaml").read_text("utf-8"))
    asked = tuple(query for query in spec.queries if query.name in QUERIES)
    registry = tuple(str(taxi) for taxi in range(taxis))
    spec = spec.model_copy(update={"subjects": registry, "private": (), "queries": asked})
    trips = Trips(taxis=taxis, days=past + days, seed=seed)
    counted: list[pl.DataFrame] = []

    def count(table: pa.Table) -> None:
        frame = pl.DataFrame(table.select(["window_start", "query", "detected"]))
        frame = frame.filter(pl.col("detected")).with_columns(pl.col("query").cast(pl.String))
        counted.append(frame.group_by("window_start", "query").len())

    frames = (pl.DataFrame(batch) for batch in trips.batches())
    detect(spec, frames, to=count)
    whole = pl.concat(counted)
    return [
        CountSeries(
            "generated",
            taxis,
            query,
            _fill(whole.filter(pl.col("query") == query), trips.start, past + days),
            past,
        )
        for query in QUERIES
    ]


def read_tdrive(path: Any) -> CountSeries:
    """Count the taxis of T-Drive in the centre, on its whole days."""
    west, south, east, north = _CENTRE
    frame = pl.read_parquet(path).with_columns(pl.col("ts").dt.replace_time_zone(None))
    inside = frame.filter(
        pl.col("lon").is_between(west, east) & pl.col("lat").is_between(south, north)
    )
    counted = (
        inside.group_by(pl.col("ts").dt.truncate("10m").alias("window_start"))
        .agg(pl.col("taxi_id").n_unique().alias("len"))
        .sort("window_start")
    )
    if not len(counted):
        raise SourceError(f"{path} has no report in the city's centre")
    first: datetime = counted["window_start"][0]
    last: datetime = counted["window_start"][-1]
    start = first.replace(hour=0, minute=0) + timedelta(days=1)
    days = (last - start).days
    if days <= _PAST:
        raise SourceError(f"{path} has {days} whole days; more than {_PAST} are needed")
    subjects = frame["taxi_id"].n_unique()
    return CountSeries("T-Drive", subjects, "in the centre", _fill(counted, start, days), _PAST)


def _fill(counted: pl.DataFrame, start: Any, days: int) -> Floats:
    """Return `[day][window]`, with 0 where nothing was counted."""
    times = counted["window_start"].dt.replace_time_zone(None).cast(pl.Datetime("us"))
    begin = pl.Series([start.replace(tzinfo=None)], dtype=pl.Datetime("us")).cast(pl.Int64).item()
    places = (times.cast(pl.Int64).to_numpy() - begin) // 600_000_000
    numbers = counted["len"].to_numpy().astype(np.float64)
    inside = (places >= 0) & (places < days * _DAY)
    filled: Floats = np.bincount(places[inside], numbers[inside], days * _DAY).astype(np.float64)
    return filled.reshape(days, _DAY)


def compare_counts(
    series: Sequence[CountSeries],
    epsilons: Sequence[float] = EPSILONS,
    repeats: int = 20,
    seed: int = 0,
) -> pl.DataFrame:
    """Measure all methods: a row for each data set, size, epsilon and method, over its queries."""
    rows = []
    for one in series:
        for epsilon in epsilons:
            for method in METHODS:
                about = {"data": one.data, "subjects": one.subjects, "epsilon_per_day": epsilon}
                errors = one.measure(method, epsilon, repeats, seed)
                rows.append(about | {"method": method.name, "query": one.query} | errors)
    keys = ["data", "subjects", "epsilon_per_day", "method"]
    return (
        pl.DataFrame(rows)
        .group_by(keys, maintain_order=True)
        .agg(pl.col("mae", "rmse", "mre").mean().round(4))
    )


def draw_counts(frame: pl.DataFrame) -> Any:
    """Draw the mean absolute error against epsilon per day, a panel for each data set and size."""
    panels = frame.select("data", "subjects").unique(maintain_order=True).rows()
    figure = load_figure()(figsize=(3.4 * len(panels), 3.6), layout="constrained")
    for number, (data, subjects) in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), number + 1)
        own = frame.filter((pl.col("data") == data) & (pl.col("subjects") == subjects))
        for method, (colour, marker) in _STYLES.items():
            part = own.filter(pl.col("method") == method)
            axes.plot(
                part["epsilon_per_day"], part["mae"], color=colour, marker=marker, label=method,
                markersize=5, linewidth=2.2 if method == "own channel" else 1.3,
            )  # fmt: skip
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_title(f"{data}: {subjects:,} subjects", loc="left", fontsize=10, color=INK)
        axes.set_xlabel("epsilon per day", color=INK)
        axes.grid(color="#e2e2e2", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        if number == 0:
            axes.set_ylabel("mean absolute error of a count", color=INK)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=9, frameon=False)
    return figure
