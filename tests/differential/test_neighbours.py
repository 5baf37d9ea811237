"""The whole command line, from raw input to answer files: private tuples alone change nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.differential.neighbours import variants
from tests.differential.outputs import find_difference
from tests.differential.worlds import CODINGS, random_world

SEEDS = range(20)


@pytest.mark.parametrize("coding", CODINGS)
def test_private_tuples_change_no_byte_of_any_output(coding: str, tmp_path: Path) -> None:
    """Random specifications; neighbours differ in all that private tuples can differ in."""
    for seed in SEEDS:
        world = random_world(seed * len(CODINGS) + CODINGS.index(coding), coding)
        folder = tmp_path / str(seed)
        folder.mkdir()
        assert find_difference(world, folder, variants(world)) is None
