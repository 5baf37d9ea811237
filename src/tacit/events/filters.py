"""Filters: they clear the bits of event types that do not apply to a tuple.

Each filter reads few columns for many event types at once. A row of bits has 1 for the event types
that a filter does not test, so masks are the AND of all rows, and filtering the same tuples twice
changes nothing. Before the first filter, masks are `every`: 1 for all event types that can apply.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray
from polars.exceptions import PanicException

from tacit.buffers import allocate
from tacit.events.columns import decode_dictionary, freeze, read_numbers, read_text, read_validity
from tacit.events.grid import Grid
from tacit.events.interners import TextInterner
from tacit.events.masks import MOST_CODES, EventMasks
from tacit.events.predicates import BoundPredicate
from tacit.events.shapes import Shape
from tacit.kernels import compiled

Masks: TypeAlias = NDArray[np.uint64]
Conditions: TypeAlias = Sequence[tuple[int, BoundPredicate]]
"""Numbers of event types, and a condition of each; a number may occur several times."""

WIDEST = 4096
"""The largest range of integers for which a table of all values is built."""
_FROM_ZERO = np.uint64(0)
_FEW = 96
"""Up to this many steps are counted one by one, in a loop that the compiler vectorises."""


class TypeFilter(Protocol):
    """A filter of tuples."""

    def filter(self, batch: pa.RecordBatch, masks: Masks) -> None:
        """Clear the bits of event types that do not apply to the tuples."""


@dataclass(frozen=True, slots=True)
class ColumnValues:
    """The values of a column as places in a table, whose last row is for null."""

    numbers: NDArray[Any]
    bits: NDArray[np.uint8]
    """The validity bitmap, and the place of its first bit."""
    offset: int
    low: np.uint64 = _FROM_ZERO
    """What to subtract from each number."""


class LookUpFilter(ABC):
    """Looks up a row of bits for each value of a column; it can also write the first masks.

    Writing saves a pass over all masks, which costs as much as the look-up. `place` is the index
    of the column in batches: finding it by name takes longer than a small batch.
    """

    def __init__(self, column: str, place: int, asked: Conditions, every: Masks) -> None:
        self.column = column
        self._place = place
        self._asked = asked
        self._every = every
        self._table = np.empty((0, len(every)), np.uint64)
        """The rows of the values seen, and one for null; empty before the first batch."""

    def filter(self, batch: pa.RecordBatch, masks: Masks) -> None:
        """Clear bits by looking up each tuple's value."""
        self._look_up(batch, masks, False)

    def write(self, batch: pa.RecordBatch, masks: Masks) -> None:
        """Write the masks after this filter, whatever they were before."""
        self._look_up(batch, masks, True)

    def encode(self, batch: pa.RecordBatch) -> EventMasks | None:
        """Return the masks after this filter, if it is the only one; None if they need too many."""
        values = None if len(self._table) > MOST_CODES else self._read(batch)
        if values is None or len(self._table) > MOST_CODES:
            return None
        codes = allocate(len(values.numbers), np.uint8)
        null = np.uint64(len(self._table) - 1)
        _encode(values.numbers, values.bits, values.offset, values.low, null, codes)
        return EventMasks(self._table, freeze(codes))

    def _look_up(self, batch: pa.RecordBatch, masks: Masks, blank: bool) -> None:
        values = self._read(batch)
        if values is not None:
            numbers, bits, offset, low = values.numbers, values.bits, values.offset, values.low
            _look_up(numbers, bits, offset, low, self._table, masks, blank)
            return
        if blank:
            masks[:] = self._every
        self._filter_otherwise(batch, masks)

    @abstractmethod
    def _read(self, batch: pa.RecordBatch) -> ColumnValues | None:
        """Return the values, all of which have a row in the table; None if they are too many."""

    def _filter_otherwise(self, batch: pa.RecordBatch, masks: Masks) -> None:
        """Clear bits without the table."""
        raise AssertionError(f"{batch.num_rows} rows of {len(masks)} do not fit into the table")

    def _tabulate(self, values: pl.Series) -> None:
        self._table = _rows(values, self._asked, self._every)


class BooleanFilter(LookUpFilter):
    """A column of truth values."""

    def __init__(self, column: str, place: int, asked: Conditions, every: Masks) -> None:
        super().__init__(column, place, asked, every)
        self._tabulate(pl.Series(column, [False, True]))

    def _read(self, batch: pa.RecordBatch) -> ColumnValues:
        array = batch.column(self._place)
        packed = np.frombuffer(array.buffers()[1], np.uint8)
        codes = np.unpackbits(packed[array.offset // 8 :], bitorder="little")
        codes = freeze(codes[array.offset % 8 :][: len(array)])
        return ColumnValues(codes, *read_validity(array))


class DictionaryFilter(LookUpFilter):
    """A column of codes for the values of a dictionary."""

    _values: pa.Array | None = None

    def _read(self, batch: pa.RecordBatch) -> ColumnValues:
        array = batch.column(self._place)
        if self._values is None or not array.dictionary.equals(self._values):
            self._values = array.dictionary
            self._tabulate(_series(self.column, self._values))
        codes = array.indices
        return ColumnValues(read_numbers(codes), *read_validity(codes))


class TextFilter(LookUpFilter):
    """A column of texts: a table of the distinct ones, while they are few."""

    def __init__(
        self, column: str, place: int, asked: Conditions, every: Masks, otherwise: TypeFilter
    ) -> None:
        super().__init__(column, place, asked, every)
        self._otherwise = otherwise
        self._values = TextInterner()

    def _read(self, batch: pa.RecordBatch) -> ColumnValues | None:
        if len(self._values) > WIDEST:
            return None
        array = batch.column(self._place)
        codes = freeze(self._values.learn(*read_text(array)))
        if len(self._values) >= len(self._table):
            text, ends = self._values.names
            buffers = [None, pa.py_buffer(ends), pa.py_buffer(text)]
            values = pa.Array.from_buffers(pa.large_string(), len(self._values), buffers)
            self._tabulate(_series(self.column, values))
        return ColumnValues(codes, *read_validity(array))

    def _filter_otherwise(self, batch: pa.RecordBatch, masks: Masks) -> None:
        self._otherwise.filter(batch, masks)


class IntegerFilter(LookUpFilter):
    """A column of integers: a table of all values, if their range is small."""

    def __init__(
        self,
        column: str,
        place: int,
        dtype: pl.DataType,
        asked: Conditions,
        every: Masks,
        otherwise: Callable[[], Sequence[TypeFilter]],
    ) -> None:
        """`otherwise` makes the filters for a wide range: most columns do not need them."""
        super().__init__(column, place, asked, every)
        self._dtype = dtype
        self._otherwise = otherwise
        self._others: Sequence[TypeFilter] | None = None
        self._low, self._high = 0, -1
        self._base = np.uint64(0)
        self._wide = False
        self._bytes: Masks | None = None
        """The rows of all values, if they are bytes, by the number that the byte is."""

    def encode(self, batch: pa.RecordBatch) -> EventMasks | None:
        """Return the masks after this filter; bytes are codes already."""
        array = batch.column(self._place)
        if array.null_count or array.type.bit_width > 8:
            return super().encode(batch)
        values = read_numbers(array)
        if self._bytes is None:
            every = np.arange(MOST_CODES, dtype=np.uint8).view(values.dtype)
            self._bytes = _rows(pl.Series(self.column, every), self._asked, self._every)[:-1]
        return EventMasks(self._bytes, values.view(np.uint8))

    def _read(self, batch: pa.RecordBatch) -> ColumnValues | None:
        array = batch.column(self._place)
        values, (bits, offset) = read_numbers(array), read_validity(array)
        if not len(self._table):
            self._tabulate(pl.Series(self.column, [], self._dtype))
        if array.null_count == len(array):
            return None if self._wide else ColumnValues(values, bits, offset, self._base)
        if not self._wide:
            low, high = map(int, _extremes(values, bits, offset))
            if low < self._low or high > self._high:
                self._widen(low, high)
        return None if self._wide else ColumnValues(values, bits, offset, self._base)

    def _filter_otherwise(self, batch: pa.RecordBatch, masks: Masks) -> None:
        if self._others is None:
            self._others = self._otherwise()
        for one in self._others:
            one.filter(batch, masks)

    def _widen(self, low: int, high: int) -> None:
        """Extend the table to these values, or stop using it."""
        if self._high >= self._low:
            low, high = min(self._low, low), max(self._high, high)
        self._wide = high - low >= WIDEST
        if not self._wide:
            self._low, self._high = low, high
            self._base = np.uint64(self._low % 2**64)
            values = pl.Series(self.column, [*range(self._low, self._high + 1)], self._dtype)
            self._tabulate(values)


class StepFilter:
    """A column of numbers that are only compared: the bits change only at steps."""

    def __init__(self, column: str, dtype: pl.DataType, asked: Conditions, every: Masks) -> None:
        self.column = column
        steps = {step for _, predicate in asked for step in predicate.steps or ()}
        edges, samples = _edges(steps, dtype)
        table = _rows(pl.Series(column, samples, dtype), asked, every)
        # Drop edges at which no bit changes.
        kept = 1 + np.flatnonzero((table[1:-1] != table[:-2]).any(axis=1))
        self._edges = edges[kept - 1]
        self._table = table[[0, *kept, -1]]
        self._step = _step_few if len(kept) <= _FEW else _step_many

    def filter(self, batch: pa.RecordBatch, masks: Masks) -> None:
        """Clear bits by counting the edges up to each tuple's value."""
        array = batch.column(self.column)
        self._step(read_numbers(array), *read_validity(array), self._edges, self._table, masks)


class ExpressionFilter:
    """All other conditions: Polars evaluates the expressions over the tuples."""

    def __init__(self, asked: Conditions, schema: pl.Schema) -> None:
        self._numbers = [number for number, _ in asked]
        self._expressions = [predicate.expression for _, predicate in asked]
        used = dict.fromkeys(column for _, predicate in asked for column in predicate.columns)
        self._types = pl.Schema({column: schema[column] for column in used})

    def filter(self, batch: pa.RecordBatch, masks: Masks) -> None:
        """Clear bits where an expression is not true."""
        columns = [_series(column, batch.column(column)) for column in self._types]
        truths = _truths(pl.DataFrame(columns).cast(self._types), self._expressions)
        for number, truth in zip(self._numbers, truths, strict=True):
            bits = truth.rechunk().to_arrow()
            packed = freeze(np.frombuffer(bits.buffers()[1], np.uint8))
            _clear(packed, bits.offset, number, masks)


class AreaFilter:
    """Positions and areas, tested with the grid."""

    def __init__(
        self,
        position: tuple[str, str],
        asked: Mapping[int, Sequence[str]],
        areas: Mapping[str, Shape],
        words: int,
    ) -> None:
        self.position = position
        used = list(dict.fromkeys(name for names in asked.values() for name in names))
        masks = np.zeros((len(used), words), np.uint64)
        self._others = np.full(words, ~np.uint64(0))
        for number, names in asked.items():
            self._others[number // 64] &= ~_bit(number)
            for name in names:
                masks[used.index(name), number // 64] |= _bit(number)
        self._grid = Grid([areas[name] for name in used], masks)

    def filter(self, batch: pa.RecordBatch, masks: Masks) -> None:
        """Clear the bits of areas that do not contain the positions."""
        lon, lat = (
            _series(column, batch.column(column)).cast(pl.Float64, strict=False).to_numpy()
            for column in self.position
        )
        masks &= self._grid.inside(lon, lat) | self._others


def _rows(values: pl.Series, asked: Conditions, every: Masks) -> Masks:
    """Return the row of bits for each value of a column, followed by the row for null."""
    null = pl.Series(values.name, [None], values.dtype)
    frame = values.clone().append(null).rechunk().to_frame()
    rows = np.repeat(every[np.newaxis], len(frame), axis=0)
    truths = _truths(frame, [predicate.expression for _, predicate in asked])
    for word in range(len(every)):
        own = [place for place, (number, _) in enumerate(asked) if number // 64 == word]
        if own:
            holds = np.stack([truths[place].to_numpy() for place in own])
            bits = np.array([[_bit(asked[place][0])] for place in own])
            rows[:, word] &= ~np.bitwise_or.reduce(np.where(holds, np.uint64(0), bits), axis=0)
    return rows


def _truths(frame: pl.DataFrame, expressions: Sequence[pl.Expr]) -> list[pl.Series]:
    """Return where each expression is true; numbers that are not finite count as null."""
    infinite = [
        pl.when(pl.col(column.name).is_finite()).then(pl.col(column.name)).alias(column.name)
        for column in frame
        if column.dtype.is_float() and not column.is_finite().all()
    ]
    if infinite:
        frame = frame.with_columns(infinite)
    try:
        # For few rows it takes longer to wake other threads.
        select = frame.select_seq if len(frame) <= 2 * WIDEST else frame.select
        found = select(
            expression.fill_null(False).alias(str(place))
            for place, expression in enumerate(expressions)
        )
    except (pl.exceptions.PolarsError, PanicException):
        return [_evaluate_halves(frame, expression) for expression in expressions]
    return found.get_columns()


def _evaluate_halves(frame: pl.DataFrame, expression: pl.Expr) -> pl.Series:
    """Return where an expression is true; a tuple for which it fails counts as not true.

    The tuples are halved until the failing ones are isolated.
    """
    try:
        return frame.select(expression.fill_null(False).alias("truth")).to_series()
    except (pl.exceptions.PolarsError, PanicException):
        if len(frame) <= 1:
            return pl.Series("truth", [False] * len(frame), pl.Boolean)
    half = len(frame) // 2
    return _evaluate_halves(frame[:half], expression).append(
        _evaluate_halves(frame[half:], expression)
    )


def _bit(number: int) -> np.uint64:
    return np.uint64(1 << number % 64)


def _series(name: str, array: pa.Array) -> pl.Series:
    """Convert an Arrow array to Polars, with dictionaries decoded."""
    return pl.Series(name, decode_dictionary(array))


def _edges(steps: set[Fraction], dtype: pl.DataType) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the values at which comparisons with `steps` may change, and a sample per interval.

    Sample 0 is below all edges; sample i + 1 is edge i, the first value of its interval.
    """
    kind = np.dtype(str(dtype).lower())
    if dtype.is_float():
        at = np.unique(np.array([float(step) for step in steps], kind))
        edges = np.unique(np.concatenate([at, np.nextafter(at, kind.type(np.inf))]))
        below = np.nextafter(edges[:1], kind.type(-np.inf)) if len(edges) else np.zeros(1, kind)
        return edges, np.concatenate([below, edges])
    limits = np.iinfo(kind)
    whole = sorted({step.__floor__() + more for step in steps for more in (0, 1)})
    whole = [edge for edge in whole if limits.min <= edge <= limits.max]
    below = max(whole[0] - 1, limits.min) if whole else 0
    return np.array(whole, kind), np.array([below, *whole], kind)


@compiled
def _look_up(
    codes: NDArray[Any],
    bits: NDArray[np.uint8],
    offset: int,
    low: np.uint64,
    table: Masks,
    masks: Masks,
    blank: bool,
) -> None:
    """AND each code's row of the table, whose last row is for null.

    If masks are `blank`, write the row.
    """
    null = np.uint64(len(table) - 1)
    if len(bits) == 0:
        if len(table[0]) == 1:
            _take(codes, low, table.reshape(-1), masks.reshape(-1), blank)
            return
        for word in range(len(table[0])):
            _take(codes, low, table[:, word], masks[:, word], blank)
        return
    for row in range(len(codes)):
        place = np.uint64(codes[row]) - low if _is_set(bits, offset + row) else null
        for word in range(masks.shape[1]):
            found = table[place, word]
            masks[row, word] = found if blank else masks[row, word] & found


@compiled
def _encode(
    values: NDArray[Any],
    bits: NDArray[np.uint8],
    offset: int,
    low: np.uint64,
    null: np.uint64,
    codes: NDArray[np.uint8],
) -> None:
    """Write the place of each value in a table, whose last row is for null, as one byte."""
    for row in range(len(values)):
        codes[row] = np.uint8(np.uint64(values[row]) - low)
    if len(bits) > 0:
        for row in range(len(values)):
            if not _is_set(bits, offset + row):
                codes[row] = np.uint8(null)


@compiled
def _take(codes: NDArray[Any], low: np.uint64, column: Masks, found: Masks, blank: bool) -> None:
    """Apply one word of the rows, for codes that are all in the table."""
    if blank:
        for row in range(len(codes)):
            found[row] = column[np.uint64(codes[row]) - low]
    else:
        for row in range(len(codes)):
            found[row] &= column[np.uint64(codes[row]) - low]


@compiled
def _step_few(
    values: NDArray[Any],
    bits: NDArray[np.uint8],
    offset: int,
    edges: NDArray[Any],
    table: Masks,
    masks: Masks,
) -> None:
    """AND the row of each number's interval, found by comparing with the edges one by one.

    The compiler vectorises the loops over few numbers and one edge.
    """
    rows = np.empty(1024, np.uint64)
    for start in range(0, len(values), 1024):
        part = values[start : start + 1024]
        for word in range(masks.shape[1]):
            rows[:] = table[0, word]
            for number in range(len(edges)):
                edge = edges[number]
                change = table[number, word] ^ table[number + 1, word]
                for place in range(len(part)):
                    rows[place] ^= change if part[place] >= edge else np.uint64(0)
            null = table[-1, word]
            if len(bits):
                for place in range(len(part)):
                    if not _is_set(bits, offset + start + place):
                        rows[place] = null
            for place in range(len(part)):
                # Infinity minus infinity is NaN, which is not 0 either.
                row = rows[place] if part[place] - part[place] == 0 else null
                masks[start + place, word] &= row


@compiled
def _step_many(
    values: NDArray[Any],
    bits: NDArray[np.uint8],
    offset: int,
    edges: NDArray[Any],
    table: Masks,
    masks: Masks,
) -> None:
    """Do the same for many edges, by binary search."""
    for row in range(len(values)):
        place = len(table) - 1
        known = len(bits) == 0 or _is_set(bits, offset + row)
        if known and values[row] - values[row] == 0:
            place = np.searchsorted(edges, values[row], side="right")
        for word in range(masks.shape[1]):
            masks[row, word] &= table[place, word]


@compiled
def _clear(bits: NDArray[np.uint8], offset: int, number: int, masks: Masks) -> None:
    """Clear an event type's bit in the masks of all tuples whose bit is 0."""
    word, place = number // 64, np.uint64(number % 64)
    for row in range(len(masks)):
        cleared = np.uint64(not _is_set(bits, offset + row)) << place
        masks[row, word] &= ~cleared


@compiled
def _extremes(values: NDArray[Any], bits: NDArray[np.uint8], offset: int) -> tuple[Any, Any]:
    """Return the least and the greatest number that is not null; there is at least one."""
    low = high = values[0]
    known = False
    if len(bits) == 0:
        for row in range(len(values)):
            low, high = min(low, values[row]), max(high, values[row])
        return low, high
    for row in range(len(values)):
        if not _is_set(bits, offset + row):
            continue
        if not known:
            low = high = values[row]
            known = True
        low, high = min(low, values[row]), max(high, values[row])
    return low, high


@compiled
def _is_set(bits: NDArray[np.uint8], place: int) -> bool:
    return bool(bits[place >> 3] >> (place & 7) & 1)
