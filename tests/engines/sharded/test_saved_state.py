"""States and pieces are data alone: nothing in them is ever executed, and all of it is checked."""

from __future__ import annotations

import io
import json
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from tacit.engines.sharded.batches import ShardBatch
from tacit.engines.sharded.job import ShardedJob
from tacit.engines.sharded.reader import PartitionReader
from tacit.engines.sharded.saved_state import SavedState
from tacit.engines.sharded.shard import ShardGroup
from tacit.errors import StateError
from tacit.spec.yaml_reader import loads
from tests.engines.sharded.simulated import made
from tests.engines.sharded.test_sharded import SLIDING, SPEC, written

MARK = len(b"tacit state 3\n\0\0")


class Exploit:
    """What a pickle could do on being read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def sealed(archive: bytes) -> bytes:
    """An archive that claims to be a state of this version, with the right digest."""
    mark = SavedState({}).to_bytes()[:MARK]
    packed: bytes = pa.Codec("zstd").compress(archive, asbytes=True)
    content = len(archive).to_bytes(8, "little") + packed
    return mark + sha256(content).digest() + content


def archived(plain: Any, **parts: tuple[str, list[int], bytes]) -> bytes:
    """An archive of parts that have these types, shapes and bytes."""
    listed = [(name, kind, shape) for name, (kind, shape, _) in parts.items()]
    head = json.dumps({"plain": plain, "parts": listed}).encode()
    content = b"".join(part for *_, part in parts.values())
    return len(head).to_bytes(8, "little") + head + content


def test_what_was_saved_comes_back() -> None:
    state = SavedState(
        {"next": 5, "waiting": [[1, 2]]},
        {"clock": np.arange(3), "empty": np.empty((0, 2), np.uint64)},
        {"rows": pl.DataFrame({"a": [1, None], "b": ["x", None], "c": [0.5, None]})},
        {"piece": b"\0\xff", "none": b""},
    )
    again = SavedState.from_bytes(state.to_bytes())
    assert again.plain == state.plain
    assert all(np.array_equal(again.arrays[name], state.arrays[name]) for name in state.arrays)
    assert again.frames["rows"].equals(state.frames["rows"])
    assert again.frames["rows"].schema == state.frames["rows"].schema
    assert again.blobs == state.blobs


def test_a_pickle_is_refused_and_not_executed(tmp_path: Path) -> None:
    proof = tmp_path / "executed"
    exploit = pickle.dumps(Exploit(proof))
    with pytest.raises(StateError, match="expected the state of a reader or shard"):
        SavedState.from_bytes(exploit)
    objects = archived({}, other=("|O", [1], exploit[:8]))
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=True, plain=np.array([Exploit(proof)]))
    for archive in (exploit, objects, buffer.getvalue()):
        with pytest.raises(StateError, match="cannot be read"):
            SavedState.from_bytes(sealed(archive))
    with pytest.raises(StateError, match="expected a batch"):
        ShardBatch.from_bytes(exploit)
    assert not proof.exists()
    pickle.loads(exploit)  # it would have been seen
    assert proof.exists()


@pytest.mark.parametrize("state", [b"", b"x", b"PK\x03\x04"])
def test_damaged_state_is_refused(state: bytes) -> None:
    with pytest.raises(StateError):
        SavedState.from_bytes(state)
    with pytest.raises(StateError):
        SavedState.from_bytes(sealed(state))


def test_state_cut_short_or_changed_is_refused() -> None:
    whole = SavedState({"next": 1}, {"clock": np.arange(3)}).to_bytes()
    for place in range(0, len(whole), 7):
        with pytest.raises(StateError):
            SavedState.from_bytes(whole[:place])
        with pytest.raises(StateError):
            SavedState.from_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])


def test_what_is_no_object_or_has_wild_offsets_is_refused() -> None:
    with pytest.raises(StateError, match="cannot be read"):
        SavedState.from_bytes(sealed(archived([1])))
    assert SavedState.from_bytes(sealed(archived({}, **{"array.a": ("|u1", [2], b"ab")}))).arrays
    for kind, shape, content in (
        ("|u1", [2], b"a"),
        ("|u1", [2], b"abc"),
        ("|u1", [-1], b"ab"),
        (">u4", [1], b"abcd"),
        ("<U1", [1], b"abcd"),
    ):
        damaged = archived({}, **{"array.a": (kind, shape, content)})
        with pytest.raises(StateError, match="cannot be read"):
            SavedState.from_bytes(sealed(damaged))
    text = pa.array(["ab", "cd"])
    offsets = np.array([0, 1 << 20, 4], np.int32)  # what a quick look does not see
    wild = pa.StringArray.from_buffers(2, pa.py_buffer(offsets), text.buffers()[2])
    table = pa.table({"who": wild})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    rows = sink.getvalue().to_pybytes()
    frame = archived({}, **{"frame.rows": ("|u1", [len(rows)], rows)})
    with pytest.raises(StateError, match="cannot be read"):
        SavedState.from_bytes(sealed(frame))


def states(folder: Path, text: str) -> tuple[ShardedJob, bytes, bytes]:
    """A job, and the states of a reader and of its shard in the middle of the way."""
    job = made(loads(text), written(folder, 3, 2, 400), 1)
    readers, shard = [PartitionReader(job, number) for number in range(2)], ShardGroup(job, [0])
    for reader in readers:
        for _, given in reader.step().batches:
            list(shard.take(ShardBatch.from_bytes(given)))
    return job, readers[0].state(), shard.states()[0]


def restored(job: ShardedJob, state: bytes) -> ShardGroup:
    return ShardGroup(job, [0], [SavedState.from_bytes(state)])


def changed(state: bytes, name: str, change: Callable[[Any], Any]) -> bytes:
    """A state with one part of it changed, and a right digest."""
    saved = SavedState.from_bytes(state)
    if name in saved.plain:
        return replace(saved, plain={**saved.plain, name: change(saved.plain[name])}).to_bytes()
    if name in saved.frames:
        frames = {**saved.frames, name: change(saved.frames[name])}
        return replace(saved, frames=frames).to_bytes()
    arrays = {**saved.arrays, name: change(saved.arrays[name])}
    return replace(saved, arrays=arrays).to_bytes()


@pytest.mark.parametrize("text", [SPEC, SLIDING], ids=["tumbling", "sliding"])
def test_a_state_that_does_not_fit_its_job_is_refused(tmp_path: Path, text: str) -> None:
    """Compiled code would take its places and sizes as they are."""
    job, reader, shard = states(tmp_path, text)
    assert SavedState.from_bytes(shard).frames
    PartitionReader(job, 0, reader)
    restored(job, shard)
    for name, change in (
        ("clock", lambda clock: clock[:2]),
        ("clock", lambda clock: clock.astype(np.float64)),
        ("positions", lambda _: [1]),
        ("taken", lambda _: None),
    ):
        with pytest.raises(StateError, match="does not fit this job"):
            PartitionReader(job, 0, changed(reader, name, change))
    wrong: list[tuple[str, Callable[[Any], Any]]] = [
        ("panes.ring", lambda ring: ring[:, :-1]),
        ("panes.ring", lambda ring: ring.astype(np.int64)),
        ("panes.owners", lambda owners: np.full_like(owners, 1 << 20)),
        ("panes.owners", lambda owners: np.full_like(owners, -1)),
        ("panes.masks", lambda masks: masks[:-1]),
        ("since", lambda since: since[1:]),
        ("home", lambda rows: rows.drop("time")),
        ("home", lambda rows: rows.with_columns(slot=pl.lit(99_999, pl.Int32))),
        ("home", lambda rows: rows.with_columns(slot=pl.lit(None, pl.Int32))),
        ("next", lambda _: "soon"),
        ("progress", lambda numbers: [*numbers, 77]),
        ("waiting", lambda _: [[77, 0]]),
    ]
    if text is SLIDING:
        wrong += [
            ("sliding.words", lambda words: words[:, :-1]),
            ("sliding.keys", lambda keys: keys + (1 << 40)),
            ("sliding.starts", lambda starts: starts[::-1].copy()),
            ("sliding.end", lambda _: np.zeros(3, np.int64)),
        ]
    for name, change in wrong:
        with pytest.raises(StateError):
            restored(job, changed(shard, name, change))


def piece(**other: Any) -> ShardBatch:
    attributes = pa.RecordBatch.from_pydict({"level": [1, 2]})
    numbers = np.arange(2)
    made = ShardBatch(
        0, 0, 5, 6, 7, False, False, np.zeros(1, np.int32), np.full(1, 2),
        numbers.astype(np.int32), numbers,
        numbers.astype(np.uint64).reshape(2, 1), attributes,
    )  # fmt: skip
    return replace(made, **other)


def test_a_piece_comes_back_and_one_that_is_cut_short_or_longer_is_refused() -> None:
    given = piece().to_bytes()
    again = ShardBatch.from_bytes(given)
    assert again.times.tolist() == [0, 1]
    assert again.attributes is not None
    assert again.attributes.to_pydict() == {"level": [1, 2]}
    bare = piece(attributes=None).to_bytes()
    for whole in (given[: len(given) - 8], bare):
        for stop in range(len(whole)):
            with pytest.raises(StateError, match="expected a batch"):
                ShardBatch.from_bytes(whole[:stop])
    with pytest.raises(StateError, match="expected a batch"):
        ShardBatch.from_bytes(bare + b"x")
    fewer = pa.RecordBatch.from_pydict({"level": [1]})
    with pytest.raises(StateError, match="expected a batch"):
        ShardBatch.from_bytes(piece(attributes=fewer).to_bytes())


@pytest.mark.parametrize(
    "other",
    [
        {"partition": 9},
        {"partition": -1},
        {"stream": 9},
        {"slots": np.array([0, 1 << 20], np.int32)},
        {"masks": np.zeros((2, 3), np.uint64)},
    ],
    ids=["partition", "negative", "stream", "slots", "masks"],
)
def test_a_piece_that_does_not_fit_its_shard_is_refused(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    job = made(loads(SPEC), written(tmp_path, 3, 1, 100), 1)
    with pytest.raises(StateError, match="does not fit this job"):
        list(ShardGroup(job, [0]).take(ShardBatch.from_bytes(piece(**other).to_bytes())))
