"""Snappy, which most Parquet files are compressed with, undone by a compiled loop.

Compressed bytes are a row of steps: take some bytes as they stand here, or repeat some that were
written before. In a column of numbers they take turns, and most are shorter than a word; so a step
writes a whole word, and the next step overwrites what was too much.
"""

from __future__ import annotations

import numpy as np

from tacit.connectors.parquet.words import BYTE, WORD, Bytes, copy_bytes, put_word, whole, word_at
from tacit.kernels import compiled

FAILED = -1
SLACK = 72
"""Bytes that may be written beyond the end of what is decompressed, and be anything."""


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
        if tag & 3 == 0:
            length = (tag >> 2) + 1
            if length > 4:
                at += 1
                if length > 60:
                    wide = length - 60
                    length = (whole(word >> BYTE) & ((1 << (8 * wide)) - 1)) + 1
                    at += wide
                if length > end - at or length > size - done:
                    return FAILED
                copy_bytes(data, at, into, done, length)
                at += length
                done += length
                continue
            put_word(into, done, word >> BYTE)
            at += 1 + length
            done += length
            if at >= end:
                break
            # What follows a few bytes is mostly a short repetition, and in the same word.
            word >>= BYTE * np.uint64(1 + length)
            tag = whole(word) & 255
            if tag & 3 != 1:
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
