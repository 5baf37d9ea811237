"""Tuples whose attributes are compared with one another: kept as rows until their window closes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray


class Tuples:
    """Rows of the streams whose events stand in conditions, with the attributes compared there."""

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
        self._kept: dict[str, list[pl.DataFrame]] = {stream: [] for stream in attributes}

    def keep(
        self,
        stream: str,
        table: pa.RecordBatch,
        chosen: NDArray[np.int64],
        slots: NDArray[np.int32],
        times: NDArray[np.int64],
        masks: NDArray[np.uint64],
    ) -> None:
        """Keep the chosen rows of a table, with each one's slot, time and event types."""
        if stream not in self._kept or not len(chosen):
            return
        attributes = table.select(list(self.attributes[stream])).take(pa.array(chosen))
        self._kept[stream].append(
            pl.DataFrame(
                {
                    "slot": slots,
                    "row": np.arange(self._rows, self._rows + len(chosen)),
                    "time": times,
                    **{f"mask{word}": masks[:, word] for word in range(masks.shape[1])},
                }
            ).hstack(
                [
                    finite(pl.Series(f"@{name}", attributes[name]))
                    for name in attributes.schema.names
                ]
            )
        )
        self._rows += len(chosen)

    def pop(self, first: int, count: int, slots: int) -> dict[str, pl.DataFrame]:
        """Take the rows of `count` windows from `first` on, with the bucket that each lies in."""
        taken: dict[str, pl.DataFrame] = {}
        if not any(self._kept.values()):
            return taken
        inside = pl.col("time") < (first + count) * self.size
        bucket = (pl.col("time") // self.size - first) * slots + pl.col("slot")
        for stream, frames in self._kept.items():
            if not frames:
                continue
            rows = pl.concat(frames)
            rest = rows.filter(~inside)
            self._kept[stream] = [rest] if len(rest) else []
            closed = rows.filter(inside)
            if len(closed):
                taken[stream] = closed.with_columns(bucket.cast(pl.Int64).alias("bucket"))
        return taken

    def state(self) -> dict[str, pl.DataFrame]:
        """The rows kept for each stream."""
        return {stream: pl.concat(frames) for stream, frames in self._kept.items() if frames}

    def restore(self, state: Mapping[str, pl.DataFrame]) -> None:
        """Take up a state that `state` gave."""
        self._kept = {
            stream: [state[stream]] if stream in state else [] for stream in self.attributes
        }
        self._rows = 1 + max((max(rows["row"]) for rows in state.values()), default=-1)


def finite(column: pl.Series) -> pl.Series:
    """The column with null where a number is infinite or not a number."""
    if not column.dtype.is_float():
        return column
    return column.to_frame().select(pl.when(pl.first().is_finite()).then(pl.first())).to_series()
