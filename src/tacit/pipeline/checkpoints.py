"""Checkpoints: an engine's state and the positions of its sources, as bytes for the ledger."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from tacit.errors import StateError
from tacit.options import option
from tacit.pipeline.deadletters import LettersMark
from tacit.pipeline.reader import Positions

_FORMAT: Final = 2
_HEAD: Final = struct.Struct("<4sIQ")
_MAGIC: Final = b"TChk"
_CODEC: Final = pa.Codec("zstd", 1)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state and the positions at one moment."""

    fingerprint: str
    """The specification's."""
    positions: Positions
    snapshot: bytes
    private: bool
    """Whether the noise of this run is private: it has no seed."""
    letters: LettersMark | None = None
    """How far the file of dead letters goes; None in old checkpoints, and without a file."""

    def to_bytes(self) -> bytes:
        """Encode the checkpoint; the snapshot is compressed."""
        plain = {
            "format": _FORMAT,
            "fingerprint": self.fingerprint,
            "positions": self.positions,
            "private": self.private,
            "letters": self.letters,
        }
        text = json.dumps(plain, sort_keys=True).encode()
        head = _HEAD.pack(_MAGIC, len(text), len(self.snapshot))
        return b"".join([head, text, _CODEC.compress(self.snapshot, asbytes=True)])

    @classmethod
    def from_bytes(cls, given: bytes) -> Checkpoint:
        """Decode what `to_bytes` returned."""
        try:
            magic, length, size = _HEAD.unpack_from(given)
            end = _HEAD.size + length
            plain: dict[str, Any] = json.loads(given[_HEAD.size : end])
            if magic != _MAGIC or plain["format"] != _FORMAT:
                raise ValueError("format")
            snapshot = _CODEC.decompress(given[end:], size, asbytes=True)
            return cls(
                plain["fingerprint"],
                plain["positions"],
                snapshot,
                plain["private"],
                plain.get("letters"),
            )
        except (ValueError, KeyError, OSError, struct.error, pa.ArrowException) as error:
            raise StateError(
                "the ledger's checkpoint of this run cannot be read: it is damaged, or was written"
                f" by another version; start another run with {option('name')}, or restore a backup"
            ) from error
