"""Numbers for keys, against a dictionary."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.privacy.keys import KeyTable


@given(st.integers(1, 3), st.lists(st.integers(0, 40), max_size=60), st.integers(0, 2**32))
def test_keys_have_the_numbers_that_a_dictionary_gives_them(
    width: int, batches: list[int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    keys, slow = KeyTable(width), dict[bytes, int]()
    for size in batches:
        # Few different words, so that keys come again and differ in one word only.
        asked = rng.integers(0, 4, (size, width)).astype(np.uint64) << np.uint64(62)
        found = keys.look_up(asked)
        assert found.tolist() == [slow.get(row.tobytes(), -1) for row in asked]
        new = np.unique(asked[found < 0], axis=0)
        keys.add(new)
        for row in new:
            slow[row.tobytes()] = len(slow)
        assert len(keys) == len(slow)


@pytest.mark.parametrize("width", [1, 2, 5])
def test_many_keys_are_found_again_after_the_table_has_grown(width: int) -> None:
    rng = np.random.default_rng(width)
    keys = KeyTable(width)
    all_keys = np.unique(rng.integers(0, 2**64, (5000, width), dtype=np.uint64), axis=0)
    for part in np.array_split(all_keys, 37):
        keys.add(part)
    assert np.array_equal(keys.look_up(all_keys), np.arange(len(all_keys)))
    assert (keys.look_up(all_keys ^ np.uint64(1 << 40)) == -1).all()


def test_nothing_known_and_nothing_asked() -> None:
    keys = KeyTable(2)
    assert keys.look_up(np.zeros((3, 2), np.uint64)).tolist() == [-1, -1, -1]
    assert keys.look_up(np.empty((0, 2), np.uint64)).tolist() == []
    keys.add(np.empty((0, 2), np.uint64))
    assert len(keys) == 0
