"""Decode noisy presence and public context into answers, 64 subjects per word.

A table per query has the answer for each context and noisy presence. All tables are compiled into
one boolean program over bit columns: the signals, then the noisy elements.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.kernels import compiled
from tacit.patterns.booleans import FALSE, TRUE, GateGraph, Program
from tacit.privacy.certainty import Certainty, Shares


@dataclass(frozen=True, slots=True, eq=False)
class TableDecoder:
    """The answers to one query and their confidence, by the bits of some columns.

    A cell is a number; its bit i is the bit of column i.
    """

    query: int
    columns: tuple[Hashable, ...]
    right: NDArray[np.float64]
    """`[cell][answer]`: how likely that answer is right."""
    yes: NDArray[np.bool_] | None
    """`[cell]`: the answer; None if the query is read literally."""


def compile_decoders(decoders: Sequence[TableDecoder], numbers: dict[Hashable, int]) -> Program:
    """Compile a program that answers all these queries, given the number of each column."""
    gates = GateGraph()
    tables = [
        compile_table(gates, decoder.columns, decoder.yes)
        for decoder in decoders
        if decoder.yes is not None
    ]
    assert len(tables) == len(decoders)
    return gates.program(tables, numbers)


def compile_table(gates: GateGraph, names: Sequence[Hashable], yes: NDArray[np.bool_]) -> int:
    """Build the gate of a table: `yes[cell]`, where bit i of a cell is the bit of column i."""
    columns = [gates.column(name) for name in names]
    known: dict[bytes, int] = {}

    def chosen(table: NDArray[np.bool_]) -> int:
        """Build the gate for a table: its last column selects one of its halves."""
        if table.all():
            return TRUE
        if not table.any():
            return FALSE
        key = table.tobytes()
        if key not in known:
            column = columns[len(table).bit_length() - 2]
            low, high = chosen(table[: len(table) // 2]), chosen(table[len(table) // 2 :])
            known[key] = (
                low
                if low == high
                else gates.any([gates.all([column, high]), gates.all([column ^ 1, low])])
            )
        return known[key]

    return chosen(yes)


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The confidence of a query's answers, by the bits of numbered columns."""

    columns: NDArray[np.int64]
    right: NDArray[np.float64]
    """`[cell][answer]`, as in `TableDecoder`."""


def build_tables(
    decoders: Iterable[TableDecoder], numbers: dict[Hashable, int]
) -> dict[int, Table]:
    """Return the confidence table of each query, given the number of each column."""
    return {
        decoder.query: Table(
            np.array([numbers[name] for name in decoder.columns], np.int64), decoder.right
        )
        for decoder in decoders
    }


@dataclass(frozen=True, slots=True, eq=False)
class TableCertainty(Certainty):
    """The bit columns that decoders used, `[window][column][word]`, and their tables."""

    tables: dict[int, Table]
    columns: NDArray[np.uint64]

    def compute_confidence(
        self, query: int, windows: slice, slots: slice, answers: NDArray[np.bool_]
    ) -> Shares:
        """Look the cells up in the query's table; a query without one is exact."""
        table = self.tables.get(query)
        if table is None:
            return np.ones(answers.shape)
        result = np.empty(answers.shape)
        columns = self.columns[windows]
        _look_up(columns, table.columns, slots.start, answers, table.right, result)
        return result


@compiled
def _look_up(
    columns: NDArray[np.uint64],
    chosen: NDArray[np.int64],
    begin: int,
    answers: NDArray[np.bool_],
    right: NDArray[np.float64],
    result: NDArray[np.float64],
) -> None:
    """Look up the confidence for the bits of the chosen columns, for subjects from `begin` on."""
    windows, subjects = answers.shape
    for window in range(windows):
        for place in range(subjects):
            slot = begin + place
            word, bit = slot >> 6, np.uint64(slot & 63)
            cell = np.int64(0)
            for number in range(len(chosen)):
                found = columns[window, chosen[number], word] >> bit & np.uint64(1)
                cell |= np.int64(found) << number
            result[window, place] = right[cell, np.int64(answers[window, place])]
