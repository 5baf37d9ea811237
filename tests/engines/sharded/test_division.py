"""States are divided by shards: each part has its own slots, counted from 0."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.engines.sharded.division import SlotRanges, divide_windows, join_windows

RANGES = SlotRanges.of([2, 3, 1])


def test_parts_count_slots_from_their_own_first_and_join_again() -> None:
    slots = np.array([4, 0, 5, 1, 2, 4])
    number = np.arange(len(slots))
    arrays: dict[str, NDArray[Any]] = {
        "panes.owners": slots.astype(np.int32),
        "panes.times": number,
        "panes.masks": number,
        "sliding.drawn.a.moments": np.array([number, number, slots]),
    }
    parts = divide_windows(arrays, {}, RANGES)
    assert [own["panes.owners"].tolist() for own, _ in parts] == [[0, 1], [2, 0, 2], [0]]
    assert [own["panes.times"].tolist() for own, _ in parts] == [[1, 3], [0, 4, 5], [2]]
    moments = [own["sliding.drawn.a.moments"] for own, _ in parts]
    assert [part[2].tolist() for part in moments] == [[0, 1], [2, 0, 2], [0]]
    assert [part[0].tolist() for part in moments] == [[1, 3], [0, 4, 5], [2]]
    joined, _ = join_windows(parts, RANGES)
    assert joined["panes.owners"].tolist() == [0, 1, 4, 2, 4, 5]
    assert joined["panes.times"].tolist() == [1, 3, 0, 4, 5, 2]
