"""Numbers in Parquet, decoded by compiled loops: twice as fast as the libraries.

A column of a row group is a chunk: pages, each with a header, the first of them often the
dictionary that the others refer to. What is understood here is what nearly all files of numbers
are: plain or by dictionary, not compressed or with Snappy, and no value missing. Whatever is
otherwise, or damaged, is left to others: `decode` then says FAILED.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.connectors.parquet.snappy import FAILED, SLACK, decompress
from tacit.connectors.parquet.words import Bytes, copy_bytes, whole, word_at
from tacit.kernels import compiled

Ints: TypeAlias = NDArray[np.int64]
Numbers: TypeAlias = (
    NDArray[np.uint8] | NDArray[np.uint16] | NDArray[np.uint32] | NDArray[np.uint64]
)

_MOST_BYTES = 1 << 26
"""What a page has at most, to be decoded here."""
_DEEPEST = 4
"""Structures within structures that a page's header may have."""

# What stands in a page's header, by the numbers that the format gives to its fields: for itself,
# and in the structure for its kind of page.
_KIND, _SIZE, _PACKED = 1, 2, 3
_COUNT, _ENCODING = 1, 2
_NULLS_2, _ENCODING_2, _DEFINITIONS_2, _REPETITIONS_2, _COMPRESSED_2 = 2, 4, 5, 6, 7

_DATA, _DICTIONARY, _DATA_2 = 0, 2, 3
_PLAIN, _BY_OLD_DICTIONARY, _BY_DICTIONARY = 0, 2, 8


@compiled
def decode(
    data: Bytes, begin: int, end: int, snappy: bool, optional: bool, width: int, into: Numbers
) -> int:
    """Decode the chunk `data[begin:end]` of values of `width` bytes; their number, or FAILED.

    Of each value, as many of its lower bytes are kept as fit into an element of `into`.
    """
    fields = np.zeros((2, 16), np.int64)
    page = np.empty(1 << 18, np.uint8)
    dictionary, entries = np.empty(1, into.dtype), 0
    done, at = 0, begin
    while done < len(into):
        at = _header(data, at, end, fields)
        if at == FAILED or not 0 <= fields[0, _PACKED] <= end - at:
            return FAILED
        if not 0 <= fields[0, _SIZE] <= _MOST_BYTES:
            return FAILED
        if fields[0, _SIZE] + SLACK > len(page):
            page = np.empty(fields[0, _SIZE] + SLACK, np.uint8)
        size = _content(data, at, fields, snappy, page)
        at += whole(fields[0, _PACKED])
        kind, count, encoding = fields[0, _KIND], whole(fields[1, _COUNT]), fields[1, _ENCODING]
        if size == FAILED or count < 0:
            return FAILED
        if kind == _DICTIONARY:
            if encoding not in (_PLAIN, _BY_OLD_DICTIONARY) or count > size // width:
                return FAILED
            room = 2
            while room < count:
                room *= 2
            dictionary, entries = np.empty(room, into.dtype), count
            _plain(page, 0, width, dictionary, 0, count)
            continue
        first = 0
        if kind == _DATA_2:
            encoding = fields[1, _ENCODING_2]
        elif kind == _DATA and optional:
            first = _after_levels(page, size, count)
        elif kind != _DATA:
            return FAILED
        if first == FAILED or count > len(into) - done:
            return FAILED
        if encoding == _PLAIN:
            if count > (size - first) // width:
                return FAILED
            _plain(page, first, width, into, done, count)
        elif encoding in (_BY_DICTIONARY, _BY_OLD_DICTIONARY):
            if not _look_up(page, first, size, dictionary, entries, into, done, count):
                return FAILED
        else:
            return FAILED
        done += count
    return done


@compiled
def _header(data: Bytes, at: int, end: int, fields: Ints) -> int:
    """Read a page's header into `fields`; where the page begins, or FAILED."""
    fields[:] = 0
    fields[1, _COMPRESSED_2] = 1  # unless it says otherwise
    last = np.zeros(_DEEPEST, np.int64)
    depth = 0
    while at < end:
        head = whole(data[at])
        at += 1
        if head == 0:
            if depth == 0:
                return at
            depth -= 1
            continue
        kind, step = head & 15, head >> 4
        if step:
            last[depth] += step
        else:
            number, at = _varint(data, at, end)
            last[depth] = number >> 1
        level, field, value = depth, last[depth], whole(0)
        if kind <= 2:  # true or false
            value = kind & 1
        elif kind == 3:  # a byte
            at += 1
        elif kind <= 6:  # whole numbers
            number, at = _varint(data, at, end)
            value = (number >> 1) ^ -(number & 1)
        elif kind == 7:  # a floating-point number
            at += 8
        elif kind == 8:  # bytes
            number, at = _varint(data, at, end)
            at += min(number, end - at)
        elif kind == 12 and depth + 1 < _DEEPEST:  # a structure
            depth += 1
            last[depth] = 0
        else:
            return FAILED
        if level < 2 and field < 16:
            fields[level, field] = value
    return FAILED


@compiled
def _content(data: Bytes, at: int, fields: Ints, snappy: bool, page: Bytes) -> int:
    """Bring what is in a page into `page`, decompressed; its size, or FAILED.

    What says which values are there stands before it in pages of the second kind, and is left
    out: their headers tell whether any is missing.
    """
    size, end, levels = whole(fields[0, _SIZE]), at + whole(fields[0, _PACKED]), 0
    if fields[0, _KIND] == _DATA_2:
        levels = whole(fields[1, _DEFINITIONS_2])
        snappy = snappy and fields[1, _COMPRESSED_2] == 1
        if fields[1, _NULLS_2] != 0 or fields[1, _REPETITIONS_2] != 0:
            return FAILED
        if not 0 <= levels <= min(size, end - at):
            return FAILED
    at, size = at + levels, size - levels
    if snappy:
        return decompress(data, at, end, page, size)
    if size != end - at:
        return FAILED
    copy_bytes(data, at, page, 0, size)
    return size


@compiled
def _varint(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """A number of as many bytes as it takes, and where it ends; 0 and `end` if it is damaged."""
    number, shift = whole(0), 0
    while at < end and shift <= 28:
        byte = whole(data[at])
        at += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return number, at
    return whole(0), end


@compiled
def _after_levels(page: Bytes, size: int, count: int) -> int:
    """Where values begin, behind the bits that say which are there; FAILED if any is missing."""
    end = 4 + (whole(word_at(page, 0)) & 0xFFFFFFFF)
    if size < 4 or end > size:
        return FAILED
    at, present = 4, whole(0)
    while present < count:
        head, at = _varint(page, at, end)
        if at >= end:
            return FAILED
        if head & 1:
            for byte in range(at, min(end, at + (head >> 1))):
                asked = (1 << min(8, count - present)) - 1
                if whole(page[byte]) & asked != asked:
                    return FAILED
                present += min(8, count - present)
            at += head >> 1
        else:
            if page[at] != 1:
                return FAILED
            present += head >> 1
            at += 1
    return end


@compiled
def _plain(page: Bytes, at: int, width: int, into: Numbers, done: int, count: int) -> None:
    if width == into.itemsize:
        copy_bytes(page, at, into, width * done, width * count)
        return
    for value in range(count):
        into[done + value] = word_at(page, at + width * value)


@compiled
def _look_up(
    page: Bytes,
    at: int,
    size: int,
    dictionary: Numbers,
    entries: int,
    into: Numbers,
    done: int,
    count: int,
) -> bool:
    """Look values up by their codes: many times the same, or so many bits for each.

    Whether codes are entries is looked at afterwards; till then, it is enough that the
    dictionary has room for whatever can be written with these bits.
    """
    bits = whole(page[at]) if at < size else 0
    at += 1
    if bits > 32 or (1 << bits) > len(dictionary):
        return False
    mask = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    stop, most = done + count, np.uint64(0)
    while done < stop:
        head, at = _varint(page, at, size)
        if head & 1:
            run = min(8 * (head >> 1), stop - done)
            if (run * bits + 7) // 8 > size - at:
                return False
            most = max(most, _unpack(page, at, bits, mask, dictionary, into, done, run))
            at += bits * (head >> 1)
        else:
            run, taken = min(head >> 1, stop - done), (bits + 7) // 8
            if run == 0 or taken > size - at:
                return False
            code = word_at(page, at) & mask
            most = max(most, code)
            into[done : done + run] = dictionary[code]
            at += taken
        done += run
    return bool(most < np.uint64(entries)) or count == 0


@compiled
def _unpack(
    page: Bytes,
    at: int,
    bits: int,
    mask: np.uint64,
    dictionary: Numbers,
    into: Numbers,
    done: int,
    count: int,
) -> np.uint64:
    """Look up codes that stand side by side; the greatest of them."""
    width, most, end = np.uint64(bits), np.uint64(0), done + count
    if bits <= 16:  # four of them are within a word, and begin with a byte or in its middle
        half, middle = bits >> 1, np.uint64(4 * (bits & 1))
        while done + 8 <= end:
            word = word_at(page, at)
            for place in range(4):
                code = (word >> (np.uint64(place) * width)) & mask
                most = max(most, code)
                into[done + place] = dictionary[code]
            word = word_at(page, at + half) >> middle
            for place in range(4):
                code = (word >> (np.uint64(place) * width)) & mask
                most = max(most, code)
                into[done + 4 + place] = dictionary[code]
            done += 8
            at += bits
    for place in range(end - done):
        bit = place * bits
        code = (word_at(page, at + (bit >> 3)) >> np.uint64(bit & 7)) & mask
        most = max(most, code)
        into[done + place] = dictionary[code]
    return most
