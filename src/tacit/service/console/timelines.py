"""Released answers as grids for the console: who was answered what, window by window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

WINDOWS = 48
"""How many windows are shown."""


@dataclass(frozen=True, slots=True)
class AnswerGrid:
    """Answers in rows of subjects or queries, and columns of windows."""

    rows: list[str]
    starts: list[datetime]
    ends: list[datetime]
    detected: NDArray[np.bool_]
    """`[row][window]`."""
    confidence: NDArray[np.float32]
    exhausted: NDArray[np.bool_]
    there: NDArray[np.bool_]
    """Whether there is an answer."""
    value: NDArray[np.object_]
    """The answers of queries with several values; None for yes and no."""

    @property
    def yes(self) -> list[int]:
        """How many rows were answered yes in each window."""
        return [int(number) for number in (self.detected & self.there).sum(axis=0)]

    @property
    def mean_confidence(self) -> float | None:
        """The mean of the stated confidences in the last window; None without answers."""
        if not self.starts or not self.there[:, -1].any():
            return None
        return float(self.confidence[:, -1][self.there[:, -1]].mean())

    def top(self, most: int) -> AnswerGrid:
        """Return the rows that were answered yes most often, then by name."""
        order = np.lexsort((np.arange(len(self.rows)), -(self.detected & self.there).sum(axis=1)))
        return self.take(order[:most])

    def take(self, chosen: NDArray[np.int64]) -> AnswerGrid:
        """Return some rows."""
        return AnswerGrid(
            [self.rows[number] for number in chosen],
            self.starts,
            self.ends,
            self.detected[chosen],
            self.confidence[chosen],
            self.exhausted[chosen],
            self.there[chosen],
            self.value[chosen],
        )


def make_grid(tables: Sequence[pa.Table], column: str) -> AnswerGrid:
    """Arrange answers in a grid."""
    filled = [table for table in tables if table.num_rows]
    if not filled:
        none = np.zeros((0, 0), np.bool_)
        return AnswerGrid(
            [], [], [], none, none.astype(np.float32), none, none, none.astype(np.object_)
        )
    table = pa.concat_tables(filled, promote_options="default").combine_chunks()
    names = table[column].cast(pa.large_string()).combine_chunks()
    rows = pc.unique(names).sort()
    row = np.asarray(pc.index_in(names, value_set=rows))
    times = np.asarray(table["window_start"].cast(pa.int64()))
    starts, first, window = np.unique(times, return_index=True, return_inverse=True)
    ends = np.asarray(table["window_end"].cast(pa.int64()))[first]
    shape = (len(rows), len(starts))
    grids = {name: np.zeros(shape, np.bool_) for name in ("detected", "exhausted", "there")}
    confidence = np.zeros(shape, np.float32)
    grids["detected"][row, window] = np.asarray(table["detected"])
    grids["exhausted"][row, window] = np.asarray(table["exhausted"])
    grids["there"][row, window] = True
    confidence[row, window] = np.asarray(table["confidence"])
    value = np.full(shape, None, np.object_)
    value[row, window] = table["value"].cast(pa.string()).to_numpy(zero_copy_only=False)
    return AnswerGrid(
        rows.to_pylist(),
        [to_time(int(start)) for start in starts],
        [to_time(int(end)) for end in ends],
        confidence=confidence,
        value=value,
        **grids,
    )


def to_time(microseconds: int) -> datetime:
    """Convert microseconds since 1970 to a time."""
    return datetime.fromtimestamp(microseconds / 1_000_000, UTC)
