"""The state of open windows as bytes: arrays and frames in one archive, without pickle."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tacit.errors import StateError
from tacit.pipeline.window_state import ClosedWindows, WindowState, select_prefix

_FORMAT: Final = 3


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
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
        return buffer.getvalue()

    @classmethod
    def from_bytes(
        cls, snapshot: bytes, fingerprint: str, window_state: WindowState
    ) -> WindowSnapshot:
        """Decode what `to_bytes` returned for this specification; fill `window_state`."""
        try:
            with np.load(io.BytesIO(snapshot), allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            head = json.loads(arrays.pop("head").tobytes())
        except (ValueError, OSError, KeyError, zipfile.BadZipFile) as error:
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
