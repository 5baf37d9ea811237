"""Shards are evaluated together, and can be divided and grouped again at any time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tacit.engines.flink.key_groups import choose_groups, choose_keys, divide_shards
from tacit.engines.sharded.batches import ShardBatch
from tacit.engines.sharded.job import ShardedJob
from tacit.engines.sharded.lines import ShardLine
from tacit.engines.sharded.reader import PartitionReader
from tacit.engines.sharded.saved_state import SavedState
from tacit.engines.sharded.shard import ShardGroup
from tacit.engines.sharded.worker import ShardWorker
from tacit.errors import StateError
from tacit.spec.yaml_reader import loads
from tacit.windows.clock import NONE
from tests.engines.sharded.simulated import made
from tests.engines.sharded.test_sharded import SLIDING, SPEC, written

PRIVATE = "private:\n  - {pattern: door, epsilon: 1}\n  - {pattern: bed, epsilon: 1}\n"


def without_rows(text: str) -> str:
    """A specification without conditions between tuples: their rows are numbered again."""
    return text[: text.index("  - {name: rising")] + PRIVATE


def same(some: list[bytes], others: list[bytes]) -> bool:
    """Whether states are the same, except for the order of their parts."""

    def content(state: bytes) -> list[object]:
        saved = SavedState.from_bytes(state)
        arrays = sorted((name, one.shape, one.tobytes()) for name, one in saved.arrays.items())
        return [saved.plain, arrays, dict(saved.blobs), list(saved.frames)]

    return [content(one) for one in some] == [content(one) for one in others]


@pytest.mark.cases(1)
@pytest.mark.parametrize("text", [SPEC, SLIDING], ids=["tumbling", "sliding"])
def test_states_are_the_same_however_shards_are_grouped(tmp_path: Path, text: str) -> None:
    """Open windows, earlier panes and the noise that was drawn for them."""
    job = made(loads(without_rows(text)), written(tmp_path, 3, 2, 900), 7, protected=True)
    shards = job.layout.nonempty
    whole = ShardGroup(job, shards)
    for number in range(2):
        for _, given in PartitionReader(job, number).step().batches:
            list(whole.take(ShardBatch.from_bytes(given)))
    states = whole.states()
    saved = [SavedState.from_bytes(state) for state in states]
    names = set(saved[0].arrays)
    assert "sliding.words" in names or text is SPEC
    assert any(name.endswith(".bits") for name in names) == (text is SLIDING)
    assert same(ShardGroup(job, shards, saved).states(), states)
    for middle in range(1, len(shards)):
        parts = ShardGroup(job, shards[:middle], saved[:middle]).states()
        parts += ShardGroup(job, shards[middle:], saved[middle:]).states()
        assert same(parts, states)


def progress(job: ShardedJob, partition: int, closed: int, *, idle: bool = False) -> bytes:
    """A batch for both shards that says how far a partition is."""
    none = np.empty(0, np.int64)
    shards, counts = np.array([0, 1], np.int32), np.zeros(2, np.int64)
    masks = np.empty((0, job.words), np.uint64)
    finished = closed == 20
    return ShardBatch(
        partition, 0, 1, closed, closed, idle, finished, shards, counts,
        none.astype(np.int32), none, masks,
    ).to_bytes()  # fmt: skip


def test_shards_that_closed_different_windows_are_evaluated_apart(tmp_path: Path) -> None:
    """A partition is idle, and comes back: one task hears of it before, one after the other's."""
    spec = loads(SPEC + "subjects: [p0, p1, p2, p3, p4, p5, p6, p7]\n")
    job = made(spec, written(tmp_path, 3, 2, 50), 2)
    assert job.layout.nonempty == (0, 1)
    begin = [progress(job, 0, 3), progress(job, 1, 3, idle=True)]
    further, back = progress(job, 0, 10), progress(job, 1, 5)
    states: dict[int, bytes | None] = {}
    told: list[ShardLine] = []
    for shard, order in enumerate(((further, back), (back, further))):
        worker = ShardWorker(job, {shard: None})
        for given in (*begin, *order):
            own = ShardBatch.from_bytes(given).select([shard]).to_bytes()
            told += map(ShardLine.from_line, worker.take(own))
        states[shard] = worker.state(shard)
    assert [max(line.window for line in told if line.shards == (n,)) for n in (0, 1)] == [9, 4]
    joined = ShardWorker(job, states)
    assert joined.groups == 2
    for given in (progress(job, 1, 12), progress(job, 0, 20), progress(job, 1, 20)):
        told += map(ShardLine.from_line, joined.take(given))
    windows = [(line.window, n) for line in told if not line.finished for n in line.shards]
    assert sorted(windows) == [(window, n) for window in range(1, 20) for n in (0, 1)]
    assert [line.shards for line in told if line.finished] == [(0,), (1,)]
    again = ShardWorker(job, {n: joined.state(n) for n in (0, 1)})
    assert again.groups == 1
    assert min(line.first for line in told if not line.finished) > NONE


def test_a_batch_for_other_shards_is_refused(tmp_path: Path) -> None:
    """It would otherwise be taken for that of the shards that this task has."""
    job = made(loads(SPEC), written(tmp_path, 3, 1, 100), 3)
    (_, given), *_ = PartitionReader(job, 0, None, [[0, 1], [2]]).step().batches
    with pytest.raises(StateError, match="other shards"):
        list(ShardWorker(job, {1: None, 2: None}).take(given))
    list(ShardWorker(job, {0: None, 1: None}).take(given))


@pytest.mark.parametrize(("shards", "tasks"), [(16, 1), (16, 3), (1000, 7), (64, 64)])
def test_all_shards_are_divided_among_the_tasks_in_order(shards: int, tasks: int) -> None:
    groups = choose_groups(shards)
    found = divide_shards(choose_keys(shards, groups), range(shards), groups, tasks)
    assert [shard for task in found for shard in task] == list(range(shards))
    sizes = [len(task) for task in found]
    assert max(sizes) - min(sizes) <= 2


def test_a_line_names_many_shards_in_few_characters() -> None:
    line = ShardLine((0, 1, 2, 3, 5, 8, 9))
    assert line.to_line() == "0-3,5,8-9 finished"
    again = ShardLine.from_line(line.to_line())
    assert again.shards == line.shards
    assert again.finished
    for text in ("3,1 finished", "2-1 finished", "x finished", "-1 finished"):
        with pytest.raises(StateError, match="damaged"):
            ShardLine.from_line(text)


def test_after_a_restart_an_idle_partition_is_awaited_again(tmp_path: Path) -> None:
    """It may have sent something meanwhile, and its reader may be the last to start."""
    spec = loads(SPEC + "subjects: [p0, p1, p2, p3, p4, p5, p6, p7]\n")
    job = made(spec, written(tmp_path, 3, 2, 50), 2)
    worker = ShardWorker(job, {0: None, 1: None})
    told = [*worker.take(progress(job, 0, 3)), *worker.take(progress(job, 1, 3, idle=True))]
    told += worker.take(progress(job, 0, 7))
    assert len(told) == 6
    again = ShardWorker(job, {n: worker.state(n) for n in (0, 1)})
    assert not list(again.take(progress(job, 0, 12)))
    assert len(list(again.take(progress(job, 1, 9)))) == 2
    assert len(list(again.take(progress(job, 1, 9, idle=True)))) == 3
