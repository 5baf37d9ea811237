"""Extract events from tuples: for each tuple, the mask of its event types.

The condition of an event type is a conjunction: the factors of its `where`, and `inside`. They
are grouped into filters, each over few columns and for many event types at once:

- A column with few distinct values (small integers, booleans, dictionaries): Polars evaluates the
  predicates once per distinct value; a compiled loop looks the bits up.
- Comparisons of a column with numbers: the bits change only at those numbers; Polars evaluates the
  predicates once in each interval between them; a compiled loop finds the interval.
- Anything else: Polars evaluates the predicates over all tuples in one call.
- Areas: a grid look-up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa
from polars.exceptions import PanicException

from tacit.buffers import allocate
from tacit.errors import SchemaError, nearest
from tacit.events.filters import (
    AreaFilter,
    BooleanFilter,
    Conditions,
    DictionaryFilter,
    ExpressionFilter,
    IntegerFilter,
    LookUpFilter,
    Masks,
    StepFilter,
    TextFilter,
    TypeFilter,
)
from tacit.events.masks import EventMasks
from tacit.events.predicates import BoundPredicate, parse_predicate
from tacit.events.shapes import Shape
from tacit.events.streams import Stream
from tacit.events.types import EventType

Table: TypeAlias = pa.Table | pa.RecordBatch | pl.DataFrame
Schema: TypeAlias = pa.Schema | pl.Schema
Factors: TypeAlias = dict[str, list[BoundPredicate]]

_FLOATS = frozenset({pl.Float32, pl.Float64})
_INTEGERS = frozenset(
    {pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64}
)
_BLOCK = 1 << 16
"""The number of tuples filtered together, so that they stay in the processor's cache."""


def suggest_quotes(column: str) -> str:
    """Return a hint for a column that is probably a text without its quotes."""
    return f" If it is a text, write it in single quotes: '{column}'."


class Extractor:
    """Finds the event types of a stream's tuples.

    `types` has all event types of all streams, in the order of their numbers. `events` may
    contain event types of other streams, which are ignored.
    """

    def __init__(
        self,
        stream_name: str,
        stream: Stream,
        events: Mapping[str, EventType],
        areas: Mapping[str, Shape],
        types: Sequence[str],
    ) -> None:
        self.stream_name = stream_name
        self.stream = stream
        self.words = (len(types) + 63) // 64
        self._areas = areas
        self._events = {n: event for n, event in events.items() if event.stream == stream_name}
        numbers = {name: number for number, name in enumerate(types)}
        self._numbers = {name: numbers[name] for name in self._events}
        self._predicates = {
            name: parse_predicate(event.where)
            for name, event in self._events.items()
            if event.where is not None
        }
        self._bindings: list[tuple[pa.Schema, _Binding]] = []
        self._bound: tuple[object, Factors, list[str]] | None = None
        """The last schema, its bound conditions, and the errors found."""

    @cached_property
    def attributes(self) -> tuple[str, ...]:
        """The columns that event types use."""
        used = [column for p in self._predicates.values() for column in p.columns]
        if any(event.areas for event in self._events.values()):
            used += [self.stream.lon, self.stream.lat]
        return tuple(dict.fromkeys(used))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to read: the subject, the time and the attributes."""
        return tuple(dict.fromkeys([self.stream.subject, self.stream.time, *self.attributes]))

    def check(self, schema: Schema) -> None:
        """Raise SchemaError with everything that is missing or unsuitable in these columns."""
        faults = self._missing(list(schema.names if isinstance(schema, pa.Schema) else schema))
        if not faults:
            faults = self._unfit(_polars_schema(schema, self.attributes))
        if faults:
            raise SchemaError("\n".join(faults))

    def masks(self, table: Table, out: Masks | None = None) -> Masks:
        """Return the masks `[n, W]` of the tuples' event types, written to `out` if it is given.

        Reusing one array saves the allocation of new memory.
        """
        masks: Masks = allocate((len(table), self.words), np.uint64) if out is None else out
        if not self.attributes:
            masks[:] = self._binding(pa.schema([])).every
            return masks
        if isinstance(table, pa.RecordBatch):
            self._binding(table.schema).fill(table, masks)
            return masks
        start = 0
        for batch in _batches(table, self.attributes):
            stop = start + batch.num_rows
            self._binding(batch.schema).fill(batch, masks[start:stop])
            start = stop
        return masks

    def find_types(self, batch: pa.RecordBatch) -> EventMasks:
        """Return the event types of the tuples, as codes if they depend on one column."""
        if self.attributes:
            found = self._binding(batch.schema).encode(batch)
            if found is not None:
                return found
        return EventMasks(self.masks(batch))

    def _missing(self, names: Sequence[str]) -> list[str]:
        """Return errors for columns that are missing or present more than once."""
        purposes = [(self.stream.subject, "the subject"), (self.stream.time, "the time")]
        for name, event in self._events.items():
            used = self._predicates[name].columns if name in self._predicates else ()
            position = (self.stream.lon, self.stream.lat) if event.areas else ()
            purposes += [(column, f"event type '{name}'") for column in (*used, *position)]
        source = f"the source of stream '{self.stream_name}'"
        compared = {c for p in self._predicates.values() for c in p.compared_columns()}
        return [
            f"{source} has no column '{column}', which {purpose} needs."
            f"{suggest_quotes(column) if column in compared else nearest(column, names)}"
            if column not in names
            else f"{source} has several columns named '{column}', which {purpose} needs; keep one"
            for column, purpose in dict.fromkeys(purposes)
            if names.count(column) != 1
        ]

    def _unfit(self, schema: pl.Schema) -> list[str]:
        """Return errors for columns of unsuitable types."""
        faults = list(self._factors(schema)[1])
        if any(event.areas for event in self._events.values()):
            faults += [
                f"column '{column}' of stream '{self.stream_name}' is a position and must be a "
                f"number; it is of type {schema[column]}"
                for column in (self.stream.lon, self.stream.lat)
                if not (schema[column].is_numeric() or schema[column] == pl.Null)
            ]
        return faults

    def _factors(self, schema: pl.Schema) -> tuple[Factors, list[str]]:
        """Bind the factors of each condition to the columns; also return the errors."""
        key = tuple(schema.items())
        if self._bound is None or self._bound[0] != key:
            factors: Factors = {}
            faults = []
            for name, predicate in self._predicates.items():
                parts = predicate.factors()
                try:
                    if len(parts) > 1:  # check the whole condition too
                        predicate.bind(schema)
                    factors[name] = [part.bind(schema) for part in parts]
                except ValueError as error:
                    faults.append(
                        f"the condition of event type '{name}' does not work here: {error}"
                    )
            self._bound = key, factors, faults
        return self._bound[1:]

    def _binding(self, schema: pa.Schema) -> _Binding:
        """Return the filters for columns of these types; cached."""
        for known, binding in self._bindings:
            if known.equals(schema):
                return binding
        if any(schema.get_field_index(column) < 0 for column in self.attributes):
            raise SchemaError("the table lacks a column that event types need, or has it twice")
        types = _polars_schema(schema, self.attributes)
        faults = self._unfit(types)
        if faults:
            raise SchemaError("\n".join(faults))
        self._bindings.append((schema, self._bind(schema, types)))
        return self._bindings[-1][1]

    def _bind(self, schema: pa.Schema, types: pl.Schema) -> _Binding:
        """Distribute the conditions over filters."""
        every = np.zeros(self.words, np.uint64)
        bound, _ = self._factors(types)
        by_columns: dict[tuple[str, ...], list[tuple[int, BoundPredicate]]] = {}
        for name, number in self._numbers.items():
            factors = bound.get(name, [])
            if all(factor.columns or _is_true(factor) for factor in factors):
                every[number // 64] |= np.uint64(1 << number % 64)
                for factor in factors:
                    if factor.columns:
                        by_columns.setdefault(factor.columns, []).append((number, factor))
        quick, slow = _choose_filters(by_columns, schema, types, every)
        areas = {self._numbers[n]: event.areas for n, event in self._events.items() if event.areas}
        if areas:
            position = self.stream.lon, self.stream.lat
            quick.append(AreaFilter(position, areas, self._areas, self.words))
        first = next((one for one in quick if isinstance(one, LookUpFilter)), None)
        return _Binding(every, first, [one for one in quick if one is not first], slow)


@dataclass(frozen=True, slots=True)
class _Binding:
    """The filters for one set of column types."""

    every: Masks
    first: LookUpFilter | None
    quick: Sequence[TypeFilter]
    slow: Sequence[TypeFilter]

    def encode(self, batch: pa.RecordBatch) -> EventMasks | None:
        """Return the masks as codes, if one look-up decides them; None otherwise."""
        if self.first is None or self.quick or self.slow:
            return None
        return self.first.encode(batch)

    def fill(self, batch: pa.RecordBatch, masks: Masks) -> None:
        """Set the bits of all event types, then clear those that do not apply to a tuple."""
        if not self.quick or len(masks) <= _BLOCK:
            self._filter(batch, masks)
        else:
            for start in range(0, len(masks), _BLOCK):
                self._filter(batch.slice(start, _BLOCK), masks[start : start + _BLOCK])
        # A Polars call has a fixed cost, so evaluate everything in one call.
        for one in self.slow:
            one.filter(batch, masks)

    def _filter(self, batch: pa.RecordBatch, masks: Masks) -> None:
        """Apply the quick filters; the first one writes the masks."""
        if self.first is None:
            masks[:] = self.every
        else:
            self.first.write(batch, masks)
        for one in self.quick:
            one.filter(batch, masks)


def _choose_filters(
    by_columns: Mapping[tuple[str, ...], Conditions],
    schema: pa.Schema,
    types: pl.Schema,
    every: Masks,
) -> tuple[list[TypeFilter], list[TypeFilter]]:
    """Return quick filters for single columns of suitable types, and a slow one for the rest."""
    quick: list[TypeFilter] = []
    rest: list[tuple[int, BoundPredicate]] = []
    for columns, asked in by_columns.items():
        column, dtype = columns[0], types[columns[0]]
        place = schema.get_field_index(column)
        stepped = [(number, p) for number, p in asked if p.steps is not None]
        others = [(number, p) for number, p in asked if p.steps is None]
        if len(columns) > 1:
            rest += asked
        elif pa.types.is_dictionary(schema.field(column).type):
            quick.append(DictionaryFilter(column, place, asked, every))
        elif dtype == pl.Boolean:
            quick.append(BooleanFilter(column, place, asked, every))
        elif dtype in _INTEGERS:
            otherwise = partial(_filter_numbers, column, types, stepped, others, every)
            quick.append(IntegerFilter(column, place, dtype, asked, every, otherwise))
        elif dtype in _FLOATS:
            quick += _filter_numbers(column, types, stepped, [], every)
            rest += others
        elif dtype == pl.String and len(asked) > 2:
            quick.append(TextFilter(column, place, asked, every, ExpressionFilter(asked, types)))
        else:
            rest += asked
    return quick, [ExpressionFilter(rest, types)] if rest else []


def _filter_numbers(
    column: str, types: pl.Schema, stepped: Conditions, others: Conditions, every: Masks
) -> list[TypeFilter]:
    """Return filters for a column of numbers: one for comparisons, one for other conditions."""
    found: list[TypeFilter] = [StepFilter(column, types[column], stepped, every)] if stepped else []
    return [*found, ExpressionFilter(others, types)] if others else found


def _is_true(factor: BoundPredicate) -> bool:
    """Return whether a condition without columns is true."""
    return pl.select(factor.expression).item() is True


def _polars_schema(schema: Schema, columns: Sequence[str]) -> pl.Schema:
    """Return the columns' types for predicates: a dictionary has the type of its values."""
    found: dict[str, pl.DataType] = {}
    for column in columns:
        if isinstance(schema, pl.Schema):
            dtype = schema[column]
            found[column] = pl.String() if dtype in (pl.Categorical, pl.Enum) else dtype
            continue
        kind = schema.field(column).type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        try:
            found[column] = _polars_type(kind)
        except (pl.exceptions.PolarsError, PanicException, pa.ArrowException) as error:
            raise SchemaError(f"column '{column}' is of an unknown type: {kind}") from error
    return pl.Schema(found)


@cache
def _polars_type(kind: pa.DataType) -> pl.DataType:
    return pl.Series(pa.array([], kind)).dtype


def _batches(table: pa.Table | pl.DataFrame, columns: Sequence[str]) -> list[pa.RecordBatch]:
    """Return the table's tuples, in order, as contiguous columns."""
    try:
        part = table.select(list(columns))
    except (KeyError, pl.exceptions.ColumnNotFoundError) as error:
        raise SchemaError("the table lacks a column that event types need") from error
    if isinstance(part, pl.DataFrame):
        part = part.to_arrow(compat_level=pl.CompatLevel.newest())
    batches: list[pa.RecordBatch] = part.to_batches()
    return batches
