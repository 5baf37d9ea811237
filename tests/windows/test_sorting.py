"""Buckets of tuples are sorted by time, and equal times keep their order."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from tacit.windows.event_buffer import _sort_each


@pytest.mark.parametrize("disorder", [2, 5000])
@pytest.mark.parametrize("words", [1, 2])
def test_each_bucket_is_sorted_and_equal_times_keep_their_order(disorder: int, words: int) -> None:
    """With little disorder by insertion, with much by merging; both as NumPy's stable sort."""
    rng = np.random.default_rng(7)
    starts = np.array([0, 0, 1, 3, 700, 5000])
    times = (np.arange(5000) + rng.integers(0, disorder, 5000)) // 4
    masks = rng.integers(0, 2**63, (5000, words)).astype(np.uint64)
    expected_times, expected_masks = times.copy(), masks.copy()
    for begin, end in pairwise(starts):
        order = begin + np.argsort(times[begin:end], kind="stable")
        expected_times[begin:end], expected_masks[begin:end] = times[order], masks[order]
    _sort_each(starts, times, masks)
    assert np.array_equal(times, expected_times)
    assert np.array_equal(masks, expected_masks)
