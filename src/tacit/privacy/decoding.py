"""Noisy presence and public context -> answers: tables as boolean programs, 64 subjects a word.

For each query a table says what to answer for each context and each noisy presence. All tables
together become one program over bit columns: the signals, then the noisy elements.
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
    """How one query is answered and how sure that is, from the bits of some columns.

    A cell is the number whose bit i is column i's.
    """

    query: int
    columns: tuple[Hashable, ...]
    right: NDArray[np.float64]
    """`[cell][answer]`: how likely an answer is right, once it was given."""
    yes: NDArray[np.bool_] | None
    """`[cell]`: what to answer; None where the query is read literally."""


def decoding_program(decoders: Sequence[TableDecoder], numbers: dict[Hashable, int]) -> Program:
    """The program that answers all these queries, given the number of each column."""
    gates = GateGraph()
    return gates.program([_literal(gates, decoder) for decoder in decoders], numbers)


def _literal(gates: GateGraph, decoder: TableDecoder) -> int:
    assert decoder.yes is not None
    columns = [gates.column(name) for name in decoder.columns]
    known: dict[bytes, int] = {}

    def chosen(table: NDArray[np.bool_]) -> int:
        """The last column that matters chooses between the halves of the table."""
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

    return chosen(decoder.yes)


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """How sure a query's answers are, by the bits of numbered columns."""

    columns: NDArray[np.int64]
    right: NDArray[np.float64]
    """`[cell][answer]`, as a decoder has it."""


def tables(decoders: Iterable[TableDecoder], numbers: dict[Hashable, int]) -> dict[int, Table]:
    """The table of each query, given the number of each column."""
    return {
        decoder.query: Table(
            np.array([numbers[name] for name in decoder.columns], np.int64), decoder.right
        )
        for decoder in decoders
    }


@dataclass(frozen=True, slots=True, eq=False)
class Decoded(Certainty):
    """What decoders looked at: bit columns `[window][column][word]`."""

    tables: dict[int, Table]
    columns: NDArray[np.uint64]

    def right(self, query: int, windows: slice, slots: slice, answers: NDArray[np.bool_]) -> Shares:
        """By the table of the query; a query without one is answered exactly."""
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
    """What a table says to the bits of chosen columns, for subjects from one on."""
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
