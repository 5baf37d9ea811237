"""Small tables of rows."""

from __future__ import annotations

import pyarrow as pa


def numbered(count: int) -> pa.RecordBatch:
    """So many rows with a number each."""
    return pa.record_batch({"n": pa.array(range(count), pa.int64())})
