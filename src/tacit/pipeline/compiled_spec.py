"""A specification compiled for use: extractors, column types and the evaluator. No state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import polars as pl
import pyarrow as pa

from tacit.errors import SchemaError
from tacit.events.columntypes import ColumnTypes
from tacit.events.extraction import Extractor
from tacit.events.streams import ColumnType
from tacit.events.subjects import Subjects, check_subject_type
from tacit.events.times import check_time_type, to_microseconds
from tacit.pipeline.batches import EventBatch, Rows
from tacit.pipeline.evaluators import Detector, Evaluator
from tacit.privacy.policies import Policies
from tacit.spec.columntypes import RecordedTypes, SpecColumns
from tacit.spec.specification import Specification


class SourceColumns(Protocol):
    """What a source says about its columns."""

    @property
    def textual(self) -> bool:
        """Whether values are text until they are converted."""

    @property
    def keyed(self) -> bool:
        """Whether each row names its own columns."""

    def schema(self) -> pa.Schema:
        """Return the columns and their own types."""

    def declared_types(self) -> Mapping[str, ColumnType]:
        """Return the column types that its address declares."""


class CompiledSpec:
    """A specification with its event extractors and its evaluator of windows.

    The default evaluator computes the true answers. `recorded` are the column types that a plan
    recorded from history.
    """

    def __init__(
        self,
        spec: Specification,
        evaluator: Evaluator | None = None,
        recorded: RecordedTypes | None = None,
    ) -> None:
        self.spec = spec
        self.types = SpecColumns(spec, recorded or {})
        types = tuple(spec.types)
        areas = {name: area.shape(spec.folder) for name, area in spec.areas.items()}
        self.extractors = {
            name: Extractor(name, stream, spec.events, areas, types)
            for name, stream in spec.streams.items()
        }
        self.policies = Policies(spec)
        self.evaluator = Detector(spec) if evaluator is None else evaluator

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the answers."""
        return self.evaluator.names

    def columns(self, stream: str) -> tuple[str, ...]:
        """Return the columns of a stream that are read."""
        compared = self.evaluator.attributes.get(stream, ())
        return tuple(dict.fromkeys((*self.extractors[stream].columns, *compared)))

    def column_types(self, stream: str, source: SourceColumns) -> ColumnTypes:
        """Return the types to which the columns of a source are converted."""
        schema = source.schema()  # a folder determines its format only here
        if source.textual:
            return self.types.text_types(stream, self.columns(stream), source.declared_types())
        return self.types.declared_types(stream, schema)

    def schema(self, stream: str, source: SourceColumns) -> pa.Schema:
        """Return the columns that are read from a source, with their types after conversion."""
        types = self.column_types(stream, source)
        schema = source.schema()
        if source.keyed:
            schema = pa.schema([(name, pa.string()) for name in self.columns(stream)])
        return types.schema(schema)

    def check(self, schemas: Sequence[tuple[str, pa.Schema]]) -> None:
        """Raise SchemaError with all missing columns and all columns of a wrong type."""
        faults = []
        for stream, schema in schemas:
            try:
                self.extractors[stream].check(schema)
                config = self.spec.streams[stream]
                check_time_type(schema.field(config.time).type, config.time)
                check_subject_type(schema.field(config.subject).type)
            except SchemaError as error:
                faults.append(str(error))
        conditions = [found for part in self.evaluator.queries for found in part.conditions]
        frames = {
            stream: pl.DataFrame(schema.empty_table()).schema
            for stream, schema in reversed(schemas if conditions else [])
        }
        for condition in conditions:
            if not frames.keys() >= condition.attributes.keys():
                continue  # a stream whose sources are empty has no columns
            try:
                condition.check(frames)
            except SchemaError as error:
                faults.append(str(error))
        faults += self._find_mixed_types(schemas)
        if faults:
            raise SchemaError("\n".join(faults))

    def _find_mixed_types(self, schemas: Sequence[tuple[str, pa.Schema]]) -> list[str]:
        """Find compared columns whose types differ between the sources of a stream.

        Their values are compared in one window. The types must not depend on the tuples there.
        """
        faults = []
        for stream, columns in self.evaluator.attributes.items():
            known = [
                pl.DataFrame(schema.empty_table()).schema
                for name, schema in schemas
                if name == stream
            ]
            for column in columns:
                kinds = {str(schema[column]) for schema in known if column in schema}
                kinds -= {"Categorical", "Null"} if "String" in kinds else {"Null"}
                if len(kinds) > 1:
                    faults.append(
                        f"column '{column}' of stream '{stream}' has different types in its"
                        f" sources ({', '.join(sorted(kinds))}); declare one, as in"
                        f" streams.{stream}.columns: {{{column}: number}}"
                    )
        return faults

    def extract(self, rows: Rows, subjects: Subjects, *, learn: bool) -> EventBatch:
        """Extract the events from rows of a stream."""
        config = self.spec.streams[rows.stream]
        column = rows.table.column(config.subject)
        slots, registered = (subjects.learn(column), False) if learn else subjects.find(column)
        times = to_microseconds(rows.table.column(config.time), config)
        types = self.extractors[rows.stream].find_types(rows.table)
        return EventBatch(times, slots, types, rows, registered=registered)
