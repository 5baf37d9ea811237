"""Rows of a release, ready for many readers: columns of names are coded, and each row is formatted
once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tacit.connectors.writers import format_json_lines

Rows = NDArray[np.int64]
"""Places of rows in their table."""
_OBJECTS: Final = 16 << 10
"""About how many bytes the objects of a table take, however few rows it has."""


@dataclass(frozen=True)
class CodedRows:
    """Rows to select from by name."""

    table: pa.Table
    codes: dict[str, tuple[NDArray[np.int32], pa.Array]]
    """For each column of names, the number of each row's name, -1 for null, and the names."""

    @classmethod
    def of(cls, table: pa.Table, columns: Sequence[str]) -> CodedRows:
        """Code these columns of a table."""
        table = table.unify_dictionaries().combine_chunks()
        codes = {}
        for name in columns:
            column = table[name]
            chunk = column.chunk(0) if column.num_chunks else pa.array([], column.type)
            if not pa.types.is_dictionary(chunk.type):
                chunk = chunk.dictionary_encode()
            codes[name] = (np.asarray(chunk.indices.fill_null(-1)), chunk.dictionary)
        return cls(table, codes)

    def has_same_names(self, other: CodedRows) -> bool:
        """Return whether each row has the same names as that of another table."""
        return all(
            np.array_equal(numbers, other.codes[column][0]) and known.equals(other.codes[column][1])
            for column, (numbers, known) in self.codes.items()
        )

    def choose(self, rows: Rows, column: str, names: Sequence[str] | None) -> Rows:
        """Return those rows that have one of these names; None chooses all."""
        if names is None:
            return rows
        numbers, known = self.codes[column]
        wanted = np.zeros(len(known) + 1, np.bool_)  # the last one is for null
        wanted[self.find_codes(column, names)] = True
        return rows[wanted[numbers[rows]]]

    def find_codes(self, column: str, names: Sequence[str]) -> NDArray[np.int64]:
        """Return the codes of those names that occur."""
        known = self._codes_of_names[column]
        return np.array([known[name] for name in names if name in known], np.int64)

    def format_event(self, name: str, number: int, rows: Rows) -> bytes:
        """Format rows as a server-sent event with this id; nothing if there are no rows."""
        if not rows.size:
            return b""
        if rows[-1] - rows[0] + 1 == rows.size:
            lines = self.lines.slice(int(rows[0]), rows.size)
        else:
            lines = self.lines.take(pa.array(rows))
        _, ends, text = lines.buffers()
        first, end = np.frombuffer(ends, np.int64)[[lines.offset, lines.offset + rows.size]]
        data = memoryview(text)[first : end - 1]  # without the last comma
        begin = b"id: %d\nevent: %b\ndata: [" % (number, name.encode())
        return b"".join((begin, data, b"]\n\n"))

    @cached_property
    def lines(self) -> pa.LargeBinaryArray:
        """Each row as JSON, with a comma; they share one text."""
        text = format_json_lines(self.table)
        ends = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n")) + 1
        places = pa.py_buffer(np.concatenate([np.zeros(1, np.int64), ends]))
        buffers = [None, places, pa.py_buffer(text.replace(b"\n", b","))]
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(ends), buffers)

    @property
    def formatted(self) -> bool:
        """Whether `lines` is there."""
        return "lines" in self.__dict__

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return estimate_size(self.table) + (self.lines.nbytes if self.formatted else 0)

    @cached_property
    def _codes_of_names(self) -> dict[str, dict[str, int]]:
        return {
            column: {name: code for code, name in enumerate(known.to_pylist())}
            for column, (_, known) in self.codes.items()
        }


def estimate_size(table: pa.Table) -> int:
    """Return about how many bytes a table takes, with its objects."""
    return _OBJECTS + int(table.nbytes)
