"""What Flink holds of a job are bytes and text in formats of our own: a pickle there never runs."""

from __future__ import annotations

import base64
import pickle
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyflink.fn_execution.coders import (
    BinaryCoder,
    CharCoder,
    CloudPickleCoder,
    IntCoder,
    PickleCoder,
    TupleCoder,
    from_type_info,
)

from tacit.engines.flink import program
from tacit.engines.flink.folders import Folders
from tacit.engines.flink.run import SubmitOutcome
from tacit.engines.flink.state_places import StatePlaces
from tacit.engines.flink.submission import JobOptions, open_submission
from tacit.engines.sharded.saved_state import SavedState
from tacit.errors import EngineError
from tacit.pipeline.versions import SpecVersion
from tacit.planning.planner import plan_without_history
from tacit.spec.yaml_reader import loads
from tests.engines.sharded.simulated import made
from tests.engines.sharded.test_saved_state import Exploit
from tests.engines.sharded.test_sharded import SPEC

SETTINGS = {"execution.checkpointing.interval": "500 ms", "restart-strategy.type": "none"}
MARK = base64.b64encode(SavedState({}).to_bytes()[:15])
"""What the text of every state begins with."""


class Context:
    """Notes which states a function asks for."""

    def __init__(self) -> None:
        self.coders: list[Any] = []
        self._keyed_state_backend = None

    def get_number_of_parallel_subtasks(self) -> int:
        """How many tasks there are."""
        return 1

    def get_max_number_of_parallel_subtasks(self) -> int:
        """How many key groups there are."""
        return 128

    def get_index_of_this_subtask(self) -> int:
        """The number of this task."""
        return 0

    def get_state(self, descriptor: Any) -> None:
        """The coder that PyFlink uses for a state."""
        self.coders.append(from_type_info(descriptor.type_info))


def test_no_state_and_no_message_is_a_pickle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown(tmp_path)
    job = made(loads(SPEC), [("home", tmp_path / "home.jsonl")], 2)
    monkeypatch.setattr(program, "_job", lambda _: job)
    context = Context()
    program.ReaderFunction(str(tmp_path), [0], [0, 1]).open(context)
    program.ShardFunction(str(tmp_path), [0, 1]).open(context)
    assert len(context.coders) == 3
    assert not any(isinstance(one, PickleCoder | CloudPickleCoder) for one in context.coders)
    assert sum(isinstance(one, CharCoder) for one in context.coders) == 2
    piece = from_type_info(program.BATCH)
    assert isinstance(piece, TupleCoder)
    assert [type(one) for one in piece._field_coders] == [IntCoder, BinaryCoder]


def grown(folder: Path) -> Path:
    """A file that grows."""
    path = folder / "home.jsonl"
    with path.open("a") as file:
        for n in range(600):
            row = f'"who": "p{n % 3}", "at": {1_700_000_000 + n}, "kind": {n % 4}, "level": 1'
            file.write(f"{{{row}}}\n")
    return path


def ran(folder: Path, until: Callable[[SubmitOutcome], bool]) -> SubmitOutcome:
    """A job that is stopped with a savepoint when enough has come out."""
    spec = loads(SPEC + "subjects: [p0, p1, p2]\n")
    version = SpecVersion(spec, plan_without_history(spec, "uniform"))
    options = JobOptions("home", folder / "job", shards=1, follow=True, settings=SETTINGS)
    sources = [(None, str(folder / "home.jsonl"))]
    with open_submission(version, sources, [f"{folder}/answers/"], options) as run:

        def stop() -> None:
            deadline = time.monotonic() + 300
            while not until(run.outcome) and time.monotonic() < deadline:
                time.sleep(0.1)
            run.stop()

        threading.Thread(target=stop, daemon=True).start()
        return run.run()


def replaced(state: Path, make: Callable[[int], bytes]) -> int:
    """Put something else in place of each text of a state in a savepoint; how many there are."""
    found = 0
    for path in state.iterdir():
        content = bytearray(path.read_bytes())
        at = content.find(MARK)
        while at >= 0:
            size = int.from_bytes(content[at - 4 : at], "big")
            assert base64.b64decode(content[at : at + size], validate=True)
            content[at : at + size] = other = make(size)
            assert len(other) == size
            found += 1
            at = content.find(MARK, at + size)
        path.write_bytes(content)
    return found


def test_a_savepoint_with_pickles_in_it_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    """Readers and shards alike. `test_live` resumes from a savepoint that nobody changed."""
    grown(tmp_path)
    outcome = ran(tmp_path, lambda outcome: outcome.windows > 2)
    assert outcome.windows > 2
    assert outcome.savepoint is not None
    folders = Folders(tmp_path / "job")
    latest = StatePlaces.choose(folders, {}).find_latest(folders)
    assert latest is not None
    state = Path(latest.removeprefix("file://"))
    assert state == Path(outcome.savepoint.removeprefix("file:"))
    proof = tmp_path / "executed"
    exploit = pickle.dumps(Exploit(proof))

    def inside(size: int) -> bytes:
        return base64.b64encode(exploit.ljust(size // 4 * 3, b"."))

    assert replaced(state, inside) == 2
    with pytest.raises(EngineError, match="expected the state of a reader or shard") as caught:
        ran(tmp_path, lambda _: False)
    assert "start a new job, or start from a savepoint" in str(caught.value)
    assert not proof.exists()
    pickle.loads(exploit.ljust(4 * len(exploit), b"."))  # it would have been seen
    assert proof.exists()
