"""Evaluate boolean queries over bit columns, 64 subjects per word.

All queries together become one graph of AND gates whose edges may be inverted (an OR is an AND
with all edges inverted), so a single kind of step is enough and equal sub-expressions are computed
once. The graph is compiled into a list of steps over a few registers; each step runs over a block
of a column, so that registers stay in the cache.

A *literal* is twice the number of a gate or column, plus one if inverted; gate 0 is false.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.kernels import compiled, inlined

FALSE = 0
TRUE = 1
BLOCK = 256  # words of a column at a time: 2 kB to a register

_GATE, _COPY, _GATE_OUT = 0, 1, 2


class GateGraph:
    """A graph of AND gates over named bit columns; equal gates are merged."""

    def __init__(self) -> None:
        self._inputs: list[tuple[int, int] | None] = [None]
        self._columns: dict[Hashable, int] = {}
        self._gates: dict[tuple[int, int], int] = {}

    def column(self, name: Hashable) -> int:
        """Return the literal of a column."""
        if name not in self._columns:
            self._columns[name] = len(self._inputs)
            self._inputs.append(None)
        return 2 * self._columns[name]

    def all(self, literals: Iterable[int]) -> int:
        """Return the literal that is true where all of these are."""
        distinct = set(literals) - {TRUE}
        if FALSE in distinct or any(literal ^ 1 in distinct for literal in distinct):
            return FALSE
        result = TRUE
        for literal in sorted(distinct):
            result = literal if result == TRUE else self._gate(result, literal)
        return result

    def any(self, literals: Iterable[int]) -> int:
        """Return the literal that is true where one of these is."""
        return self.all(literal ^ 1 for literal in literals) ^ 1

    def program(self, outputs: Sequence[int], numbers: Mapping[Hashable, int]) -> Program:
        """Return the steps that compute these literals, given the number of each column."""
        columns = {gate: numbers[name] for name, gate in self._columns.items()}
        return _lay_out(outputs, columns, self._inputs)

    def _gate(self, left: int, right: int) -> int:
        if (left, right) not in self._gates:
            self._gates[left, right] = len(self._inputs)
            self._inputs.append((left, right))
        return 2 * self._gates[left, right]


@dataclass(frozen=True, slots=True)
class Program:
    """Steps over registers: register 0 is false, then the columns in use, then the rest."""

    used: NDArray[np.int64]
    steps: NDArray[np.int64]
    registers: int
    outputs: int

    def run(self, columns: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """One row of bits for each output, from `columns[window, column, word]`."""
        windows, _, words = columns.shape
        result = np.empty((windows, self.outputs, words), np.uint64)
        if result.size:
            _run(columns, self.used, self.steps, self.registers, result)
        return result


def _lay_out(
    outputs: Sequence[int],
    columns: Mapping[int, int],
    inputs: Sequence[tuple[int, int] | None],
) -> Program:
    """Order the needed gates, and assign each a register until its last use."""
    wanted: dict[int, list[tuple[int, int]]] = {}
    for number, literal in enumerate(outputs):
        wanted.setdefault(literal >> 1, []).append((number, literal & 1))
    uses = _count_uses(wanted, inputs)
    used = sorted(uses.keys() & columns.keys())
    register = {0: 0} | {gate: 1 + place for place, gate in enumerate(used)}
    steps = [
        (_COPY, number, register[gate], 0, flip, 0)
        for gate in (0, *used)
        for number, flip in wanted.get(gate, ())
    ]
    free: list[int] = []
    count = len(register)
    for gate in sorted(uses):
        operands = inputs[gate]
        if operands is None:
            continue
        left, right = operands
        sources = (register[left >> 1], register[right >> 1], left & 1, right & 1)
        for below in {left >> 1, right >> 1}:
            uses[below] -= 1
            if inputs[below] is not None and not uses[below]:
                free.append(register[below])
        results = wanted.get(gate, [])
        if len(results) == 1 and not uses[gate]:
            steps.append((_GATE_OUT + results[0][1], results[0][0], *sources))
            continue
        if not free:
            free.append(count)
            count += 1
        register[gate] = free.pop()
        steps.append((_GATE, register[gate], *sources))
        steps += [(_COPY, number, register[gate], 0, flip, 0) for number, flip in results]
        if not uses[gate]:
            free.append(register[gate])
    return Program(
        np.array([columns[gate] for gate in used], np.int64),
        np.array(steps, np.int64).reshape(-1, 6),
        count,
        len(outputs),
    )


def _count_uses(wanted: Iterable[int], inputs: Sequence[tuple[int, int] | None]) -> dict[int, int]:
    """Return how many gates read each gate or column that the wanted ones depend on."""
    uses = dict.fromkeys(wanted, 0)
    pending = list(uses)
    while pending:
        for below in {literal >> 1 for literal in inputs[pending.pop()] or ()}:
            if below not in uses:
                uses[below] = 0
                pending.append(below)
            uses[below] += 1
    return uses


@compiled
def _run(
    columns: NDArray[np.uint64],
    used: NDArray[np.int64],
    steps: NDArray[np.int64],
    registers: int,
    result: NDArray[np.uint64],
) -> None:
    words = columns.shape[2]
    rows = np.zeros((registers, BLOCK), np.uint64)
    ones = ~np.uint64(0)
    for window in range(columns.shape[0]):
        for begin in range(0, words, BLOCK):
            width = min(BLOCK, words - begin)
            for place in range(len(used)):
                for i in range(width):
                    rows[1 + place, i] = columns[window, used[place], begin + i]
            for step in range(len(steps)):
                kind, target = steps[step, 0], steps[step, 1]
                left = rows[steps[step, 2]]
                right = rows[steps[step, 3]]
                flip_left = ones if steps[step, 4] else np.uint64(0)
                flip_right = ones if steps[step, 5] else np.uint64(0)
                if kind == _GATE:
                    out = rows[target]
                    for i in range(width):
                        out[i] = (left[i] ^ flip_left) & (right[i] ^ flip_right)
                elif kind == _COPY:
                    out = result[window, target, begin : begin + width]
                    for i in range(width):
                        out[i] = left[i] ^ flip_left
                else:
                    out = result[window, target, begin : begin + width]
                    flip = ones if kind > _GATE_OUT else np.uint64(0)
                    for i in range(width):
                        out[i] = ((left[i] ^ flip_left) & (right[i] ^ flip_right)) ^ flip


def to_columns(words: NDArray[np.uint64], types: int) -> NDArray[np.uint64]:
    """Turn `words[window, subject, word]` of event types into `[window, type, subjects // 64]`."""
    windows, subjects, _ = words.shape
    columns = np.empty((windows, types, -(-subjects // 64)), np.uint64)
    if columns.size:
        _transpose(words, columns)
    return columns


@inlined
def transpose_square(square: NDArray[np.uint64], wide: int) -> None:
    """Transpose 64 by 64 bits: swap halves, then quarters, down to single bits.

    Only the first `wide` rows are needed: after a swap of distance d, others are skipped.
    """
    # One call for each distance: constants compile to vector instructions.
    _swap(square, wide, 32, np.uint64(0xFFFFFFFF))
    _swap(square, wide, 16, np.uint64(0xFFFF0000FFFF))
    _swap(square, wide, 8, np.uint64(0xFF00FF00FF00FF))
    _swap(square, wide, 4, np.uint64(0xF0F0F0F0F0F0F0F))
    _swap(square, wide, 2, np.uint64(0x3333333333333333))
    _swap(square, wide, 1, np.uint64(0x5555555555555555))


@inlined
def spread_square(square: NDArray[np.uint64], wide: int) -> None:
    """Transpose 64 by 64 bits, of which only the first `wide` rows are not zero.

    Swaps go from single bits to halves here: before a swap of distance d, other rows are skipped.
    """
    _swap(square, wide, 1, np.uint64(0x5555555555555555))
    _swap(square, wide, 2, np.uint64(0x3333333333333333))
    _swap(square, wide, 4, np.uint64(0xF0F0F0F0F0F0F0F))
    _swap(square, wide, 8, np.uint64(0xFF00FF00FF00FF))
    _swap(square, wide, 16, np.uint64(0xFFFF0000FFFF))
    _swap(square, wide, 32, np.uint64(0xFFFFFFFF))


@inlined
def _swap(square: NDArray[np.uint64], wide: int, distance: int, mask: np.uint64) -> None:
    """Swap the parts of a square that are so far apart, for blocks that begin before `wide`."""
    shift = np.uint64(distance)
    for base in range(0, wide, 2 * distance):
        upper = square[base : base + distance]
        lower = square[base + distance : base + 2 * distance]
        for i in range(distance):
            swap = ((upper[i] >> shift) ^ lower[i]) & mask
            lower[i] ^= swap
            upper[i] ^= swap << shift


@compiled
def _transpose(words: NDArray[np.uint64], columns: NDArray[np.uint64]) -> None:
    """Transpose squares of 64 by 64 bits."""
    windows, subjects, _ = words.shape
    types = columns.shape[1]
    square = np.empty(64, np.uint64)
    for window in range(windows):
        for block in range(columns.shape[2]):
            count = min(64, subjects - 64 * block)
            for first in range(0, types, 64):
                wide = min(64, types - first)
                for i in range(count):
                    square[i] = words[window, 64 * block + i, first // 64]
                square[count:] = 0
                transpose_square(square, wide)
                for i in range(wide):
                    columns[window, first + i, block] = square[i]


def pack_rows(bits: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Return `[row][word]`, lowest bit first, from `[row][bit]`."""
    rows, width = bits.shape
    padded = np.zeros((rows, -(-width // 64) * 64), np.bool_)
    padded[:, :width] = bits
    words = np.packbits(padded, axis=1, bitorder="little").view("<u8")
    return words.astype(np.uint64, copy=False).reshape(rows, -(-width // 64))


def scatter(
    keys: NDArray[np.int64],
    results: NDArray[np.bool_],
    default: NDArray[np.bool_],
    windows: int,
    subjects: int,
) -> NDArray[np.uint64]:
    """Bit columns `[window, result, subjects // 64]` from rows for some windows and subjects.

    A key is `window * subjects + subject`; a subject without a row gets the default.
    """
    columns = np.zeros((windows, len(default), -(-subjects // 64)), np.uint64)
    columns[:, default] = ~np.uint64(0)
    if columns.size:
        _flip(keys, results, default, subjects, columns)
    return columns


@compiled
def _flip(
    keys: NDArray[np.int64],
    results: NDArray[np.bool_],
    default: NDArray[np.bool_],
    subjects: int,
    columns: NDArray[np.uint64],
) -> None:
    """Gather the bits that differ from the default until a row belongs to another word."""
    flips = np.zeros(len(default), np.uint64)
    if len(keys) == 0:
        return
    window, word = int(keys[0] // subjects), int(keys[0] % subjects // 64)
    for row in range(len(keys)):
        next_window, subject = int(keys[row] // subjects), int(keys[row] % subjects)
        if next_window != window or subject // 64 != word:
            _take(flips, columns, window, word)
            window, word = next_window, subject // 64
        shift = np.uint64(subject % 64)
        for place in range(len(default)):
            flips[place] ^= np.uint64(results[row, place] ^ default[place]) << shift
    _take(flips, columns, window, word)


@compiled
def _take(flips: NDArray[np.uint64], columns: NDArray[np.uint64], window: int, word: int) -> None:
    for place in range(len(flips)):
        columns[window, place, word] ^= flips[place]
        flips[place] = 0
