"""State of readers and shards is data alone: nothing in it is ever executed."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tacit.engines.sharded.saved import SavedState
from tacit.errors import StateError


class _Exploit:
    """What a pickle could do on being read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_what_was_saved_comes_back() -> None:
    state = SavedState(
        {"next": 5, "waiting": [[1, 2]]},
        {"clock": np.arange(3), "empty": np.empty((0, 2), np.uint64)},
        {"rows": pl.DataFrame({"a": [1, None]})},
        {"piece": b"\0\xff", "none": b""},
    )
    again = SavedState.from_bytes(state.to_bytes())
    assert again.plain == state.plain
    assert all(np.array_equal(again.arrays[name], state.arrays[name]) for name in state.arrays)
    assert again.frames["rows"].equals(state.frames["rows"])
    assert again.blobs == state.blobs


def test_a_pickle_is_refused_and_not_executed(tmp_path: Path) -> None:
    proof = tmp_path / "executed"
    with pytest.raises(StateError, match="not the state of a reader or shard"):
        SavedState.from_bytes(pickle.dumps(_Exploit(proof)))
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=True, plain=np.array(_Exploit(proof), dtype=object))
    with pytest.raises(StateError, match="not the state of a reader or shard"):
        SavedState.from_bytes(buffer.getvalue())
    assert not proof.exists()


@pytest.mark.parametrize("state", [b"", b"x", b"PK\x03\x04"])
def test_damaged_state_is_refused(state: bytes) -> None:
    with pytest.raises(StateError):
        SavedState.from_bytes(state)


def test_state_cut_short_is_refused() -> None:
    whole = SavedState({"next": 1}, {"clock": np.arange(3)}).to_bytes()
    for stop in range(0, len(whole), 7):
        with pytest.raises(StateError):
            SavedState.from_bytes(whole[:stop])
