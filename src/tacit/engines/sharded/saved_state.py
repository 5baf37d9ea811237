"""State that moves between processes: JSON, arrays and frames in one checked archive.

Decoding never runs code. Bytes in another format, such as pickles, are refused before their content
is read.

    format mark | SHA-256 of the rest | size | archive, compressed

    archive: size of the head | head, as JSON: plain data, and the type and shape of each array
             | arrays of plain numbers

Frames are Arrow streams, and are validated in full.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import DTypeLike, NDArray

from tacit.errors import StateError
from tacit.pipeline.window_state import select_prefix

_MARK: Final = b"tacit state 3\n\0\0"
_DIGEST: Final = 32
_SIZE: Final = 8
_CODEC: Final = pa.Codec("zstd", 1)
_PLAIN, _PARTS = "plain", "parts"
_NUMBERS: Final = frozenset(np.dtype(kind).str for kind in "?bhilqBHILQfd")
"""The types of arrays that are read: numbers, in this machine's order of bytes."""
_WHAT_TO_DO: Final = "start a new job, or start from a savepoint of this version"


@dataclass(frozen=True, slots=True)
class SavedState:
    """The state of a reader or shard: plain data fit for JSON, arrays, frames and bytes."""

    plain: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    frames: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    blobs: Mapping[str, bytes] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Encode the state."""
        parts = {f"array.{name}": part for name, part in self.arrays.items()}
        parts |= {
            f"frame.{name}": _to_octets(_to_stream(part)) for name, part in self.frames.items()
        }
        parts |= {f"blob.{name}": _to_octets(blob) for name, blob in self.blobs.items()}
        listed = [(name, part.dtype.str, part.shape) for name, part in parts.items()]
        head = json.dumps({_PLAIN: self.plain, _PARTS: listed}).encode()
        whole = b"".join(
            [
                len(head).to_bytes(_SIZE, "little"),
                head,
                *(np.ascontiguousarray(part).tobytes() for part in parts.values()),
            ]
        )
        packed = bytes(_CODEC.compress(whole, asbytes=True))
        content = len(whole).to_bytes(_SIZE, "little") + packed
        return _MARK + sha256(content).digest() + content

    @classmethod
    def from_bytes(cls, state: bytes) -> SavedState:
        """Decode what `to_bytes` returned; raise StateError for anything else."""
        if not state.startswith(_MARK):
            raise StateError(
                "expected the state of a reader or shard of this version, but the bytes do not"
                f" start with its mark: {_WHAT_TO_DO}"
            )
        digest, content = state[len(_MARK) :][:_DIGEST], state[len(_MARK) + _DIGEST :]
        if sha256(content).digest() != digest:
            raise StateError(
                f"the state of a reader or shard is damaged: its digest is wrong; {_WHAT_TO_DO}"
            )
        try:
            size = int.from_bytes(content[:_SIZE], "little")
            whole = _CODEC.decompress(content[_SIZE:], size, asbytes=True)
            plain, parts = _read_archive(whole)
            return cls(
                plain,
                select_prefix("array.", parts),
                {name: _read_frame(part) for name, part in select_prefix("frame.", parts).items()},
                {name: part.tobytes() for name, part in select_prefix("blob.", parts).items()},
            )
        except Exception as error:  # other bytes may raise anything
            raise StateError(
                "the state of a reader or shard cannot be read"
                f" ({type(error).__name__}): {_WHAT_TO_DO}"
            ) from error


def _read_archive(whole: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read plain data and arrays of plain numbers; raise if it is anything else."""
    at = _SIZE + int.from_bytes(whole[:_SIZE], "little")
    head = json.loads(whole[_SIZE:at])
    plain, parts = head[_PLAIN], {}
    if not isinstance(plain, dict):
        raise ValueError("expected an object")
    for name, kind, shape in head[_PARTS]:
        if kind not in _NUMBERS or min(shape, default=0) < 0:
            raise ValueError("expected plain numbers")
        count = math.prod(shape)
        # A copy, since restored arrays are changed in place.
        parts[str(name)] = np.frombuffer(whole, kind, count, at).reshape(shape).copy()
        at += count * np.dtype(kind).itemsize
    if at != len(whole):
        raise ValueError("unexpected bytes at the end")
    return plain, parts


@contextmanager
def restoring() -> Iterator[None]:
    """Raise StateError if a readable state does not fit this job."""
    try:
        yield
    except StateError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise StateError(
            "the state of a reader or shard does not fit this job"
            f" ({type(error).__name__}): {_WHAT_TO_DO}"
        ) from error


def check_array(
    name: str, part: NDArray[Any] | None, kind: DTypeLike, shape: Sequence[int | None]
) -> NDArray[Any]:
    """Check the type and shape of an array in a state: compiled code uses it unchecked.

    None in a shape means any size.
    """
    if part is None:
        raise StateError(f"the state of a reader or shard has no '{name}': {_WHAT_TO_DO}")
    fits = len(part.shape) == len(shape) and all(
        wanted is None or size == wanted for size, wanted in zip(part.shape, shape, strict=True)
    )
    if part.dtype != np.dtype(kind) or not fits:
        wanted = " x ".join("any" if size is None else str(size) for size in shape)
        raise StateError(
            f"'{name}' in the state of a reader or shard does not fit this job: expected"
            f" {np.dtype(kind)} of {wanted}, got {part.dtype} of"
            f" {' x '.join(map(str, part.shape))}. {_WHAT_TO_DO.capitalize()}"
        )
    return part


def check_places(name: str, places: NDArray[Any], stop: int, least: int = 0) -> None:
    """Raise StateError unless all places are in `[least, stop)`."""
    if len(places) and not (int(places.min()) >= least and int(places.max()) < stop):
        raise StateError(
            f"'{name}' in the state of a reader or shard does not fit this job: expected places"
            f" below {stop}. {_WHAT_TO_DO.capitalize()}"
        )


def read_stream(given: bytes | pa.Buffer) -> pa.Table:
    """Read a table from an Arrow stream and validate it in full; raise if it is invalid."""
    with pa.ipc.open_stream(given) as reader:
        table = reader.read_all()
    table.validate(full=True)  # offsets and indices are used unchecked from here on
    return table


def _to_stream(frame: pl.DataFrame) -> bytes:
    table = frame.to_arrow()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _read_frame(part: NDArray[Any]) -> pl.DataFrame:
    return pl.DataFrame(read_stream(part.tobytes()))


def _to_octets(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)
