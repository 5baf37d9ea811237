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
from tacit.ledger.statement import charged, check_charged, subject_id, who

_ROWS = 1 << 18
"""Rows that are made at a time, or those of one window if they are more."""
_PIECES = 1 << 12
"""Charges that are held at a time, if they are of few subjects."""
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


def charges(
    ledger: Ledger, *, subject: str | None = None, private: str | None = None
) -> Iterator[pa.Table]:
    """All charges as rows: one for each release, private pattern, window and subject."""
    with ledger.database.reading() as connection:
        number = None if subject is None else subject_id(connection, subject)
        check_charged(connection, private)
        registry = Registry()
        registry.refresh(connection)
        pieces: list[_Piece] = []
        rows = 0
        for row in charged(connection, private):
            for piece in _cut(row, who(row["ids"], number)):
                pieces.append(piece)
                rows += len(piece)
                if rows >= _ROWS or len(pieces) >= _PIECES:
                    yield _table(pieces, registry.names)
                    pieces, rows = [], 0
        if pieces:
            yield _table(pieces, registry.names)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some windows of a charge."""

    row: Any
    ids: NDArray[np.int64]
    first: int
    windows: int

    def __len__(self) -> int:
        return self.windows * len(self.ids)


def _cut(row: Any, ids: NDArray[np.int64]) -> Iterator[_Piece]:
    """A charge in pieces that are not too long."""
    at_once = max(1, _ROWS // max(1, len(ids)))
    for done in range(0, row["windows"] if len(ids) else 0, at_once):
        windows = min(at_once, row["windows"] - done)
        yield _Piece(row, ids, row["first"] + done * row["slide"], windows)


def _table(pieces: list[_Piece], names: pa.Array) -> pa.Table:
    lengths = [len(piece) for piece in pieces]
    starts = np.concatenate(
        [
            np.repeat(piece.first + np.arange(piece.windows) * piece.row["slide"], len(piece.ids))
            for piece in pieces
        ]
    )
    subjects = np.concatenate([np.tile(piece.ids, piece.windows) for piece in pieces])

    def spread(column: str) -> NDArray[np.int64]:
        return np.repeat(np.array([piece.row[column] for piece in pieces], np.int64), lengths)

    def named(column: str) -> pa.Array:
        values = pa.array([piece.row[column] for piece in pieces]).dictionary_encode()
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
