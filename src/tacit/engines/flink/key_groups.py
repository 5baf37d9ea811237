"""Keys that Flink spreads evenly over its tasks.

Flink assigns a key to a key group by a hash, and key groups to tasks in order. The number of key
groups is the upper bound of a job's parallelism, and cannot change later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_FEWEST: Final = 128
MOST: Final = 32_768
"""The most key groups that Flink has."""
_ROW: Final = 62
"""Java's hash of a row with one number is the number and this."""


def choose_groups(shards: int) -> int:
    """Choose the number of key groups of a job: a power of two, at least two per shard.

    >>> choose_groups(16), choose_groups(1000)
    (128, 2048)
    """
    return min(MOST, max(_FEWEST, 2 << (shards - 1).bit_length()))


def choose_keys(count: int, groups: int) -> list[int]:
    """Choose `count` different keys that Flink spreads evenly over `groups` key groups."""
    wanted = (2 * np.arange(count) + 1) * groups // (2 * count)
    needed = np.bincount(wanted, minlength=groups)
    size = 16 * max(groups, count)
    while True:
        found = find_groups(np.arange(size), groups)
        if (np.bincount(found, minlength=groups) >= needed).all():
            break
        size *= 2
    keys = np.argsort(found, kind="stable")
    starts = np.searchsorted(found[keys], np.arange(groups))
    # The groups are in order, so the keys of one group are wanted one after the other.
    nth = np.arange(count) - np.searchsorted(wanted, wanted)
    chosen: list[int] = keys[starts[wanted] + nth].tolist()
    return chosen


def divide_shards(
    keys: Sequence[int], shards: Sequence[int], groups: int, tasks: int
) -> list[list[int]]:
    """Divide shards, in order, among the tasks that Flink sends their keys to."""
    found: list[list[int]] = [[] for _ in range(tasks)]
    places = find_groups(np.array(keys)[list(shards)], groups) * tasks // groups
    for shard, task in zip(shards, places.tolist(), strict=True):
        found[task].append(shard)
    return found


def find_groups(keys: NDArray[Any], groups: int) -> NDArray[np.int64]:
    """Return the key group that Flink assigns to each number: a Murmur hash of its row's hash."""
    code = _multiply(keys.astype(np.uint32) + np.uint32(_ROW), 0xCC9E2D51)
    code = _multiply(_rotate(code, 15), 0x1B873593)
    code = _multiply(_rotate(code, 13), 5) + np.uint32(0xE6546B64)
    code ^= np.uint32(4)
    code ^= code >> np.uint32(16)
    code = _multiply(code, 0x85EBCA6B)
    code ^= code >> np.uint32(13)
    code = _multiply(code, 0xC2B2AE35)
    code ^= code >> np.uint32(16)
    signed = np.abs(code.view(np.int32).astype(np.int64))
    return np.where(signed == 1 << 31, 0, signed) % groups


def _multiply(code: NDArray[np.uint32], factor: int) -> NDArray[np.uint32]:
    return code * np.uint32(factor)


def _rotate(code: NDArray[np.uint32], by: int) -> NDArray[np.uint32]:
    return code << np.uint32(by) | code >> np.uint32(32 - by)
