"""The whole command line, from raw input to answer files: private tuples alone change nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.differential.neighbours import variants
from tests.differential.outputs import find_difference
from tests.differential.worlds import BOTH, CODINGS, RELOADING, REMEMBERING, make_world

WORLDS: dict[str, list[int]] = {
    **{coding: [*range(5)] for coding in CODINGS},
    "csv": [*range(9), 18],
    "parquet": [*range(7)],
    "cbor": [*range(6)],
    RELOADING: [*range(9)],
    REMEMBERING: [*range(4)],
    BOTH: [5, 8, 13],
}
"""The numbers of random specifications, for each coding of the input.

Planted breaks are found in them. `make soak` has a hundred more for each coding.
"""


@pytest.mark.parametrize("kind", WORLDS)
def test_private_tuples_change_no_byte_of_any_output(kind: str, tmp_path: Path) -> None:
    """Random specifications; neighbours differ in all that private tuples can differ in."""
    for number in WORLDS[kind]:
        world = make_world(kind, number)
        folder = tmp_path / str(number)
        folder.mkdir()
        assert find_difference(world, folder, variants(world)) is None
