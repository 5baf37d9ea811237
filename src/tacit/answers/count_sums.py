"""Sum protected answers by window or hour, query and group: all that an estimate is made from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from tacit.errors import SchemaError
from tacit.privacy.answer_tables import AnswerWeights, number_levels, weigh_answers
from tacit.privacy.mechanisms.mechanism import Mechanism
from tacit.privacy.policies import Policies
from tacit.spec.specification import Specification

Per = Literal["window", "hour"]

_HOUR: Final = 3_600_000_000
_NEEDED: Final = ("window_start", "window_end", "subject", "query", "detected")
OPTIONAL: Final = ("confidence", "exhausted")
COLUMNS: Final = (*_NEEDED, *OPTIONAL)
"""The columns of answers that are used."""
KEYS: Final = ("start", "query", "group")
SUMS: Final = (
    "answers",
    "certain",
    "open",
    "likely",
    "yes",
    "spread",
    "weighted",
    "variance",
    "unknown",
    "unknown_likely",
)
"""The sums of a cell: a window or hour, a query, and a group.

`answers` is their number. `certain` counts each yes with confidence 1. All others are about the
open answers, with a confidence below 1: their number, the sum of the probabilities that the query
is true, the number of yes, the sum of the variances of these probabilities, the sum of the weights
(the probability where there is no weight) and of their variances, and the number and the
probabilities of those that have no weight.
"""


@dataclass(frozen=True)
class WeighedPlan:
    """The weights of all answers that a plan's mechanisms can give, by policy and query."""

    spec: Specification
    queries: tuple[str, ...]
    policies: Mapping[str, int]
    """The number of the policy of each subject that is named; all others have policy 0."""
    weights: Sequence[Sequence[AnswerWeights]]
    """`[policy][query]`"""

    @classmethod
    def build(cls, spec: Specification, mechanisms: Sequence[Mechanism]) -> WeighedPlan:
        """Find the weights of a plan's mechanisms."""
        queries = tuple(spec.query_patterns)
        panes = spec.windows.panes
        return cls(
            spec,
            queries,
            Policies(spec).named,
            [
                [weigh_answers(one.answer_tables(query, panes)) for query in range(len(queries))]
                for one in mechanisms
            ],
        )

    def sum(
        self, tables: Iterable[pa.Table], groups: Mapping[str, str] | None, per: Per
    ) -> pl.DataFrame:
        """Sum the answers of tables with the columns of answers; see `SUMS`.

        A subject without a group belongs to the group with an empty name.
        """
        return add_windows(self.sum_windows(tables, groups), per)

    def sum_windows(
        self, tables: Iterable[pa.Table], groups: Mapping[str, str] | None
    ) -> pl.DataFrame:
        """Sum the answers of each table by window, query and group."""
        parts = [self._sum_table(table, groups) for table in tables if table.num_rows]
        return pl.concat(parts) if parts else self._sum_table(_empty(), groups)

    def _sum_table(self, table: pa.Table, groups: Mapping[str, str] | None) -> pl.DataFrame:
        """Sum the answers of a table by window, query and group."""
        frame = _read(table)
        names = frame["query"].cast(pl.String)
        known = pl.DataFrame(
            {"query": self.queries, "number": range(len(self.queries))},
            schema={"query": pl.String, "number": pl.Int64},
        )
        numbers = names.to_frame().join(known, on="query", how="left", maintain_order="left")
        if numbers["number"].null_count():
            raise SchemaError(
                "these are answers to other queries than those of the plan; give the plan that the"
                " run used"
            )
        queries = numbers["number"].to_numpy()
        policies, group = self._look_up(frame["subject"], groups)
        rows = self._weigh(frame, queries, policies)
        answers = pl.DataFrame(
            {
                "window": frame["window_start"].cast(pl.Int64),
                "query": queries,
                "group": group,
                "end": frame["window_end"].cast(pl.Int64),
                **rows,
            }
        )
        return answers.group_by("window", "query", "group").agg(
            pl.col("end").max(), pl.col(SUMS).sum()
        )

    def _look_up(
        self, subjects: pl.Series, groups: Mapping[str, str] | None
    ) -> tuple[NDArray[np.int64], pl.Series]:
        """Return the number of the policy and the group of each row."""
        named = groups or {}
        if not self.policies and not named:
            return np.zeros(len(subjects), np.int64), pl.repeat("", len(subjects), eager=True)
        subjects = subjects.cast(pl.String)
        distinct = subjects.unique().to_list()
        known = pl.DataFrame(
            {
                "subject": distinct,
                "policy": [self.policies.get(name, 0) for name in distinct],
                "group": [named.get(name, "") for name in distinct],
            },
            schema={"subject": pl.String, "policy": pl.Int64, "group": pl.String},
        )
        found = subjects.to_frame("subject").join(
            known, on="subject", how="left", maintain_order="left"
        )
        return found["policy"].to_numpy(), found["group"]

    def _weigh(
        self, frame: pl.DataFrame, queries: NDArray[np.int64], policies: NDArray[np.int64]
    ) -> dict[str, NDArray[np.float64]]:
        """Return the terms of all sums, row by row."""
        detected = frame["detected"].to_numpy()
        confidence = frame["confidence"].to_numpy()
        open_ = confidence < 1
        likely = np.where(detected, confidence, 1 - confidence).astype(np.float64)
        levels = number_levels(detected, confidence)
        weights, variances = likely.copy(), np.zeros(len(likely))
        unknown = open_.copy()
        paid = open_ & ~frame["exhausted"].to_numpy()
        for policy, own in enumerate(self.weights):
            for query, weighed in enumerate(own):
                if not len(weighed.levels):
                    continue
                rows = np.flatnonzero(paid & (queries == query) & (policies == policy))
                place = np.searchsorted(weighed.levels, levels[rows])
                place = np.minimum(place, len(weighed.levels) - 1)
                same = weighed.levels[place] == levels[rows]
                rows, place = rows[same], place[same]
                weights[rows] = weighed.weights[place]
                variances[rows] = weighed.variances[place]
                unknown[rows] = False
        terms = {
            "answers": np.ones(len(likely)),
            "certain": detected & ~open_,
            "open": open_,
            "likely": likely * open_,
            "yes": detected & open_,
            "spread": likely * (1 - likely),
            "weighted": weights * open_,
            "variance": variances,
            "unknown": unknown,
            "unknown_likely": likely * unknown,
        }
        return {name: np.asarray(term, np.float64) for name, term in terms.items()}


def add_windows(cells: pl.DataFrame, per: Per) -> pl.DataFrame:
    """Add the sums of windows up to periods."""
    start = pl.col("window") // _HOUR * _HOUR if per == "hour" else pl.col("window")
    return (
        cells.group_by(start.alias("start"), "query", "group")
        .agg(
            pl.col("end").max(),
            pl.col("window").n_unique().cast(pl.Int64).alias("windows"),
            pl.col(SUMS).sum(),
        )
        .sort(KEYS)
    )


def check_columns(names: Sequence[str]) -> None:
    """Raise SchemaError if a column is missing that all answers have."""
    for name in _NEEDED:
        if name not in names:
            raise SchemaError(
                f"answers need a column '{name}'; tacit run and tacit detect write such answers"
            )


def _read(table: pa.Table) -> pl.DataFrame:
    """Return the columns that are needed; true answers are certain."""
    check_columns(table.column_names)
    frame = pl.DataFrame(table.select([name for name in table.column_names if name in COLUMNS]))
    if "confidence" not in frame.columns:
        frame = frame.with_columns(confidence=pl.lit(1.0))
    if "exhausted" not in frame.columns:
        frame = frame.with_columns(exhausted=pl.lit(value=False))
    try:
        return frame.with_columns(
            _read_time(frame, "window_start"),
            _read_time(frame, "window_end"),
            _read_flag(frame, "detected"),
            pl.col("confidence").cast(pl.Float32),
            _read_flag(frame, "exhausted").fill_null(value=False),
        )
    except pl.exceptions.PolarsError as error:
        raise SchemaError(
            "these rows are not answers: a time, an answer or a confidence has another form"
        ) from error


def _read_time(frame: pl.DataFrame, name: str) -> pl.Expr:
    """Read a column of times, which is text in some formats."""
    if frame.schema[name] == pl.String:
        return pl.col(name).str.to_datetime(time_unit="us", time_zone="UTC")
    return pl.col(name).cast(pl.Datetime("us", "UTC"))


def _read_flag(frame: pl.DataFrame, name: str) -> pl.Expr:
    """Read a column of truth values, which is text in some formats."""
    if frame.schema[name] == pl.String:
        values = {"true": True, "false": False}
        return pl.col(name).str.to_lowercase().replace_strict(values, return_dtype=pl.Boolean)
    return pl.col(name).cast(pl.Boolean)


def _empty() -> pa.Table:
    instant = pa.timestamp("us", "UTC")
    kinds = dict.fromkeys(_NEEDED[:2], instant) | dict.fromkeys(_NEEDED[2:4], pa.string())
    return pa.schema(kinds | {"detected": pa.bool_()}).empty_table()
