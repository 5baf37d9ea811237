"""The differential test finds each planted break within its budget."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.differential.mutants import MUTANTS
from tests.differential.neighbours import variants
from tests.differential.outputs import find_difference
from tests.differential.test_neighbours import WORLDS
from tests.differential.worlds import make_world

BUDGET = 40
"""Worlds that are tried, of those that the test itself looks at."""


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_break_is_found(name: str, tmp_path: Path) -> None:
    planted = MUTANTS[name]
    for tried in range(BUDGET):
        number, place = divmod(planted.first + tried, len(planted.kinds))
        if number not in WORLDS[planted.kinds[place]]:
            continue
        world = make_world(planted.kinds[place], number)
        folder = tmp_path / str(tried)
        folder.mkdir()
        with planted.mutant():
            found = find_difference(world, folder, variants(world))
        if found is not None:
            return
    pytest.fail(f"{name}: no difference in {tried + 1} worlds")
