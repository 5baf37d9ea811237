"""Estimate how many subjects truly have a pattern, from protected answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, get_args

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from tacit.answers.count_model import CountModel
from tacit.answers.count_sums import Per, WeighedPlan
from tacit.errors import OptionError
from tacit.options import option
from tacit.pictures import INK, load_figure, make_picture
from tacit.privacy.mechanisms.mechanism import Mechanism
from tacit.quantities import count
from tacit.spec.specification import Specification

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Method = Literal["auto", "unbiased", "model"]

LEVEL: Final = 0.95
_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8a8a8a")
_MOST_GROUPS: Final = len(_COLOURS)


class AnyPlan(Protocol):
    """What an estimate needs of a plan."""

    @property
    def spec(self) -> Specification:
        """The specification that the plan was made for."""

    @property
    def mechanisms(self) -> Sequence[Mechanism]:
        """The mechanism of each policy."""


@dataclass(frozen=True, eq=False, repr=False)
class CountEstimates:
    """Estimated counts with intervals, as a frame: a row per window or hour, query and group.

    The columns: `window_start` and `window_end` of the period, `query`, `group` (if grouped),
    `windows` and `answers` in it, `estimate`, `low` and `high`, and `method`: `exact` if all
    answers are certain, `unbiased` if the channels identify the count, otherwise `model`.
    """

    frame: pl.DataFrame
    per: Per
    level: float

    def polars(self) -> pl.DataFrame:
        """Return the estimates as a Polars frame."""
        return self.frame

    def arrow(self) -> pa.Table:
        """Return the estimates as an Arrow table."""
        return self.frame.to_arrow()

    def pandas(self) -> pd.DataFrame:
        """Return the estimates as a pandas frame."""
        return self.frame.to_pandas()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.frame.__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        return len(self.frame)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        times = pl.col("window_start", "window_end").dt.strftime("%Y-%m-%dT%H:%M:%SZ")
        rows = self.frame.with_columns(times, pl.col("estimate", "low", "high").round(3))
        return {"per": self.per, "level": self.level, "counts": rows.to_dicts()}

    def __repr__(self) -> str:
        methods = dict(self.frame["method"].value_counts(sort=True).iter_rows())
        found = ", ".join(f"{number:,} {method}" for method, number in methods.items())
        return f"<{count(len(self), 'estimated count')} per {self.per}: {found or 'none'}>"

    def plot(self, path: str | PathLike[str] | None = None) -> Figure:
        """Draw the estimates of each query over time, with error bars.

        With a path, write the figure to this file too: .svg, .png or .pdf.
        """
        return make_picture(lambda: _draw(self), path)


def estimate(
    tables: Iterable[pa.Table],
    plan: AnyPlan,
    *,
    model: CountModel | None = None,
    groups: Mapping[str, str] | None = None,
    per: Per = "window",
    method: Method = "auto",
    level: float = LEVEL,
) -> CountEstimates:
    """Estimate the true counts behind answers, given as tables of rows.

    `model` has what was measured on history. Without it, an answer that does not identify the
    truth may be wrong in either way, so its interval is as wide as it can be.
    """
    check_options(per, method, level)
    if model is not None:
        model.check(per, grouped=groups is not None)
    elif method == "model":
        raise OptionError(f"{option('method')} model needs {option('history')}")
    weighed = WeighedPlan.build(plan.spec, plan.mechanisms)
    sums = weighed.sum(tables, groups, per)
    return CountEstimates(
        _finish(sums, weighed.queries, model, method, level, grouped=groups is not None),
        per,
        level,
    )


def check_options(per: str, method: str = "auto", level: float = LEVEL) -> None:
    """Raise OptionError for values that are not known."""
    if per not in get_args(Per):
        raise OptionError(f"{option('per')}: expected window or hour; got {per}")
    if method not in get_args(Method):
        raise OptionError(f"{option('method')}: expected auto, unbiased or model; got {method}")
    if not 0 < level < 1:
        raise OptionError(f"{option('level')}: expected a number between 0 and 1; got {level:g}")


def _finish(
    sums: pl.DataFrame,
    queries: Sequence[str],
    model: CountModel | None,
    method: Method,
    level: float,
    *,
    grouped: bool,
) -> pl.DataFrame:
    """Turn sums into estimates with intervals."""
    opened, certain = sums["open"].to_numpy(), sums["certain"].to_numpy()
    unknown, unknown_likely = sums["unknown"].to_numpy(), sums["unknown_likely"].to_numpy()
    found = sums["weighted"].to_numpy().copy()
    reach = NormalDist().inv_cdf((1 + level) / 2)
    reach = reach * np.sqrt(np.maximum(0.0, sums["variance"].to_numpy()))
    low, high = found - reach - unknown_likely, found + reach + unknown - unknown_likely
    used = (opened > 0) & (unknown > 0) if method != "unbiased" else np.zeros(len(found), np.bool_)
    modelled = (opened > 0) & (unknown > 0)
    if method == "model":
        used = modelled = opened > 0
    if model is not None:
        _predict(sums, model, used, level, (found, low, high))
    low, high = np.clip(low, 0, opened), np.clip(high, 0, opened)
    kinds = np.where(opened == 0, "exact", np.where(modelled, "model", "unbiased"))
    instant = pl.Datetime("us", "UTC")
    frame = sums.select(
        pl.col("start").cast(instant).alias("window_start"),
        pl.col("end").cast(instant).alias("window_end"),
        pl.Series("query", np.array(queries, dtype=object)[sums["query"].to_numpy()], pl.String),
        "group",
        "windows",
        pl.col("answers").cast(pl.Int64),
        pl.Series("estimate", certain + found),
        pl.Series("low", certain + low),
        pl.Series("high", certain + high),
        pl.Series("method", kinds, pl.String),
    )
    return frame if grouped else frame.drop("group")


def _predict(
    sums: pl.DataFrame,
    model: CountModel,
    used: NDArray[np.bool_],
    level: float,
    into: tuple[NDArray[np.float64], ...],
) -> None:
    """Replace estimates and intervals by those of the model where it is used."""
    numbers = sums["query"].to_numpy()
    for query, own in enumerate(model.queries):
        rows = np.flatnonzero(used & (numbers == query))
        if own is None or not len(rows):
            continue
        predicted, error = own.predict(sums[rows])
        predicted = np.clip(predicted, 0, sums["open"].to_numpy()[rows])
        reach = own.quantile(level) * error
        for column, values in zip(
            into, (predicted, predicted - reach, predicted + reach), strict=True
        ):
            column[rows] = values


def _draw(estimates: CountEstimates) -> Figure:
    """Draw a panel for each query."""
    frame = estimates.frame
    names = frame["query"].unique(maintain_order=True).to_list()
    grouped = "group" in frame.columns
    figure = load_figure()(figsize=(9, 1 + 2.2 * max(1, len(names))), layout="constrained")
    for number, name in enumerate(names):
        axes = figure.add_subplot(len(names), 1, number + 1)
        own = frame.filter(pl.col("query") == name)
        groups = own["group"].unique(maintain_order=True).to_list() if grouped else [None]
        for colour, group in zip(_COLOURS, groups, strict=False):
            part = own if group is None else own.filter(pl.col("group") == group)
            times, middle = part["window_start"].to_numpy(), part["estimate"].to_numpy()
            below, above = middle - part["low"].to_numpy(), part["high"].to_numpy() - middle
            axes.errorbar(
                times, middle, yerr=np.maximum(0, [below, above]), fmt="o", markersize=2.5,
                linewidth=0.9, color=colour, ecolor=colour, elinewidth=0.6,
                label=None if group is None else group or "no group",
            )  # fmt: skip
        axes.set_title(_title(name, own["method"].to_list(), groups), loc="left", fontsize=10,
                       color=INK)  # fmt: skip
        axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
        axes.grid(axis="y", color="#e2e2e2", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
        if grouped and number == 0:
            axes.legend(fontsize=8, frameon=False, ncols=4)
    figure.suptitle(
        f"Estimated counts per {estimates.per}, with {100 * estimates.level:g} % intervals",
        x=0.01, ha="left", fontsize=11, color=INK,
    )  # fmt: skip
    return figure


def _title(name: str, methods: list[str], groups: list[Any]) -> str:
    kinds = " and ".join(sorted(set(methods)))
    more = len(groups) - _MOST_GROUPS
    return f"{name} ({kinds})" + (f"; {more} more groups are not drawn" if more > 0 else "")
