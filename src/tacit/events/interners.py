"""Interners: tables that map names to numbers, last for the whole run, and only grow.

Both interners number names from 0 in order of first appearance. They look up whole columns in
compiled loops and never rebuild their tables for a batch.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.buffers import allocate
from tacit.events.columns import freeze
from tacit.kernels import compiled

Ints: TypeAlias = NDArray[np.int64]
Numbers: TypeAlias = NDArray[np.int32]
Bytes: TypeAlias = NDArray[np.uint8]
Entries: TypeAlias = NDArray[np.uint64]

UNKNOWN = -1
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
"""The golden ratio in 64 bits: spreads neighbouring values over a table."""
_UPPER = np.uint64(0xFFFFFFFF00000000)
_LEAST = 1024
_CACHED = 1 << 17
"""Entries of a table that fits into the cache of a core."""


class IntegerInterner:
    """Maps integers to numbers: with a direct table if they are dense, else with a hash table.

    Consecutive integers need no table: the number is the difference to the first.
    """

    def __init__(self) -> None:
        self._names = np.empty(_LEAST, np.int64)
        self._table = np.full(2 * _LEAST, UNKNOWN, np.int32)
        self._count = 0
        self._low = 0
        self._direct = np.empty(0, np.int32)
        self._covered = 0
        self._counted = True
        """Whether all covered integers are consecutive."""

    def __len__(self) -> int:
        return self._count

    @property
    def names(self) -> Ints:
        """The integers in the order of their numbers."""
        return self._names[: self._count]

    def find(self, values: Ints | NDArray[np.int32]) -> Numbers:
        """Return the numbers of integers, or UNKNOWN.

        Integers that are their own numbers are returned as they are.
        """
        if self._covered < self._count:
            self._cover()
        plain = self._counted and self._low == 0 and values.dtype == np.int32
        if plain and _all_below(freeze(values), self._count):
            return values.astype(np.int32, copy=False)
        found = allocate(len(values), np.int32)
        if self._counted and self._count:
            _find_counted(freeze(values), self._low, self._count, found)
        elif len(self._direct):
            _find_direct(freeze(values), self._low, self._direct, found)
        else:
            wide = values.astype(np.int64, copy=False)
            _find_integers(freeze(wide), self._names, self._table, found)
        return found

    def learn(self, values: Ints) -> Numbers:
        """Return the numbers of integers; new ones get the next numbers."""
        values, found = freeze(values), allocate(len(values), np.int32)
        done = 0
        while True:
            done, self._count = _learn_integers(
                values, done, self._names, self._table, self._count, found
            )
            if done == len(values):
                return found
            self._names = _extend(self._names, 2 * len(self._names))
            self._table = np.full(2 * len(self._table), UNKNOWN, np.int32)
            _place_integers(self.names, self._table)

    def _cover(self) -> None:
        """Update the direct table; it is empty if it would be too wide."""
        fresh = self._names[self._covered : self._count]
        expected = int(self._names[0]) + np.arange(self._covered, self._count)
        self._counted = self._counted and bool((fresh == expected).all())
        low, high = int(fresh.min()), int(fresh.max())
        if not (self._low <= low and high < self._low + len(self._direct)):
            low, high = int(self.names.min()), int(self.names.max())
            width = high - low + 1
            if width > max(1 << 16, 16 * self._count):
                self._direct = np.empty(0, np.int32)
                self._counted = False
                return
            self._low = low
            # Leave room to grow upwards: new integers are often consecutive.
            self._direct = np.full(width + width // 2, UNKNOWN, np.int32)
            fresh, self._covered = self.names, 0
        self._direct[fresh - self._low] = np.arange(self._covered, self._count, dtype=np.int32)
        self._covered = self._count


class DecimalIndex:
    """Maps integers to the slots of names that are whole numbers, without formatting digits.

    A name counts if it is the canonical form of a 64-bit integer: `7` and `-7`, not `007` or `+7`.
    """

    def __init__(self) -> None:
        self._values = IntegerInterner()
        self._slots = np.empty(0, np.int32)
        self._covered = 0
        """The number of names processed."""

    def add(self, text: Bytes, ends: Ints) -> None:
        """Add the names that are new since the last call, given all names."""
        if self._covered == len(ends) - 1:
            return
        fresh = ends[self._covered :]
        values, written = _read_decimals(text, fresh)
        slots = np.flatnonzero(written).astype(np.int32) + np.int32(self._covered)
        self._values.learn(values[written])
        self._slots = np.concatenate([self._slots, slots])
        self._covered = len(ends) - 1

    def find(self, values: Ints | NDArray[np.int32]) -> Numbers:
        """Return the slots of integers, UNKNOWN if no name is that number."""
        found = self._values.find(values)
        if len(self._slots) == self._covered:
            return found  # a number's place is its slot
        if found is values:
            found = found.copy()
        _translate(found, self._slots)
        return found


class TextInterner:
    """Maps texts, as bytes, to numbers, with a hash table."""

    def __init__(self) -> None:
        self._bytes = np.empty(16 * _LEAST, np.uint8)
        self._ends = np.zeros(_LEAST + 1, np.int64)
        self._hashes = np.empty(_LEAST, np.uint64)
        # Four places for each name: more of them are found at the first place.
        self._table = np.zeros(4 * _LEAST, np.uint64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def names(self) -> tuple[Bytes, Ints]:
        """The concatenated bytes of all names, and the offsets of each."""
        ends = self._ends[: self._count + 1]
        return self._bytes[: ends[-1]], ends

    def find(self, text: Bytes, offsets: NDArray[np.integer]) -> Numbers:
        """Return the numbers of the texts `text[offsets[i]:offsets[i + 1]]`, or UNKNOWN."""
        found = allocate(len(offsets) - 1, np.int32)
        _find_texts(text, offsets, self._bytes, self._ends, self._table, found)
        return found

    def learn(self, text: Bytes, offsets: NDArray[np.integer]) -> Numbers:
        """Return the numbers of texts; new ones get the next numbers."""
        found = allocate(len(offsets) - 1, np.int32)
        done = 0
        while True:
            done, self._count = _learn_texts(
                text, offsets, done, self._bytes, self._ends, self._hashes, self._table,
                self._count, found,
            )  # fmt: skip
            if done == len(found):
                return found
            self._grow(int(offsets[done + 1] - offsets[done]))

    def _grow(self, more: int) -> None:
        """Make room for another name of `more` bytes."""
        needed = int(self._ends[self._count]) + more
        if needed > len(self._bytes):
            self._bytes = _extend(self._bytes, max(needed, 2 * len(self._bytes)))
        if self._count == len(self._hashes):
            self._hashes = _extend(self._hashes, 2 * self._count)
            self._ends = _extend(self._ends, 2 * self._count + 1)
            self._table = np.zeros(2 * len(self._table), np.uint64)
            _place_texts(self._hashes[: self._count], self._table)


def _extend(array: NDArray[Any], length: int) -> NDArray[Any]:
    grown = np.empty(length, array.dtype)
    grown[: len(array)] = array
    return grown


@compiled
def _all_below(values: Numbers, count: int) -> bool:
    """Return whether all values are numbers from 0 on below `count`."""
    most = np.uint32(0)
    for row in range(len(values)):
        most = max(most, np.uint32(values[row]))
    return bool(len(values) == 0 or np.int64(most) < count)


@compiled
def _find_direct(values: NDArray[Any], low: int, direct: Numbers, found: Numbers) -> None:
    width = np.uint64(len(direct))
    for row in range(len(values)):
        place = np.uint64(values[row] - low)
        found[row] = direct[place] if place < width else UNKNOWN


@compiled
def _find_counted(values: NDArray[Any], low: int, count: int, found: Numbers) -> None:
    for row in range(len(values)):
        place = np.uint64(values[row] - low)
        found[row] = np.int32(place) if place < np.uint64(count) else np.int32(UNKNOWN)


@compiled
def _translate(found: Numbers, slots: Numbers) -> None:
    for row in range(len(found)):
        if found[row] != UNKNOWN:
            found[row] = slots[found[row]]


@compiled
def _read_decimals(text: Bytes, ends: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """Return the integer values of names, and which names are canonical 64-bit integers."""
    values = np.zeros(len(ends) - 1, np.int64)
    written = np.zeros(len(ends) - 1, np.bool_)
    for name in range(len(values)):
        begin, end = ends[name], ends[name + 1]
        negative = begin < end and text[begin] == 45
        first = begin + 1 if negative else begin
        digits = end - first
        if digits < 1 or digits > 19 or (text[first] == 48 and (negative or digits > 1)):
            continue
        amount, right = np.uint64(0), True
        for place in range(first, end):
            right &= 48 <= text[place] <= 57
            amount = amount * np.uint64(10) + np.uint64(text[place] - 48)
        if right and amount <= np.uint64(2**63 - 1) + np.uint64(negative):
            values[name] = np.int64(np.uint64(0) - amount) if negative else np.int64(amount)
            written[name] = True
    return values, written


@compiled
def _start(value: np.uint64, table: Numbers) -> np.uint64:
    """Return where the search for a value begins."""
    mixed = (value ^ (value >> np.uint64(32))) * _SPREAD
    return (mixed ^ (mixed >> np.uint64(29))) & np.uint64(len(table) - 1)


@compiled
def _find_integers(values: Ints, names: Ints, table: Numbers, found: Numbers) -> None:
    last = np.uint64(len(table) - 1)
    for row in range(len(values)):
        place = _start(np.uint64(values[row]), table)
        while table[place] != UNKNOWN and names[table[place]] != values[row]:
            place = (place + np.uint64(1)) & last
        found[row] = table[place]


@compiled
def _learn_integers(
    values: Ints, done: int, names: Ints, table: Numbers, count: int, found: Numbers
) -> tuple[int, int]:
    """Number values from row `done` on while there is room; return the row and the count."""
    last = np.uint64(len(table) - 1)
    for row in range(done, len(values)):
        place = _start(np.uint64(values[row]), table)
        while table[place] != UNKNOWN and names[table[place]] != values[row]:
            place = (place + np.uint64(1)) & last
        if table[place] == UNKNOWN:
            if count == len(names):
                return row, count
            names[count] = values[row]
            table[place] = count
            count += 1
        found[row] = table[place]
    return len(values), count


@compiled
def _place_integers(names: Ints, table: Numbers) -> None:
    last = np.uint64(len(table) - 1)
    for number in range(len(names)):
        place = _start(np.uint64(names[number]), table)
        while table[place] != UNKNOWN:
            place = (place + np.uint64(1)) & last
        table[place] = number


@compiled
def _word(text: Bytes, start: np.uint64) -> np.uint64:
    """Return eight bytes as one number; in this form it compiles to a single load."""
    return (
        np.uint64(text[start])
        | np.uint64(text[start + np.uint64(1)]) << np.uint64(8)
        | np.uint64(text[start + np.uint64(2)]) << np.uint64(16)
        | np.uint64(text[start + np.uint64(3)]) << np.uint64(24)
        | np.uint64(text[start + np.uint64(4)]) << np.uint64(32)
        | np.uint64(text[start + np.uint64(5)]) << np.uint64(40)
        | np.uint64(text[start + np.uint64(6)]) << np.uint64(48)
        | np.uint64(text[start + np.uint64(7)]) << np.uint64(56)
    )


@compiled
def _rest(text: Bytes, start: np.uint64, length: np.uint64) -> np.uint64:
    """Return less than eight bytes as one number, without a branch for each if more follow."""
    if start + np.uint64(8) <= np.uint64(len(text)):
        mask = (np.uint64(1) << (np.uint64(8) * length)) - np.uint64(1)
        return np.uint64(_word(text, start) & mask)
    word = np.uint64(0)
    while length > np.uint64(0):
        length -= np.uint64(1)
        word = word << np.uint64(8) | np.uint64(text[start + length])
    return word


@compiled
def _hash(text: Bytes, start: np.uint64, stop: np.uint64) -> np.uint64:
    """Return a text's hash. Indices are unsigned: signed ones would be checked for being < 0."""
    mixed = (stop - start) * _SPREAD
    while stop - start >= np.uint64(8):
        mixed = (mixed ^ _word(text, start)) * _SPREAD
        mixed ^= mixed >> np.uint64(32)
        start += np.uint64(8)
    mixed = (mixed ^ _rest(text, start, stop - start)) * _SPREAD
    return mixed ^ (mixed >> np.uint64(32))


@compiled
def _same(text: Bytes, start: np.uint64, names: Bytes, known: np.uint64, length: np.uint64) -> bool:
    """Return whether `length` bytes are equal in both."""
    while length >= np.uint64(8):
        if _word(text, start) != _word(names, known):
            return False
        start += np.uint64(8)
        known += np.uint64(8)
        length -= np.uint64(8)
    return bool(_rest(text, start, length) == _rest(names, known, length))


@compiled
def _entry(code: np.uint64, number: int) -> np.uint64:
    """Return a table entry: half of a hash, to compare first, and the number plus 1."""
    return (code & _UPPER) | np.uint64(number + 1)


@compiled
def _search(
    text: Bytes,
    start: np.uint64,
    stop: np.uint64,
    code: np.uint64,
    names: Bytes,
    ends: Ints,
    table: Entries,
) -> np.uint64:
    """Return the place of a text in the table, or the empty place where it belongs."""
    last = np.uint64(len(table) - 1)
    place = code & last
    while table[place] != np.uint64(0):
        if (table[place] ^ code) & _UPPER == np.uint64(0):
            number = (table[place] & ~_UPPER) - np.uint64(1)
            known = np.uint64(ends[number])
            length = np.uint64(ends[number + np.uint64(1)]) - known
            if length == stop - start and _same(text, start, names, known, length):
                return place
        place = (place + np.uint64(1)) & last
    return place


@compiled
def _find_texts(
    text: Bytes,
    offsets: NDArray[np.integer],
    names: Bytes,
    ends: Ints,
    table: Entries,
    found: Numbers,
) -> None:
    """Find many texts. If the table is large, hash them in blocks, so that its accesses overlap."""
    if len(table) <= _CACHED:
        for row in range(len(found)):
            start, stop = np.uint64(offsets[row]), np.uint64(offsets[row + 1])
            place = _search(text, start, stop, _hash(text, start, stop), names, ends, table)
            found[row] = np.int64(table[place] & ~_UPPER) - 1
        return
    codes = np.empty(256, np.uint64)
    for first in range(0, len(found), 256):
        beyond = min(first + 256, len(found))
        for row in range(first, beyond):
            codes[row - first] = _hash(text, np.uint64(offsets[row]), np.uint64(offsets[row + 1]))
        for row in range(first, beyond):
            start, stop = np.uint64(offsets[row]), np.uint64(offsets[row + 1])
            place = _search(text, start, stop, codes[row - first], names, ends, table)
            # An empty place is 0, which gives UNKNOWN.
            found[row] = np.int64(table[place] & ~_UPPER) - 1


@compiled
def _learn_texts(
    text: Bytes,
    offsets: NDArray[np.integer],
    done: int,
    names: Bytes,
    ends: Ints,
    hashes: NDArray[np.uint64],
    table: Entries,
    count: int,
    found: Numbers,
) -> tuple[int, int]:
    """Number texts from row `done` on while there is room; return the row and the count."""
    for row in range(done, len(found)):
        start, stop = np.uint64(offsets[row]), np.uint64(offsets[row + 1])
        code = _hash(text, start, stop)
        place = _search(text, start, stop, code, names, ends, table)
        if table[place] == np.uint64(0):
            after = ends[count] + np.int64(stop - start)
            if count == len(hashes) or after > len(names):
                return row, count
            # A loop, since Numba compiles much more code for slice assignments.
            known = np.uint64(ends[count])
            for offset in range(stop - start):
                names[known + offset] = text[start + offset]
            ends[count + 1] = after
            hashes[count] = code
            table[place] = _entry(code, count)
            count += 1
        found[row] = np.int64(table[place] & ~_UPPER) - 1
    return len(found), count


@compiled
def _place_texts(hashes: NDArray[np.uint64], table: Entries) -> None:
    last = np.uint64(len(table) - 1)
    for number in range(len(hashes)):
        place = hashes[number] & last
        while table[place] != np.uint64(0):
            place = (place + np.uint64(1)) & last
        table[place] = _entry(hashes[number], number)
