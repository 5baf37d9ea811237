"""Encode whole columns as bytes: ids, amounts and names."""

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
    """Encode a bool for each id as bits.

    >>> unpack_ids(pack_ids(np.array([True, False, True, False])))
    array([ True, False,  True])
    """
    last = _find_trimmed_length(chosen)
    return _compress(np.packbits(chosen[:last], bitorder="little").tobytes(), last)


def unpack_ids(packed: bytes) -> NDArray[np.bool_]:
    """Decode `pack_ids`: a bool for each id up to the last True."""
    octets, count = _decompress(packed, lambda count: -(-count // 8))
    bits = np.unpackbits(np.frombuffer(octets, np.uint8), count=count, bitorder="little")
    return bits.view(np.bool_)


def pack_amounts(amounts: NDArray[np.int64]) -> bytes:
    """Encode an amount for each id, up to the last that is not 0.

    Amounts are usually small multiples of the cost of a window. So it stores multiples of their
    greatest common divisor, in as few bytes as the largest multiple needs.
    """
    last = _find_trimmed_length(amounts != 0)
    unit = int(np.gcd.reduce(amounts[:last])) if last else 1
    multiples = amounts[:last] // unit
    width = int(np.min_scalar_type(multiples.max(initial=0)).itemsize)
    octets = multiples.astype(f"<u{width}").tobytes()
    return _AMOUNTS.pack(unit, width) + _compress(octets, last)


def unpack_amounts(packed: bytes) -> NDArray[np.int64]:
    """Decode `pack_amounts` into a new array."""
    try:
        unit, width = _AMOUNTS.unpack_from(packed)
        dtype = np.dtype(f"<u{width}")
    except (struct.error, TypeError) as error:
        raise LedgerError(_DAMAGED) from error
    octets, _ = _decompress(packed[_AMOUNTS.size :], lambda count: width * count)
    amounts: NDArray[np.int64] = np.frombuffer(octets, dtype).astype(np.int64) * unit
    return amounts


def pack_names(names: pa.Array) -> bytes:
    """Encode texts, in order."""
    batch = pa.record_batch([names.cast(pa.large_string())], ["name"])
    out = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(out, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return bytes(out.getvalue().to_pybytes())


def unpack_names(packed: bytes) -> pa.Array:
    """Decode `pack_names`."""
    try:
        with pa.ipc.open_stream(packed) as reader:
            return reader.read_all().column("name").combine_chunks()
    except (pa.ArrowException, OSError, KeyError) as error:
        raise LedgerError("the names of subjects in the ledger are damaged") from error


def _find_trimmed_length(chosen: NDArray[np.bool_]) -> int:
    """Return the length without the False values at the end."""
    return len(chosen) - int(np.argmax(chosen[::-1])) if chosen.any() else 0


def _compress(octets: bytes, count: int) -> bytes:
    packed: bytes = _CODEC.compress(octets, asbytes=True)
    return count.to_bytes(8, "little") + packed


def _decompress(packed: bytes, octets: Callable[[int], int]) -> tuple[bytes, int]:
    count = int.from_bytes(packed[:8], "little")
    try:
        return _CODEC.decompress(packed[8:], octets(count), asbytes=True), count
    except (pa.ArrowException, OSError, OverflowError, MemoryError) as error:
        raise LedgerError(_DAMAGED) from error
