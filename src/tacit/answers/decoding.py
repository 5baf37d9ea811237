"""Noisy presence and public context -> answers: tables as boolean programs, 64 subjects a word.

For each query a table says what to answer for each context and each noisy presence. All tables
together become one program over bit columns: the signals, then the noisy elements.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.answers.certainty import Certainty, Shares
from tacit.patterns.booleans import FALSE, TRUE, Gates, Program


@dataclass(frozen=True, slots=True, eq=False)
class Decoder:
    """How one query is answered and how sure that is, from the bits of some columns.

    A cell is the number whose bit i is column i's.
    """

    query: int
    columns: tuple[Hashable, ...]
    right: NDArray[np.float64]
    """`[cell][answer]`: how likely an answer is right, once it was given."""
    yes: NDArray[np.bool_] | None
    """`[cell]`: what to answer; None where the query is read literally."""


def decoding_program(decoders: Sequence[Decoder], numbers: dict[Hashable, int]) -> Program:
    """The program that answers all these queries, given the number of each column."""
    gates = Gates()
    return gates.program([_literal(gates, decoder) for decoder in decoders], numbers)


def _literal(gates: Gates, decoder: Decoder) -> int:
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
class Decoded(Certainty):
    """What decoders looked at: bit columns `[window][column][word]`."""

    decoders: dict[int, Decoder]
    numbers: dict[Hashable, int]
    columns: NDArray[np.uint64]

    def right(self, query: int, windows: slice, slots: slice, answers: NDArray[np.bool_]) -> Shares:
        """By the table of the query; a query without one is answered exactly."""
        decoder = self.decoders.get(query)
        if decoder is None:
            return np.ones(answers.shape)
        words = slice(slots.start // 64, -(-slots.stop // 64))
        cells = np.zeros(answers.shape, np.int64)
        for bit, name in enumerate(decoder.columns):
            column = np.ascontiguousarray(self.columns[windows, self.numbers[name], words])
            octets = column.astype("<u8", copy=False).view(np.uint8)
            flat = np.unpackbits(octets, axis=1, bitorder="little")
            begin = slots.start - 64 * words.start
            cells |= flat[:, begin : begin + answers.shape[1]].astype(np.int64) << bit
        return decoder.right[cells, answers.astype(np.int64)]
