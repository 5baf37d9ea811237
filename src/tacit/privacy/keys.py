"""A hash table that numbers keys of several 64-bit words."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tacit.kernels import lean

_FREE = -1
_NARROW = 12
"""Keys of at most so many bits are looked up in a table of all of them."""
_SEED = np.uint64(0x9E3779B97F4A7C15)


class KeyTable:
    """Numbers distinct keys from 0 on; keys are compared in full, not by hash.

    If keys have few `bits`, there is a table of all of them instead of a hash table.
    """

    def __init__(self, width: int, bits: int | None = None) -> None:
        self.known = np.empty((0, width), np.uint64)
        self._table = np.full(1024, _FREE, np.int32)
        narrow = bits is not None and bits <= _NARROW
        self._direct = np.full(1 << bits if bits is not None and narrow else 0, _FREE, np.int32)

    def __len__(self) -> int:
        return len(self.known)

    def look_up(self, keys: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Return the number of each key, or -1 for a key that was not added."""
        found = np.empty(len(keys), np.int32)
        if len(self._direct):
            _find_direct(keys.reshape(-1), self._direct, found)
        elif keys.shape[1] == 1:
            every, last = ~np.uint64(0), np.uint64(len(self._table) - 1)
            known = self.known.reshape(-1)
            find_keys(keys.reshape(-1), np.uint64(0), every, self._table, last, known, found)
        else:
            _find(keys, self.known, self._table, found)
        return found

    @property
    def places(self) -> NDArray[np.int32]:
        """The number of each key at the place of its hash."""
        return self._table

    @property
    def largest_hash(self) -> int:
        """The last place."""
        return len(self._table) - 1

    def add(self, keys: NDArray[np.uint64]) -> None:
        """Add distinct keys that are not in the table yet."""
        if len(self._direct):
            self._direct[keys[:, 0]] = np.arange(len(self.known), len(self.known) + len(keys))
        self.known = np.concatenate([self.known, keys])
        if 2 * len(self.known) > len(self._table):
            size = 1 << (4 * len(self.known)).bit_length()
            self._table = np.full(size, _FREE, np.int32)
            _insert(self.known, 0, self._table)
        else:
            _insert(self.known, len(self.known) - len(keys), self._table)


@lean
def _mix(mixed: np.uint64, word: np.uint64) -> np.uint64:
    mixed = (mixed ^ word) * np.uint64(0xBF58476D1CE4E5B9)
    return mixed ^ (mixed >> np.uint64(29))


@lean
def _finish(mixed: np.uint64) -> np.uint64:
    mixed *= np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(32))


@lean
def _hash(key: NDArray[np.uint64]) -> np.uint64:
    mixed = _SEED
    for word in range(len(key)):
        mixed = _mix(mixed, key[word])
    return _finish(mixed)


@lean
def _same(left: NDArray[np.uint64], right: NDArray[np.uint64]) -> bool:
    different = np.uint64(0)
    for word in range(len(left)):
        different |= left[word] ^ right[word]
    return bool(different == 0)


@lean
def _find(
    keys: NDArray[np.uint64],
    known: NDArray[np.uint64],
    table: NDArray[np.int32],
    found: NDArray[np.int32],
) -> None:
    mask = np.uint64(len(table) - 1)
    for i in range(len(keys)):
        place = _hash(keys[i]) & mask
        number = table[place]
        while number != _FREE and not _same(known[number], keys[i]):
            place = (place + np.uint64(1)) & mask
            number = table[place]
        found[i] = number


@lean
def _find_direct(
    keys: NDArray[np.uint64], direct: NDArray[np.int32], found: NDArray[np.int32]
) -> None:
    for i in range(len(keys)):
        found[i] = direct[keys[i]]


@lean
def find_keys(
    words: NDArray[np.uint64],
    shift: np.uint64,
    mask: np.uint64,
    places: NDArray[np.int32],
    largest_hash: np.uint64,
    known: NDArray[np.uint64],
    found: NDArray[np.int32],
) -> None:
    """Find keys that are some bits of words; a table's places and keys come first in the arrays."""
    for i in range(len(words)):
        key = (words[i] >> shift) & mask
        place = _finish(_mix(_SEED, key)) & largest_hash
        number = places[place]
        while number != _FREE and known[number] != key:
            place = (place + np.uint64(1)) & largest_hash
            number = places[place]
        found[i] = number


@lean
def _insert(known: NDArray[np.uint64], first: int, table: NDArray[np.int32]) -> None:
    mask = np.uint64(len(table) - 1)
    for number in range(first, len(known)):
        place = _hash(known[number]) & mask
        while table[place] != _FREE:
            place = (place + np.uint64(1)) & mask
        table[place] = number
