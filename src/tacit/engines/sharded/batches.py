"""Batches from a reader to a shard: tuples, and the progress of their partition.

    format mark | numbers | times, slots and masks in narrow types | attributes, in Arrow

Decoding never runs code. Bytes in another format, or cut short, are refused.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tacit.engines.sharded.saved_state import read_stream
from tacit.errors import StateError

_MARK: Final = b"piece 2\n"
_HEAD: Final = struct.Struct("<8siiqqqqIHBBBB")
_WIDTHS: Final = (np.uint8, np.uint16, np.uint32, np.uint64)


@dataclass(frozen=True, slots=True, eq=False)
class ShardBatch:
    """Accepted tuples of one shard, in their partition's order of arrival."""

    partition: int
    stream: int
    """The number of the stream in the specification."""
    least: int
    """The first window with tuples of the partition; NONE if there is none."""
    closed: int
    """The partition's first open window after these tuples."""
    ended: int
    """The window after the partition's newest; NONE if there is none."""
    idle: bool
    """Whether other partitions need not wait for this one now."""
    finished: bool
    """Whether the partition has ended."""
    slots: NDArray[np.int32]
    """Places within the shard."""
    times: NDArray[np.int64]
    masks: NDArray[np.uint64]
    attributes: pa.RecordBatch | None = None
    """The columns that conditions compare, one row per tuple."""

    def without_tuples(self) -> ShardBatch:
        """Return the progress of the partition only."""
        return replace(
            self,
            slots=self.slots[:0],
            times=self.times[:0],
            masks=self.masks[:0],
            attributes=None,
        )

    def to_bytes(self) -> bytes:
        """Encode it in narrow types, without compression."""
        count, words = self.masks.shape
        base = int(self.times.min()) if count else 0
        offsets = _narrow((self.times - base).view(np.uint64))
        slots = _narrow(self.slots.view(np.uint32))
        masks = _narrow(self.masks)
        head = _HEAD.pack(
            _MARK,
            self.partition,
            self.stream,
            self.least,
            self.closed,
            self.ended,
            base,
            count,
            words,
            self.idle,
            self.finished,
            _code(offsets) | _code(slots) << 2 | _code(masks) << 4,
            self.attributes is not None,
        )
        parts = [head, offsets.tobytes(), slots.tobytes(), masks.tobytes()]
        if self.attributes is not None:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, self.attributes.schema) as writer:
                writer.write_batch(self.attributes)
            parts.append(sink.getvalue().to_pybytes())
        return b"".join(parts)

    @staticmethod
    def read_partition(given: bytes) -> int:
        """Read the partition that a batch comes from."""
        partition: int = _read_head(given)[0]
        return partition

    @classmethod
    def from_bytes(cls, given: bytes) -> ShardBatch:
        """Decode what `to_bytes` returned; raise StateError for anything else."""
        partition, stream, least, closed, ended, *rest = _read_head(given)
        base, count, words, idle, finished, codes, compared = rest
        at = _HEAD.size
        columns, attributes = [], None
        try:
            for code, number in (
                (codes & 3, count),
                (codes >> 2 & 3, count),
                (codes >> 4, count * words),
            ):
                width = np.dtype(_WIDTHS[code])
                columns.append(np.frombuffer(given, width, number, at))
                at += number * width.itemsize
            if compared:
                attributes = _read_attributes(pa.py_buffer(given)[at:], count)
            elif at != len(given):
                raise ValueError("unexpected bytes at the end")
        except Exception as error:  # damaged bytes may raise anything
            raise _damaged() from error
        offsets, slots, masks = columns
        return cls(
            partition,
            stream,
            least,
            closed,
            ended,
            bool(idle),
            bool(finished),
            slots.astype(np.int32),
            offsets.astype(np.int64) + base,
            masks.astype(np.uint64).reshape(count, words),
            attributes,
        )


def _read_head(given: bytes) -> tuple[int, ...]:
    """Read the numbers at the start of a batch."""
    if len(given) < _HEAD.size or not given.startswith(_MARK):
        raise _damaged()
    return _HEAD.unpack_from(given)[1:]


def _read_attributes(given: pa.Buffer, rows: int) -> pa.RecordBatch:
    """Read the attributes of `rows` tuples."""
    batches = read_stream(given).combine_chunks().to_batches()
    if len(batches) != 1 or batches[0].num_rows != rows:
        raise ValueError("expected one batch with a row for each tuple")
    return batches[0]


def _damaged() -> StateError:
    return StateError(
        "expected a batch from a reader of this version, but the bytes are something else or"
        " damaged: start a new job, or start from a savepoint of this version"
    )


def _narrow(numbers: NDArray[Any]) -> NDArray[Any]:
    """Convert numbers to the narrowest type that holds them."""
    largest = int(numbers.max(initial=0))
    width = next(width for width in _WIDTHS if largest <= np.iinfo(width).max)
    return numbers.astype(width)


def _code(numbers: NDArray[Any]) -> int:
    return _WIDTHS.index(numbers.dtype.type)
