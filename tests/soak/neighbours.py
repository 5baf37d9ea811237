"""The long version of tests/differential/test_neighbours.py: other specifications, and more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.differential.neighbours import variants
from tests.differential.outputs import find_difference
from tests.differential.test_neighbours import WORLDS
from tests.differential.worlds import make_world


@pytest.mark.parametrize("kind", WORLDS)
def test_private_tuples_change_no_byte_of_any_output(kind: str, tmp_path: Path) -> None:
    """A hundred random specifications that the suite does not have."""
    for number in range(20, 120):
        world = make_world(kind, number)
        folder = tmp_path / str(number)
        folder.mkdir()
        assert find_difference(world, folder, variants(world)) is None
