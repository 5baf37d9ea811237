"""Snappy, which most Parquet files are compressed with, undone by a compiled loop.

Compressed bytes are a row of steps: take some bytes as they stand here, or repeat some that were
written before. In a column of numbers of eight bytes they mostly take turns: the lower bytes are
new, the upper ones stood before, and both steps are taken together. Else a step writes whole words,
and the next one overwrites what was too much.
"""

from __future__ import annotations

import numpy as np

from tacit.connectors.parquet.words import BYTE, WORD, Bytes, copy_bytes, put_word, whole, word_at
from tacit.kernels import compiled

FAILED = -1
SLACK = 72
"""Bytes that may be written beyond the end of what is decompressed, and be anything."""


@compiled
def _completes(word: np.uint64, length: int, into: Bytes, done: int) -> bool:
    """Write eight bytes, if that is what two steps make: so many new ones, and a repetition."""
    new, rest = word >> BYTE, word >> (BYTE * np.uint64(1 + length))
    tag = whole(rest) & 255
    back = ((tag >> 5) << 8) | (whole(rest >> BYTE) & 255)
    if tag & 31 != 1 | ((4 - length) << 2) or back < WORD or back > done:
        return False
    low = (np.uint64(1) << (BYTE * np.uint64(length))) - np.uint64(1)
    put_word(into, done, (word_at(into, done - back) & ~low) | (new & low))
    return True


@compiled
def decompress(data: Bytes, begin: int, end: int, into: Bytes, size: int) -> int:
    """Decompress `data[begin:end]` to `size` bytes of `into`; their number, or FAILED.

    At least a word follows in `data`, and SLACK bytes in `into`. Anything else than exactly
    `size` bytes from exactly these is a failure.
    """
    said, at, shift = 0, begin, 0
    while True:
        if at >= end or shift > 28:
            return FAILED
        byte = whole(data[at])
        said |= (byte & 127) << shift
        shift += 7
        at += 1
        if byte < 128:
            break
    if said != size or end + WORD > len(data) or size + SLACK > len(into):
        return FAILED
    done = 0
    while at < end and done < size:
        word = word_at(data, at)
        tag = whole(word) & 255
        # Each length is a branch of its own: so the processor can guess where the next step begins.
        if tag == 4 and at + 5 <= end and _completes(word, 2, into, done):
            at += 5
            done += WORD
            continue
        if tag == 0 and at + 4 <= end and _completes(word, 1, into, done):
            at += 4
            done += WORD
            continue
        if tag == 8 and at + 6 <= end and _completes(word, 3, into, done):
            at += 6
            done += WORD
            continue
        if tag & 3 == 0:
            at, length = at + 1, (tag >> 2) + 1
            if length > 60:
                wide = length - 60
                length = (whole(word >> BYTE) & ((1 << (8 * wide)) - 1)) + 1
                at += wide
            if length > end - at or length > size - done:
                return FAILED
            if length <= WORD:
                put_word(into, done, word_at(data, at))
            else:
                copy_bytes(data, at, into, done, length)
            at += length
            done += length
            continue
        kind = tag & 3
        if kind == 1:
            length = ((tag >> 2) & 7) + 4
            back = ((tag >> 5) << 8) | (whole(word >> BYTE) & 255)
            at += 2
        elif kind == 2:
            length = (tag >> 2) + 1
            back = whole(word >> BYTE) & 0xFFFF
            at += 3
        else:
            length = (tag >> 2) + 1
            back = whole(word >> BYTE) & 0xFFFFFFFF
            at += 5
        if back > done or back == 0:
            return FAILED
        if back < WORD:
            for byte in range(length):
                into[done + byte] = into[done + byte - back]
        else:
            put_word(into, done, word_at(into, done - back))
            copied = WORD
            while copied < length:
                put_word(into, done + copied, word_at(into, done + copied - back))
                copied += WORD
        done += length
    return size if at == end and done == size else FAILED
