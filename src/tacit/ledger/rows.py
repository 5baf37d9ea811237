"""Charges as rows, for use in other programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tacit.ledger.ledger import Ledger
from tacit.ledger.registry import Registry
from tacit.ledger.statement import charged_ids, check_charged, find_subject, iterate_charges

_ROWS = 1 << 18
"""Rows per table; more if one window has more."""
_PARTS = 1 << 12
"""The most charges per table, if they have few subjects."""
SCHEMA = pa.schema(
    [
        ("window_start", pa.timestamp("us", tz="UTC")),
        ("window_end", pa.timestamp("us", tz="UTC")),
        ("subject", pa.dictionary(pa.int32(), pa.large_string())),
        ("private", pa.dictionary(pa.int32(), pa.string())),
        ("nano_epsilon", pa.int64()),
        ("release", pa.int64()),
        ("run", pa.dictionary(pa.int32(), pa.string())),
        ("committed", pa.timestamp("us", tz="UTC")),
    ]
)
"""The columns of charges as rows."""


def iterate_rows(
    ledger: Ledger, *, subject: str | None = None, private: str | None = None
) -> Iterator[pa.Table]:
    """Yield all charges as rows: one for each release, private pattern, window and subject."""
    with ledger.database.reading() as connection:
        number = None if subject is None else find_subject(connection, subject)
        check_charged(connection, private)
        registry = Registry()
        registry.refresh(connection)
        parts: list[_ChargePart] = []
        rows = 0
        for row in iterate_charges(connection, private):
            for part in _split(row, charged_ids(row["ids"], number)):
                parts.append(part)
                rows += len(part)
                if rows >= _ROWS or len(parts) >= _PARTS:
                    yield _table(parts, registry.names)
                    parts, rows = [], 0
        if parts:
            yield _table(parts, registry.names)


@dataclass(frozen=True, slots=True)
class _ChargePart:
    """Some windows of a charge."""

    row: Any
    ids: NDArray[np.int64]
    first: int
    windows: int

    def __len__(self) -> int:
        return self.windows * len(self.ids)


def _split(row: Any, ids: NDArray[np.int64]) -> Iterator[_ChargePart]:
    """Split a charge into parts of at most `_ROWS` rows."""
    at_once = max(1, _ROWS // max(1, len(ids)))
    for done in range(0, row["windows"] if len(ids) else 0, at_once):
        windows = min(at_once, row["windows"] - done)
        yield _ChargePart(row, ids, row["first"] + done * row["slide"], windows)


def _table(parts: list[_ChargePart], names: pa.Array) -> pa.Table:
    lengths = [len(part) for part in parts]
    starts = np.concatenate(
        [
            np.repeat(part.first + np.arange(part.windows) * part.row["slide"], len(part.ids))
            for part in parts
        ]
    )
    subjects = np.concatenate([np.tile(part.ids, part.windows) for part in parts])

    def spread(column: str) -> NDArray[np.int64]:
        return np.repeat(np.array([part.row[column] for part in parts], np.int64), lengths)

    def named(column: str) -> pa.Array:
        values = pa.array([part.row[column] for part in parts]).dictionary_encode()
        places = np.repeat(np.asarray(values.indices), lengths)
        return pa.DictionaryArray.from_arrays(pa.array(places, pa.int32()), values.dictionary)

    columns = [
        starts,
        starts + spread("size"),
        pa.DictionaryArray.from_arrays(pa.array(subjects, pa.int32()), names),
        named("private"),
        spread("amount"),
        spread("release"),
        named("run"),
        spread("committed"),
    ]
    arrays = [
        pa.array(column).cast(field.type) if isinstance(column, np.ndarray) else column
        for column, field in zip(columns, SCHEMA, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)
