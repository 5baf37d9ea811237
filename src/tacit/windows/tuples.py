"""Tuples whose attributes are compared by conditions, stored as rows until their window closes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray


class Tuples:
    """Rows of the streams whose events occur in conditions, with the compared attributes."""

    def __init__(
        self,
        size: int,
        attributes: Mapping[str, Sequence[str]],
        types: NDArray[np.uint64],
    ) -> None:
        self.size = size
        self.attributes = attributes
        self.types = types
        self._rows = 0
        self._frames: dict[str, list[pl.DataFrame]] = {stream: [] for stream in attributes}

    def add(
        self,
        stream: str,
        table: pa.RecordBatch,
        chosen: NDArray[np.int64],
        slots: NDArray[np.int32],
        times: NDArray[np.int64],
        masks: NDArray[np.uint64],
    ) -> None:
        """Add the chosen rows of a table, with their slots, times and event types."""
        if stream not in self._frames or not len(chosen):
            return
        attributes = table.select(list(self.attributes[stream])).take(pa.array(chosen))
        self._frames[stream].append(
            pl.DataFrame(
                {
                    "slot": slots,
                    "row": np.arange(self._rows, self._rows + len(chosen)),
                    "time": times,
                    **{f"mask{word}": masks[:, word] for word in range(masks.shape[1])},
                }
            ).hstack(
                [
                    null_nonfinite(pl.Series(f"@{name}", attributes[name]))
                    for name in attributes.schema.names
                ]
            )
        )
        self._rows += len(chosen)

    def pop(self, first: int, count: int, slots: int) -> dict[str, pl.DataFrame]:
        """Remove and return the rows of `count` windows from `first` on, with their buckets."""
        taken: dict[str, pl.DataFrame] = {}
        if not any(self._frames.values()):
            return taken
        inside = pl.col("time") < (first + count) * self.size
        bucket = (pl.col("time") // self.size - first) * slots + pl.col("slot")
        for stream, frames in self._frames.items():
            if not frames:
                continue
            rows = pl.concat(frames)
            rest = rows.filter(~inside)
            self._frames[stream] = [rest] if len(rest) else []
            closed = rows.filter(inside)
            if len(closed):
                taken[stream] = closed.with_columns(bucket.cast(pl.Int64).alias("bucket"))
        return taken

    def state(self) -> dict[str, pl.DataFrame]:
        """Return the stored rows of each stream."""
        return {stream: pl.concat(frames) for stream, frames in self._frames.items() if frames}

    def restore(self, state: Mapping[str, pl.DataFrame]) -> None:
        """Restore what `state` returned."""
        self._frames = {
            stream: [state[stream]] if stream in state else [] for stream in self.attributes
        }
        self._rows = 1 + max((max(rows["row"]) for rows in state.values()), default=-1)


def null_nonfinite(column: pl.Series) -> pl.Series:
    """Replace infinite numbers and NaN by null."""
    if not column.dtype.is_float():
        return column
    return column.to_frame().select(pl.when(pl.first().is_finite()).then(pl.first())).to_series()
