"""State that crosses processes: JSON, arrays and frames in one archive, and nothing that runs.

Reading it never executes anything: what is not in this format is refused.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tacit.errors import StateError

_FORMAT: Final = 1
_PLAIN: Final = "plain"


@dataclass(frozen=True, slots=True)
class SavedState:
    """What a reader or a shard keeps: plain data fit for JSON, arrays, frames and bytes."""

    plain: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    frames: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    blobs: Mapping[str, bytes] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """All of it."""
        parts = {f"array.{name}": part for name, part in self.arrays.items()}
        for name, frame in self.frames.items():
            parts[f"frame.{name}"] = _octets(frame.write_ipc(None).getvalue())
        parts |= {f"blob.{name}": _octets(blob) for name, blob in self.blobs.items()}
        head = {"format": _FORMAT, "plain": self.plain}
        parts[_PLAIN] = _octets(json.dumps(head).encode())
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **parts)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, state: bytes) -> SavedState:
        """What `to_bytes` gave; raises StateError for anything else."""
        try:
            with np.load(io.BytesIO(state), allow_pickle=False) as file:
                parts = {name: file[name] for name in file.files}
            head = json.loads(parts.pop(_PLAIN).tobytes())
            if head["format"] != _FORMAT:
                raise ValueError("format")
            return cls(
                head["plain"],
                _below("array.", parts),
                {
                    name: pl.read_ipc(io.BytesIO(part.tobytes()))
                    for name, part in _below("frame.", parts).items()
                },
                {name: part.tobytes() for name, part in _below("blob.", parts).items()},
            )
        except (
            ValueError,
            OSError,
            EOFError,
            KeyError,
            TypeError,
            AttributeError,
            zipfile.BadZipFile,
            pl.exceptions.PolarsError,
        ) as error:
            raise StateError(
                "this is not the state of a reader or shard of this version, or it is damaged;"
                " begin the job anew, or from a savepoint of this version"
            ) from error


def _octets(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)


def _below(prefix: str, parts: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {
        name.removeprefix(prefix): part for name, part in parts.items() if name.startswith(prefix)
    }
