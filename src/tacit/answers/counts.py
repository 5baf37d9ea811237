"""Counts as rows: one for each window, count query and group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tacit.answers.rows import build_query_columns
from tacit.privacy.mechanisms.counts import METHODS, CountDraws

_TIME = pa.timestamp("us", tz="UTC")


def count_schema(*, private: bool = True) -> pa.Schema:
    """Return the schema of counts; if their noise came from a seed, `private` is false in all."""
    fields = [
        ("window_start", _TIME),
        ("window_end", _TIME),
        ("consumer", pa.dictionary(pa.int32(), pa.string())),
        ("query", pa.dictionary(pa.int32(), pa.string())),
        ("group", pa.string()),
        ("count", pa.int64()),
        ("low", pa.int64()),
        ("high", pa.int64()),
        ("confidence", pa.float32()),
        ("subjects", pa.int64()),
        ("left_out", pa.int64()),
        ("estimate", pa.float64()),
        ("estimate_low", pa.float64()),
        ("estimate_high", pa.float64()),
        ("method", pa.dictionary(pa.int32(), pa.string())),
    ]
    return pa.schema(fields if private else [*fields, ("private", pa.bool_())])


@dataclass(frozen=True, slots=True)
class CountAnswers:
    """The counts of consecutive windows, with a row for each count query and group."""

    queries: Sequence[str]
    """The query of each row."""
    consumers: Sequence[str]
    """The consumer of each row."""
    groups: Sequence[str | None]
    """The group of each row; None if all subjects are counted together."""
    start: int
    """The start of the first window, in microseconds."""
    step: int
    size: int
    draws: CountDraws
    private: bool = True
    """Whether protected counts are private: not if their noise came from a seed."""

    def __len__(self) -> int:
        return int(self.draws.count.size)

    def table(self) -> pa.Table:
        """Return an Arrow table, sorted by window, query and group."""
        windows, rows = self.draws.count.shape
        starts = np.repeat(self.start + self.step * np.arange(windows), rows)
        names = list(dict.fromkeys(self.queries))
        consumers = dict(zip(self.queries, self.consumers, strict=True))
        numbers = np.array([names.index(name) for name in self.queries], np.int32)
        consumer, query = build_query_columns(
            names, [consumers[name] for name in names], np.tile(numbers, windows)
        )
        drawn = self.draws
        absent = _flatten(~drawn.counted)
        columns = [
            pa.array(starts).cast(_TIME),
            pa.array(starts + self.size).cast(_TIME),
            consumer,
            query,
            pa.array(list(self.groups) * windows, pa.string()),
            pa.array(_flatten(drawn.count), mask=absent),
            *(pa.array(_flatten(part), from_pandas=True) for part in drawn.columns[1:-1]),
            pa.DictionaryArray.from_arrays(
                pa.array(_flatten(drawn.method).astype(np.int32)), pa.array(METHODS)
            ),
        ]
        if not self.private:
            columns.append(pa.array(np.zeros(len(starts), np.bool_)))
        return pa.Table.from_arrays(columns, schema=count_schema(private=self.private))


def _flatten(values: NDArray[np.generic]) -> NDArray[np.generic]:
    return np.ascontiguousarray(values).reshape(-1)
