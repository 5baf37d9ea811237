"""Rows of other tables that acts cover: a change to one of them without an act is found.

An act stores hashes of the rows that it creates or changes, each as a part with a name. A later act
that covers the same part of a row replaces the hash. Every row of a table with covered rows must be
covered, and every row of tables of which all are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tacit.ledger.alchemy import sa
from tacit.ledger.chain import seal

FIELD: Final = "rows"
"""Where the detail of an act has them."""


@dataclass(frozen=True, slots=True)
class CoveredRow:
    """A part of a row, to be covered by an act."""

    table: sa.Table
    key: Mapping[str, Any]
    part: str
    columns: Sequence[str]
    among: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Columns that change without acts, and the values that they may have."""

    def to_list(self, connection: sa.Connection) -> list[Any]:
        """Return it as plain data, with the hash of the row as it is in this transaction."""
        (row,) = _read_rows(connection, self.table.name, self.columns, self.key)
        hashed = seal(self.columns, row).hex()
        among = {name: list(values) for name, values in self.among.items()}
        return [self.table.name, dict(self.key), self.part, list(self.columns), hashed, among]


def find_changed(
    connection: sa.Connection, details: Iterator[str], always: Sequence[sa.Table] = ()
) -> Iterator[tuple[str, str]]:
    """Yield the place of each row that differs from what acts say, and what is wrong with it.

    `details` are those of all acts, in order; every row of the tables `always` must be covered.
    """
    tables: dict[str, dict[tuple[Any, ...], dict[str, list[Any]]]]
    tables = {table.name: {} for table in always}
    keys = {table.name: sorted(table.primary_key.columns.keys()) for table in always}
    for text in details:
        for name, key, part, *rest in json.loads(text).get(FIELD, ()):
            keys[name] = sorted(key)
            own = tables.setdefault(name, {}).setdefault(tuple(key[one] for one in keys[name]), {})
            own[part] = rest
    for name, covered in tables.items():
        rests = [rest for parts in covered.values() for rest in parts.values()]
        columns = {one for columns, _, among in rests for one in (*columns, *among)}
        there = sa.inspect(connection).has_table(name)
        rows = _read_rows(connection, name, sorted({*keys[name], *columns}))
        for row in rows if there else ():
            key = tuple(row[one] for one in keys[name])
            place = _describe(name, key)
            parts = covered.pop(key, None)
            if parts is None:
                yield place, "no act explains it"
            elif not all(_is_same(row, *rest) for rest in parts.values()):
                yield place, "it was changed without an act"
        for key in covered:
            yield _describe(name, key), "an act names it, but it is missing"


def _is_same(
    row: Mapping[str, Any], columns: Sequence[str], hashed: str, among: Mapping[str, Sequence[str]]
) -> bool:
    allowed = all(row[name] in values for name, values in among.items())
    return allowed and seal(columns, row).hex() == hashed


def _read_rows(
    connection: sa.Connection,
    name: str,
    columns: Sequence[str],
    key: Mapping[str, Any] | None = None,
) -> Iterator[dict[str, Any]]:
    """Read columns as they are stored, without their types: bytes, numbers and text."""
    table = sa.table(name, *(sa.column(one) for one in {*columns, *(key or ())}))
    query = sa.select(*(table.c[one] for one in columns))
    for one, value in (key or {}).items():
        query = query.where(table.c[one] == value)
    for row in connection.execute(query).mappings():
        yield {one: _to_plain(value) for one, value in row.items()}


def _to_plain(value: Any) -> Any:
    """Return the same for what databases return differently."""
    if isinstance(value, bool):
        return int(value)
    return bytes(value) if isinstance(value, memoryview) else value


def _describe(table: str, key: Sequence[Any]) -> str:
    """Name a row.

    >>> _describe("tacit_versions", (3, "taxi"))
    'the row 3, taxi of tacit_versions'
    """
    return f"the row {', '.join(map(str, key))} of {table}"
