"""Encode columns as pages of Parquet: dictionaries, runs and bits.

The encodings are those of the format's specification (parquet-format, Encodings.md). Answers are
highly regular: times and subjects come in runs, queries in a cycle, confidences have few values.
Kernels that write runs and bits directly take a fraction of the time of a general writer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tacit.kernels import compiled

PLAIN, RLE, DELTA, DICTIONARY = 0, 3, 5, 8
"""The numbers of encodings in the format."""
_MOST_VALUES: Final = 1 << 14
"""The most distinct numbers that go into a dictionary."""
_SLOTS: Final = 1 << 16
_LITERAL: Final = 8
"""Values that are packed together; longer repetitions are runs."""
_BLOCK, _MINI = 128, 32
"""Differences in a block, and in each of its parts."""


@dataclass(frozen=True, slots=True)
class EncodedColumn:
    """The pages of a column in one row group, not compressed."""

    data: bytes
    encoding: int
    dictionary: bytes | None = None
    """The values of a dictionary, one after the other."""
    distinct: int = 0
    """The number of values in the dictionary."""
    bounds: tuple[bytes, bytes] | None = None
    """The smallest and the largest value."""


def can_encode(kind: pa.DataType) -> bool:
    """Return whether columns of this type can be encoded here."""
    types = pa.types
    if types.is_dictionary(kind):
        return bool(types.is_string(kind.value_type) or types.is_large_string(kind.value_type))
    instant = types.is_timestamp(kind) and kind.unit == "us"
    return bool(instant or kind in (pa.int64(), pa.bool_(), pa.float32()))


def encode_column(column: pa.Array) -> EncodedColumn:
    """Encode a column of a row group; each field may have nulls."""
    levels = _encode_levels(column)
    if column.null_count:
        column = column.drop_null()
    kind = column.type
    if pa.types.is_dictionary(kind):
        indices = column.indices.to_numpy(zero_copy_only=False).astype(np.int32, copy=False)
        return _encode_dictionary(
            levels, indices, _encode_texts(column.dictionary), len(column.dictionary)
        )
    if pa.types.is_boolean(kind):
        return EncodedColumn(levels + _encode_bits(column), PLAIN)
    if kind == pa.float32():
        return _encode_floats(levels, column.to_numpy())
    values = column.cast(pa.int64()).to_numpy()
    if pa.types.is_timestamp(kind):
        return _encode_times(levels, values)
    return EncodedColumn(levels + _encode_differences(values), DELTA, bounds=_find_bounds(values))


def shrink_dictionary(column: pa.DictionaryArray) -> pa.DictionaryArray:
    """Return the same values with a dictionary of these alone, in the order of their first rows."""
    if column.null_count:
        return column
    indices = column.indices.to_numpy(zero_copy_only=False).astype(np.int32, copy=False)
    numbers = np.empty(len(indices), np.int32)
    used = np.empty(min(len(column.dictionary), len(indices)), np.int32)
    found = _renumber(indices, np.full(len(column.dictionary), -1, np.int32), used, numbers)
    return pa.DictionaryArray.from_arrays(numbers, column.dictionary.take(pa.array(used[:found])))


def _find_runs(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return where each run of equal values begins."""
    return np.concatenate([[0], np.flatnonzero(values[1:] != values[:-1]) + 1])


def _find_bounds(values: NDArray[np.int64]) -> tuple[bytes, bytes] | None:
    return (values.min().tobytes(), values.max().tobytes()) if len(values) else None


def _encode_levels(column: pa.Array) -> bytes:
    """Encode which values are there: one run if all of them are."""
    if not column.null_count:
        levels = encode_varint(len(column) << 1) + b"\1"
    else:
        present = np.packbits(column.is_valid().to_numpy(zero_copy_only=False), bitorder="little")
        levels = encode_varint(len(present) << 1 | 1) + present.tobytes()
    return len(levels).to_bytes(4, "little") + levels


def _encode_bits(column: pa.BooleanArray) -> bytes:
    """Encode booleans as bits, the first one lowest: Arrow stores them in the same way."""
    bits = column.buffers()[1]
    if column.offset % 8 or bits is None:
        flags = column.to_numpy(zero_copy_only=False)
        return np.packbits(flags, bitorder="little").tobytes()
    octets = bytearray(bits[column.offset // 8 :][: -(-len(column) // 8)])
    if len(column) % 8:
        octets[-1] &= (1 << len(column) % 8) - 1
    return bytes(octets)


def _encode_texts(texts: pa.Array) -> bytes:
    """Encode the values of a dictionary: each with its length before it."""
    texts = texts.cast(pa.large_string())
    _, offsets, data = texts.buffers()
    if not len(texts):
        return b""
    ends = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    octets = np.empty(int(ends[-1] - ends[0]) + 4 * len(texts), np.uint8)
    given = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    _write_texts(given, ends, octets)
    return octets.tobytes()


def _encode_floats(levels: bytes, values: NDArray[np.float32]) -> EncodedColumn:
    numbers = np.empty(len(values), np.int32)
    distinct = np.empty(_MOST_VALUES, np.uint32)
    found = _number_values(values.view(np.uint32), distinct, numbers)
    if found < 0:
        return EncodedColumn(levels + values.tobytes(), PLAIN)
    return _encode_dictionary(levels, numbers, distinct[:found].tobytes(), found)


def _encode_times(levels: bytes, values: NDArray[np.int64]) -> EncodedColumn:
    """Encode times as a dictionary if they come in runs, else as differences."""
    runs = _find_runs(values) if len(values) else np.empty(0, np.int64)
    if len(runs) > _MOST_VALUES:
        differences = levels + _encode_differences(values)
        return EncodedColumn(differences, DELTA, bounds=_find_bounds(values))
    distinct, numbers = np.unique(values[runs], return_inverse=True)
    lengths = np.diff(runs, append=len(values))
    indices = np.repeat(numbers.astype(np.int32), lengths)
    return _encode_dictionary(
        levels, indices, distinct.tobytes(), len(distinct), _find_bounds(distinct)
    )


def _encode_dictionary(
    levels: bytes,
    indices: NDArray[np.int32],
    dictionary: bytes,
    distinct: int,
    bounds: tuple[bytes, bytes] | None = None,
) -> EncodedColumn:
    width = max(1, (distinct - 1).bit_length())
    # A run has up to 4 bytes of value and 5 of length, for at least 8 values.
    octets = np.empty(16 + len(indices) * width // 8 + 2 * len(indices), np.uint8)
    indices = indices.view()
    indices.flags.writeable = False  # some are already: the kernel is compiled for one type
    size = _write_hybrid(indices, width, octets)
    data = levels + bytes([width]) + octets[:size].tobytes()
    return EncodedColumn(data, DICTIONARY, dictionary, distinct, bounds)


def _encode_differences(values: NDArray[np.int64]) -> bytes:
    """Encode integers by their differences, packed in blocks."""
    head = encode_varint(_BLOCK) + encode_varint(_BLOCK // _MINI) + encode_varint(len(values))
    head += encode_varint(encode_zigzag(int(values[0]) if len(values) else 0))
    blocks = -(-max(0, len(values) - 1) // _BLOCK)
    octets = np.empty(blocks * (10 + _BLOCK // _MINI + 8 * _BLOCK) + 8, np.uint8)
    size = _write_differences(values, octets)
    return head + octets[:size].tobytes()


def encode_varint(number: int) -> bytes:
    """Encode a natural number, seven bits to a byte, lowest first."""
    octets = bytearray()
    while number > 127:
        octets.append(number & 127 | 128)
        number >>= 7
    octets.append(number)
    return bytes(octets)


def encode_zigzag(number: int) -> int:
    """Map an integer to a natural number: 0, -1, 1, -2, ... become 0, 1, 2, 3, ..."""
    return number << 1 if number >= 0 else (-number << 1) - 1


@compiled
def _renumber(
    indices: NDArray[np.int32],
    known: NDArray[np.int32],
    used: NDArray[np.int32],
    numbers: NDArray[np.int32],
) -> int:
    """Number the values that occur in order of appearance; return how many there are.

    `known` has the new number of each value, -1 at first; `used` gets the old ones.
    """
    found = 0
    for i in range(len(indices)):
        index = indices[i]
        if known[index] < 0:
            known[index] = found
            used[found] = index
            found += 1
        numbers[i] = known[index]
    return found


@compiled
def _number_values(
    given: NDArray[np.uint32], distinct: NDArray[np.uint32], numbers: NDArray[np.int32]
) -> int:
    """Number the distinct values in order of appearance; return -1 if there are too many."""
    table = np.full(_SLOTS, -1, np.int32)
    found = 0
    for i in range(len(given)):
        value = given[i]
        slot = (np.uint64(value) * np.uint64(2654435769) >> np.uint64(16)) & np.uint64(_SLOTS - 1)
        while table[slot] >= 0 and distinct[table[slot]] != value:
            slot = (slot + np.uint64(1)) & np.uint64(_SLOTS - 1)
        if table[slot] < 0:
            if found == len(distinct):
                return -1
            table[slot] = found
            distinct[found] = value
            found += 1
        numbers[i] = table[slot]
    return found


@compiled
def _write_texts(
    data: NDArray[np.uint8], ends: NDArray[np.int64], octets: NDArray[np.uint8]
) -> None:
    """Write each text after its length in four bytes."""
    place = 0
    for number in range(len(ends) - 1):
        size = ends[number + 1] - ends[number]
        for byte in range(4):
            octets[place + byte] = (size >> (8 * byte)) & 255
        place += 4
        for byte in range(size):
            octets[place + byte] = data[ends[number] + byte]
        place += size


@compiled
def _write_varint(number: int, octets: NDArray[np.uint8], place: int) -> int:
    """Write a number of at most 64 bits, seven bits to a byte; return the place after it."""
    rest = np.uint64(number)
    while rest > np.uint64(127):
        octets[place] = (rest & np.uint64(127)) | np.uint64(128)
        rest >>= np.uint64(7)
        place += 1
    octets[place] = rest
    return place + 1


@compiled
def _write_packed(
    indices: NDArray[np.int32],
    first: int,
    last: int,
    width: int,
    octets: NDArray[np.uint8],
    place: int,
) -> int:
    """Write values as bits, padded with zeros to a multiple of eight values."""
    groups = (last - first + 7) // 8
    place = _write_varint(groups << 1 | 1, octets, place)
    for group in range(groups):
        begin = first + 8 * group
        word, filled = np.uint64(0), 0
        for i in range(begin, begin + 8):
            if i < last:
                word |= np.uint64(indices[i]) << np.uint64(filled)
            filled += width
            if filled > 32:  # the next value might not fit
                while filled >= 8:
                    octets[place] = word & np.uint64(255)
                    word >>= np.uint64(8)
                    filled -= 8
                    place += 1
        while filled:
            octets[place] = word & np.uint64(255)
            word >>= np.uint64(8)
            filled -= 8
            place += 1
    return place


@compiled
def _write_hybrid(indices: NDArray[np.int32], width: int, octets: NDArray[np.uint8]) -> int:
    """Write values as runs where they repeat, and as bits elsewhere; return the bytes."""
    place = first = i = 0
    while i < len(indices):
        end = i + 1
        while end < len(indices) and indices[end] == indices[i]:
            end += 1
        # Bits are written for multiples of eight values, so they may take part of the run.
        begin = i + ((first - i) & (_LITERAL - 1))
        if end - begin >= _LITERAL:
            if begin > first:
                place = _write_packed(indices, first, begin, width, octets, place)
            place = _write_varint((end - begin) << 1, octets, place)
            for byte in range((width + 7) // 8):
                octets[place] = (indices[i] >> (8 * byte)) & 255
                place += 1
            first = end
        i = end
    if first < len(indices):
        place = _write_packed(indices, first, len(indices), width, octets, place)
    return place


@compiled
def _write_differences(values: NDArray[np.int64], octets: NDArray[np.uint8]) -> int:
    """Write blocks of differences: the least one, the widths of its parts, and the rest as bits."""
    place, count = 0, len(values) - 1
    for first in range(0, count, _BLOCK):
        last = min(first + _BLOCK, count)
        least = values[first + 1] - values[first]
        for i in range(first + 1, last):
            least = min(least, values[i + 1] - values[i])
        place = _write_varint((least << 1) ^ (least >> 63), octets, place)
        widths = place
        place += _BLOCK // _MINI
        for part in range(_BLOCK // _MINI):
            begin, end = first + part * _MINI, min(first + (part + 1) * _MINI, last)
            most = np.uint64(0)
            for i in range(begin, end):
                most |= np.uint64(values[i + 1] - values[i] - least)
            width = 0
            while width < 64 and most >> np.uint64(width) != np.uint64(0):
                width += 1
            octets[widths + part] = width
            for byte in range(_MINI * width // 8):
                octets[place + byte] = 0
            for i in range(begin, end):
                rest = np.uint64(values[i + 1] - values[i] - least)
                for bit in range(width):
                    if rest >> np.uint64(bit) & np.uint64(1):
                        spot = (i - begin) * width + bit
                        octets[place + spot // 8] |= np.uint8(1 << (spot % 8))
            if begin < end:
                place += _MINI * width // 8
    return place


def list_encodings(column: EncodedColumn) -> Sequence[int]:
    """Return the encodings of all pages of a column."""
    return (PLAIN, RLE, column.encoding) if column.encoding != PLAIN else (PLAIN, RLE)
