"""Build rows from the answers of windows: one for each window, registered subject and query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tacit.answers.values import find_values, list_values
from tacit.spec.boolean_queries import group_queries

MOST_ROWS: Final = 1 << 20
"""About how many rows are built at a time."""


@dataclass(frozen=True, slots=True)
class AnswerBlock:
    """Answers of some windows and subjects in columns: `[window][subject][boolean query]`."""

    starts: NDArray[np.int64]
    """When each window starts, in microseconds."""
    size: int
    subjects: pa.Array
    detected: NDArray[np.bool_]
    registered: NDArray[np.bool_] | None = None
    """`[window][subject]`: who has answers; None if all subjects have."""
    confidence: NDArray[np.float32] | None = None
    """None for true answers."""
    exhausted: NDArray[np.bool_] | None = None
    """By subject; None if no subject has a limit."""
    private: bool = True
    """Whether protected answers are private: not if their noise came from a seed."""


class RowBuilder:
    """Builds the rows of blocks with the same queries, sorted by window, subject and query.

    `names` and `consumers` are those of boolean queries. Times, queries and numbers of subjects are
    the same for all parts of one window, so they are built once.
    """

    def __init__(self, names: Sequence[str], consumers: Sequence[str]) -> None:
        self._columns = group_queries(names)
        self._queries = [query.name for query in self._columns]
        self._consumers = [consumers[query.first] for query in self._columns]
        self._values = list_values(self._columns)
        """The values of queries with several; empty if all answers are yes or no."""
        self._window: tuple[int, int] | None = None
        """The start and size of the window to which `_shared` belongs."""
        self._shared: Sequence[pa.Array] = ()

    def build(self, block: AnswerBlock) -> pa.RecordBatch:
        """Build the rows of a block."""
        places = None
        detected, values, confidence = block.detected, None, block.confidence
        if self._values:
            detected, values, confidence = find_values(self._columns, detected, confidence)
        if block.registered is not None:
            places = np.nonzero(block.registered)[1].astype(np.int32)
        start, end, numbers, consumer, query = self._share(block, places)
        columns = [
            start,
            end,
            pa.DictionaryArray.from_arrays(numbers, block.subjects),
            consumer,
            query,
            pa.array(_flatten(detected, block.registered)),
        ]
        protected, limited = confidence is not None, block.exhausted is not None
        if values is not None:
            codes, unvalued = (_flatten(part, block.registered) for part in (values, values < 0))
            known = pa.array(self._values, pa.string())
            columns.append(pa.DictionaryArray.from_arrays(pa.array(codes, mask=unvalued), known))
        if confidence is not None:
            columns.append(pa.array(_flatten(confidence, block.registered)))
        if protected and block.exhausted is not None:
            columns.append(pa.array(block.exhausted[numbers.to_numpy()]))
        if protected and not block.private:
            columns.append(pa.array(np.zeros(len(numbers), np.bool_)))
        schema = answer_schema(
            protected=protected,
            private=block.private,
            limited=limited,
            valued=bool(self._values),
        )
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _share(self, block: AnswerBlock, places: NDArray[np.int32] | None) -> Sequence[pa.Array]:
        """Return the times, the numbers of subjects, the consumers and the queries of all rows."""
        width, windows = len(self._queries), len(block.starts)
        whole = windows == 1 and places is None
        window = int(block.starts[0]), block.size
        rows = len(block.subjects) * width
        if whole and self._window == window and rows <= len(self._shared[0]):
            return [column.slice(0, rows) for column in self._shared]
        if places is None:
            counts = np.full(windows, len(block.subjects))
            places = np.tile(np.arange(len(block.subjects), dtype=np.int32), windows)
        else:
            counts = np.count_nonzero(np.asarray(block.registered), axis=1)
        starts = np.repeat(block.starts, counts * width)
        instant = pa.timestamp("us", tz="UTC")
        shared = [
            pa.array(starts).cast(instant),
            pa.array(starts + block.size).cast(instant),
            pa.array(np.repeat(places, width)),
            *build_query_columns(
                self._queries,
                self._consumers,
                np.tile(np.arange(width, dtype=np.int32), len(places)),
            ),
        ]
        if whole:
            self._window, self._shared = window, shared
        return shared


def _flatten(
    values: NDArray[np.generic], registered: NDArray[np.bool_] | None
) -> NDArray[np.generic]:
    """Return one value per row."""
    return (values if registered is None else values[registered]).reshape(-1)


def divide(windows: int, subjects: int, queries: int) -> Iterator[tuple[slice, slice]]:
    """Divide answers into blocks of windows and subjects, about a million rows each, in order.

    A block has whole windows, or part of one. Blocks of subjects begin at multiples of 64.
    """
    most = max(1, MOST_ROWS // max(1, subjects * queries))
    width = subjects if most > 1 else max(1, MOST_ROWS // (64 * max(1, queries))) * 64
    for window in range(0, windows, most):
        for first in range(0, subjects, max(1, width)):
            yield (
                slice(window, min(window + most, windows)),
                slice(first, min(first + width, subjects)),
            )


def answer_schema(
    *, protected: bool = False, private: bool = True, limited: bool = False, valued: bool = False
) -> pa.Schema:
    """Return the schema of answers.

    If a query has several values, there is a column `value`. With limits, protected answers have a
    column `exhausted`. Answers whose noise came from a seed
    have a column `private`, which is false in every row.
    """
    sure = [("confidence", pa.float32())] if protected else []
    if protected and limited:
        sure.append(("exhausted", pa.bool_()))
    if protected and not private:
        sure.append(("private", pa.bool_()))
    return pa.schema(
        [
            ("window_start", pa.timestamp("us", tz="UTC")),
            ("window_end", pa.timestamp("us", tz="UTC")),
            ("subject", pa.dictionary(pa.int32(), pa.large_string())),
            ("consumer", pa.dictionary(pa.int32(), pa.string())),
            ("query", pa.dictionary(pa.int32(), pa.string())),
            ("detected", pa.bool_()),
            *([("value", pa.dictionary(pa.int32(), pa.string()))] if valued else []),
            *sure,
        ]
    )


def build_query_columns(
    queries: Sequence[str], consumers: Sequence[str], places: NDArray[np.int32]
) -> tuple[pa.Array, pa.Array]:
    """Build the columns `consumer` and `query`, given the number of each row's query."""
    known = list(dict.fromkeys(consumers))
    numbers = np.array([known.index(consumer) for consumer in consumers], np.int32)
    return (
        pa.DictionaryArray.from_arrays(numbers[places], pa.array(known, pa.string())),
        pa.DictionaryArray.from_arrays(places, pa.array(queries, pa.string())),
    )
