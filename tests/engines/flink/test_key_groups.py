"""Keys spread evenly; `tests/flink/test_cluster.py` compares the hash with Flink's own."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.engines.flink.key_groups import MOST, choose_groups, choose_keys, find_groups


@pytest.mark.parametrize(("count", "shards"), [(3, 16), (16, 16), (300, 16), (1000, 1000)])
def test_keys_spread_evenly_over_any_number_of_tasks(count: int, shards: int) -> None:
    groups = choose_groups(shards)
    keys = choose_keys(count, groups)
    assert len(set(keys)) == count
    for tasks in (1, 2, 7, min(count, groups)):
        used = np.bincount(find_groups(np.array(keys), groups) * tasks // groups, minlength=tasks)
        assert used.max() - used.min() <= 1 + count // groups


def test_64_partitions_are_read_in_every_one_of_up_to_64_slots() -> None:
    groups = choose_groups(16)
    keys = np.array(choose_keys(64, groups))
    for slots in range(1, 65):
        used = np.bincount(find_groups(keys, groups) * slots // groups, minlength=slots)
        assert used.min() >= 64 // slots
        assert used.max() <= -(-64 // slots)


def test_there_are_at_least_two_key_groups_for_each_shard() -> None:
    for shards in (1, 16, 64, 65, 1000, 4096, 16_384):
        groups = choose_groups(shards)
        assert groups >= 2 * shards
        assert 128 <= groups <= MOST
