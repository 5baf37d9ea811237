"""The state of open windows as bytes: arrays and frames, without pickle."""

from __future__ import annotations

import io
import json
import math
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tacit.errors import StateError
from tacit.pipeline.window_state import ClosedWindows, WindowState, select_prefix

_FORMAT: Final = 3
_MAGIC: Final = b"TSnp"
_START: Final = struct.Struct("<4sII")
"""A mark, a checksum of all that follows, and the length of the list of arrays."""
_LARGE: Final = 1 << 14
"""Bytes of an array from which on it is written without rows that are filled with one value."""
_BEGINNING: Final = 64


@dataclass(frozen=True, slots=True)
class WindowSnapshot:
    """The state of an engine besides its open windows."""

    fingerprint: str
    """The specification's."""
    learning: int
    clock: NDArray[Any]
    counts: NDArray[np.int64]
    held: Sequence[ClosedWindows] = ()
    """Windows that are closed and held back while subjects are learned."""

    def to_bytes(self, window_state: WindowState) -> bytes:
        """Encode this state and the open windows."""
        arrays, frames = window_state.state()
        head = {
            "format": _FORMAT,
            "fingerprint": self.fingerprint,
            "learning": self.learning,
            "held": [closed.panes.first for closed in self.held],
        }
        arrays |= {"clock": self.clock, "counts": self.counts}
        for number, closed in enumerate(self.held):
            arrays |= {f"held.{number}.{name}": part for name, part in closed.to_arrays().items()}
            frames |= {f"held.{number}.{name}": frame for name, frame in closed.rows.items()}
        for name, frame in frames.items():
            arrays[f"frame.{name}"] = np.frombuffer(
                frame.write_ipc(None).getvalue(), dtype=np.uint8
            )
        arrays["head"] = np.frombuffer(json.dumps(head).encode(), dtype=np.uint8)
        return _pack_arrays(arrays)

    @classmethod
    def from_bytes(
        cls, snapshot: bytes, fingerprint: str, window_state: WindowState
    ) -> WindowSnapshot:
        """Decode what `to_bytes` returned for this specification; fill `window_state`."""
        try:
            arrays = _unpack_arrays(snapshot)
            head = json.loads(arrays.pop("head").tobytes())
        except (ValueError, TypeError, OSError, KeyError, zipfile.BadZipFile) as error:
            raise StateError("this is not a snapshot of an engine, or it is damaged") from error
        if head["format"] != _FORMAT or head["fingerprint"] != fingerprint:
            raise StateError(
                "this snapshot was made for another specification or by another version; "
                "restore it with the specification that it was made with"
            )
        frames = {
            name.removeprefix("frame."): pl.read_ipc(io.BytesIO(part.tobytes()))
            for name, part in arrays.items()
            if name.startswith("frame.")
        }
        held = [
            ClosedWindows.from_state(
                first, select_prefix(f"held.{n}.", arrays), select_prefix(f"held.{n}.", frames)
            )
            for n, first in enumerate(head["held"])
        ]
        kept = {name: frame for name, frame in frames.items() if not name.startswith("held.")}
        window_state.restore(arrays, kept)
        return cls(fingerprint, head["learning"], arrays["clock"], arrays["counts"], held)


def _pack_arrays(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Write arrays one after the other, without compression: a checkpoint compresses them."""
    listed, parts = [], []
    for name, array in arrays.items():
        fill, rows = _find_rows(array)
        listed.append((name, array.dtype.str, array.shape, fill, rows))
        chosen = array if rows is None else array[rows]
        parts.append(np.ascontiguousarray(chosen).reshape(-1).view(np.uint8).data)
    text = json.dumps(listed).encode()
    checksum = zlib.crc32(text)
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return b"".join([_START.pack(_MAGIC, checksum, len(text)), text, *parts])


def _find_rows(array: NDArray[Any]) -> tuple[int, list[int] | None]:
    """Return the rows to write, and the one value that all others have everywhere; None for all.

    A ring has room for many windows, and few of them are open.
    """
    if array.ndim < 2 or array.dtype.kind not in "iu" or array.nbytes < _LARGE:
        return 0, None
    begins: Any = (..., *[0] * (array.ndim - 1))
    firsts = np.sort(array[begins])
    fill, inner = int(firsts[len(firsts) // 2]), tuple(range(1, array.ndim))
    # Most rows with other values have some at the beginning.
    same = (array[:, :_BEGINNING] == fill).all(axis=inner)
    same[same] = (array[same] == fill).all(axis=inner)
    return fill, np.flatnonzero(~same).tolist()


def _unpack_arrays(given: bytes) -> dict[str, NDArray[Any]]:
    """Read what `_pack_arrays` wrote, now or in an earlier version."""
    if not given.startswith(_MAGIC):
        with np.load(io.BytesIO(given), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    if len(given) < _START.size:
        raise ValueError("it is cut off")
    _, checksum, length = _START.unpack_from(given)
    if zlib.crc32(memoryview(given)[_START.size :]) != checksum:
        raise ValueError("its checksum is wrong")
    place = _START.size + length
    arrays = {}
    for name, kind, shape, *others in json.loads(given[_START.size : place]):
        fill, rows = others or (0, None)
        dtype = np.dtype(kind)
        written = shape if rows is None else [len(rows), *shape[1:]]
        size = math.prod(written)
        array = np.frombuffer(given, dtype, size, place).reshape(written)
        if rows is None:
            arrays[name] = array.copy()
        else:
            arrays[name] = np.full(shape, fill, dtype)
            arrays[name][rows] = array
        place += dtype.itemsize * size
    return arrays
