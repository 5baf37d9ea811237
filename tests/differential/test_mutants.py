"""The differential test finds each planted break within its budget."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.differential.mutants import MUTANTS
from tests.differential.neighbours import variants
from tests.differential.outputs import find_difference
from tests.differential.worlds import CODINGS, random_world

BUDGET = 60
"""Worlds; fewer than the test itself looks at."""


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_break_is_found(name: str, tmp_path: Path) -> None:
    mutant, codings = MUTANTS[name]
    for number in range(BUDGET):
        coding = codings[number % len(codings)]
        world = random_world(number // len(codings) * len(CODINGS) + CODINGS.index(coding), coding)
        folder = tmp_path / str(number)
        folder.mkdir()
        with mutant():
            found = find_difference(world, folder, variants(world))
        if found is not None:
            return
    pytest.fail(f"{name}: no difference in {BUDGET} worlds")
