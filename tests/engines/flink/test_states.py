"""State in Flink is base64 text, made when Flink asks for it; a pickle there is refused."""

from __future__ import annotations

import base64
import pickle
from pathlib import Path

import pytest

from tacit.engines.flink.states import BytesState
from tacit.engines.sharded.saved_state import SavedState
from tacit.errors import StateError
from tests.engines.sharded.test_saved_state import Exploit


class Kept:
    """A state as PyFlink has it: what is put there is encoded later, and decoded as UTF-8."""

    def __init__(self, stored: bytes | None = None) -> None:
        self.stored = stored
        self.new: str | None = None

    def value(self) -> str | None:
        """What was put there, or what is stored."""
        if self.new is not None:
            return self.new
        return None if self.stored is None else self.stored.decode("utf-8")

    def update(self, value: str) -> None:
        """Put something there."""
        self.new = value

    def commit(self) -> None:
        """Store it, as before a checkpoint."""
        assert isinstance(self.new, str)
        self.stored, self.new = self.new.encode("utf-8"), None


def test_what_was_saved_comes_back_in_any_process() -> None:
    kept = Kept()
    state = BytesState(kept)
    assert state.load() is None
    state.save(lambda: b"\0\xff windows")
    assert state.load() == b"\0\xff windows"
    kept.commit()
    assert kept.stored is not None
    assert kept.stored.isascii()
    assert BytesState(Kept(kept.stored)).load() == b"\0\xff windows"


def test_bytes_are_made_once_for_all_changes_before_a_checkpoint() -> None:
    made: list[int] = []

    def make() -> bytes:
        made.append(changes)
        return str(changes).encode()

    kept = Kept()
    state = BytesState(kept)
    for changes in range(5):  # noqa: B007 - `make` looks at it
        state.save(make)
    kept.commit()
    assert made == [4]
    assert state.load() == b"4"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_is_refused_and_not_executed(tmp_path: Path, protocol: int) -> None:
    proof = tmp_path / "executed"
    exploit = pickle.dumps(Exploit(proof), protocol)
    for stored in (exploit, base64.b64encode(exploit), b"", b"not base64"):
        with pytest.raises(StateError, match="expected the state of a reader or shard"):
            SavedState.from_bytes(BytesState(Kept(stored)).load() or b"")
    assert not proof.exists()
