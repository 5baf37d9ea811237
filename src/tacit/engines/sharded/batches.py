"""Batches from a reader to a task: tuples of the task's shards, and their partition's progress.

    format mark | numbers | shards, times, slots and masks in narrow types | attributes, in Arrow

Decoding never runs code. Bytes in another format, or cut short, are refused.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tacit.engines.sharded.saved_state import read_stream
from tacit.errors import StateError

_MARK: Final = b"piece 3\n"
_HEAD: Final = struct.Struct("<8siiqqqqIIHHBBB")
_WIDTHS: Final = (np.uint8, np.uint16, np.uint32, np.uint64)


@dataclass(frozen=True, slots=True, eq=False)
class ShardBatch:
    """Accepted tuples of some shards, each shard's in their partition's order of arrival."""

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
    shards: NDArray[np.int32]
    """The shards, in ascending order; a shard without tuples receives the progress."""
    counts: NDArray[np.int64]
    """How many tuples each of them has; the tuples are in the order of the shards."""
    slots: NDArray[np.int32]
    """Places within the shard."""
    times: NDArray[np.int64]
    masks: NDArray[np.uint64]
    attributes: pa.RecordBatch | None = None
    """The columns that conditions compare, one row per tuple."""

    @property
    def progress(self) -> tuple[int, ...]:
        """The progress of the partition, as numbers."""
        head = self.partition, self.stream, self.least, self.closed, self.ended
        return *head, int(self.idle), int(self.finished)

    def without_tuples(self) -> ShardBatch:
        """Return the progress of the partition only, for no particular shard."""
        return replace(
            self,
            shards=self.shards[:0],
            counts=self.counts[:0],
            slots=self.slots[:0],
            times=self.times[:0],
            masks=self.masks[:0],
            attributes=None,
        )

    def select(self, shards: Sequence[int]) -> ShardBatch:
        """Return the part for these shards, which must be in order and among those it has."""
        wanted = np.array(shards, np.int32)
        if np.array_equal(wanted, self.shards):
            return self
        places = np.searchsorted(self.shards, wanted)
        if not np.array_equal(self.shards[np.minimum(places, len(self.shards) - 1)], wanted):
            raise StateError("a batch from a reader is for other shards than those of its task")
        starts = np.concatenate([[0], np.cumsum(self.counts)])
        counts = self.counts[places]
        first = np.repeat(starts[places] - np.cumsum(counts) + counts, counts)
        rows = first + np.arange(len(first))
        attributes = None
        if self.attributes is not None and len(rows):
            attributes = self.attributes.take(pa.array(rows))
        return replace(
            self,
            shards=wanted,
            counts=counts,
            slots=self.slots[rows],
            times=self.times[rows],
            masks=self.masks[rows],
            attributes=attributes,
        )

    @classmethod
    def join(cls, parts: Sequence[ShardBatch]) -> ShardBatch:
        """Join the parts for several shards, in this order; their progress must be the same."""
        compared = [part.attributes for part in parts if part.attributes is not None]
        attributes = None
        if compared:
            table = pa.Table.from_batches(compared).unify_dictionaries().combine_chunks()
            (attributes,) = table.to_batches()
        return replace(
            parts[0],
            shards=np.concatenate([part.shards for part in parts]),
            counts=np.concatenate([part.counts for part in parts]),
            slots=np.concatenate([part.slots for part in parts]),
            times=np.concatenate([part.times for part in parts]),
            masks=np.concatenate([part.masks for part in parts]),
            attributes=attributes,
        )

    def to_bytes(self) -> bytes:
        """Encode it in narrow types, without compression."""
        count, words = self.masks.shape
        base = int(self.times.min()) if count else 0
        columns = [
            _narrow(self.shards.view(np.uint32)),
            _narrow(self.counts.view(np.uint64)),
            _narrow((self.times - base).view(np.uint64)),
            _narrow(self.slots.view(np.uint32)),
            _narrow(self.masks),
        ]
        head = _HEAD.pack(
            _MARK,
            self.partition,
            self.stream,
            self.least,
            self.closed,
            self.ended,
            base,
            count,
            len(self.shards),
            words,
            sum(_code(column) << 2 * place for place, column in enumerate(columns)),
            self.idle,
            self.finished,
            self.attributes is not None,
        )
        parts = [head, *(column.tobytes() for column in columns)]
        if self.attributes is not None:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, self.attributes.schema) as writer:
                writer.write_batch(self.attributes)
            parts.append(sink.getvalue().to_pybytes())
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, given: bytes) -> ShardBatch:
        """Decode what `to_bytes` returned; raise StateError for anything else."""
        partition, stream, least, closed, ended, *rest = _read_head(given)
        base, count, shards, words, codes, idle, finished, compared = rest
        at = _HEAD.size
        columns, attributes = [], None
        try:
            for place, number in enumerate((shards, shards, count, count, count * words)):
                width = np.dtype(_WIDTHS[codes >> 2 * place & 3])
                columns.append(np.frombuffer(given, width, number, at))
                at += number * width.itemsize
            if compared:
                attributes = _read_attributes(pa.py_buffer(given)[at:], count)
            elif at != len(given):
                raise ValueError("unexpected bytes at the end")
            numbers, counts = columns[0].astype(np.int32), columns[1].astype(np.int64)
            if (np.diff(numbers) <= 0).any() or (numbers < 0).any():
                raise ValueError("shards out of order")
            if (counts < 0).any() or int(counts.sum()) != (count if shards else 0):
                raise ValueError("counts that do not fit")
        except Exception as error:  # damaged bytes may raise anything
            raise _make_damage_error() from error
        _, _, offsets, slots, masks = columns
        return cls(
            partition,
            stream,
            least,
            closed,
            ended,
            bool(idle),
            bool(finished),
            numbers,
            counts,
            slots.astype(np.int32),
            offsets.astype(np.int64) + base,
            masks.astype(np.uint64).reshape(count, words),
            attributes,
        )


def _read_head(given: bytes) -> tuple[int, ...]:
    """Read the numbers at the start of a batch."""
    if len(given) < _HEAD.size or not given.startswith(_MARK):
        raise _make_damage_error()
    return _HEAD.unpack_from(given)[1:]


def _read_attributes(given: pa.Buffer, rows: int) -> pa.RecordBatch:
    """Read the attributes of `rows` tuples."""
    batches = read_stream(given).combine_chunks().to_batches()
    if len(batches) != 1 or batches[0].num_rows != rows:
        raise ValueError("expected one batch with a row for each tuple")
    return batches[0]


def _make_damage_error() -> StateError:
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
