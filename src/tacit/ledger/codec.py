"""Whole columns as bytes: who is meant, what they spent, and what they are called."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.ipc
from numpy.typing import NDArray

from tacit.errors import LedgerError

_CODEC = pa.Codec("zstd", 1)
_AMOUNTS = struct.Struct("<qB")
_DAMAGED = "a packed column in the ledger is damaged"


def pack_ids(chosen: NDArray[np.bool_]) -> bytes:
    """A truth value for each id, as bits.

    >>> unpack_ids(pack_ids(np.array([True, False, True, False])))
    array([ True, False,  True])
    """
    last = _last(chosen)
    return _deflated(np.packbits(chosen[:last], bitorder="little").tobytes(), last)


def unpack_ids(packed: bytes) -> NDArray[np.bool_]:
    """Who is meant, up to the last of them."""
    octets, count = _inflated(packed, lambda count: -(-count // 8))
    bits = np.unpackbits(np.frombuffer(octets, np.uint8), count=count, bitorder="little")
    return bits.view(np.bool_)


def pack_amounts(amounts: NDArray[np.int64]) -> bytes:
    """An amount for each id, up to the last who has spent anything.

    What was spent is mostly few times the cost of a window: it is kept as multiples of the
    greatest amount that divides all, in as few bytes as the largest of them needs.
    """
    last = _last(amounts != 0)
    unit = int(np.gcd.reduce(amounts[:last])) if last else 1
    multiples = amounts[:last] // unit
    width = int(np.min_scalar_type(multiples.max(initial=0)).itemsize)
    octets = multiples.astype(f"<u{width}").tobytes()
    return _AMOUNTS.pack(unit, width) + _deflated(octets, last)


def unpack_amounts(packed: bytes) -> NDArray[np.int64]:
    """The amounts, in an array of one's own."""
    try:
        unit, width = _AMOUNTS.unpack_from(packed)
        dtype = np.dtype(f"<u{width}")
    except (struct.error, TypeError) as error:
        raise LedgerError(_DAMAGED) from error
    octets, _ = _inflated(packed[_AMOUNTS.size :], lambda count: width * count)
    amounts: NDArray[np.int64] = np.frombuffer(octets, dtype).astype(np.int64) * unit
    return amounts


def pack_names(names: pa.Array) -> bytes:
    """Texts, in order."""
    batch = pa.record_batch([names.cast(pa.large_string())], ["name"])
    out = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(out, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return bytes(out.getvalue().to_pybytes())


def unpack_names(packed: bytes) -> pa.Array:
    """The texts."""
    try:
        with pa.ipc.open_stream(packed) as reader:
            return reader.read_all().column("name").combine_chunks()
    except (pa.ArrowException, OSError, KeyError) as error:
        raise LedgerError("the names of subjects in the ledger are damaged") from error


def _last(chosen: NDArray[np.bool_]) -> int:
    """The place after the last that is true."""
    return len(chosen) - int(np.argmax(chosen[::-1])) if chosen.any() else 0


def _deflated(octets: bytes, count: int) -> bytes:
    packed: bytes = _CODEC.compress(octets, asbytes=True)
    return count.to_bytes(8, "little") + packed


def _inflated(packed: bytes, octets: Callable[[int], int]) -> tuple[bytes, int]:
    count = int.from_bytes(packed[:8], "little")
    try:
        return _CODEC.decompress(packed[8:], octets(count), asbytes=True), count
    except (pa.ArrowException, OSError, OverflowError, MemoryError) as error:
        raise LedgerError(_DAMAGED) from error
