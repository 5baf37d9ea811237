"""The settings with which a job is started."""

from __future__ import annotations

from tacit.engines.flink.launch import choose_interval
from tacit.engines.sharded.preparation import SHARDS


def test_checkpoints_are_rarer_if_a_task_has_many_shards() -> None:
    """Each shard's state takes some milliseconds with every checkpoint."""
    assert choose_interval(SHARDS, 1) == "1 s"
    assert choose_interval(1024, 64) == "1 s"
    assert choose_interval(1024, 63) == "2 s"
    assert choose_interval(SHARDS + 1, 1) == "2 s"
