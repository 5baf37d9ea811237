"""Private values that look like other types change no byte of any output."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.differential.outputs import Outputs, Runs
from tests.differential.strategies import free_tuples
from tests.differential.worlds import CODINGS, RawTuple, Variant, World, typed_world

PLAIN = Variant(1, odd=0.0)


@dataclass(frozen=True)
class Compared:
    """A world whose outputs are known without any private tuple."""

    runs: Runs
    public: list[RawTuple]
    expected: Outputs

    @classmethod
    def of(cls, world: World, folder: Path) -> Compared:
        """Run it once."""
        runs, public = Runs(world, folder), world.public_tuples(PLAIN)
        expected = runs.run_tuples(public)
        assert expected.exit_code == 0, expected.error
        return cls(runs, public, expected)


@pytest.mark.parametrize("coding", CODINGS)
def test_private_values_that_look_like_other_types_change_nothing(
    coding: str, tmp_path: Path
) -> None:
    known = Compared.of(typed_world(coding), tmp_path)

    @settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(free_tuples(known.runs.world), min_size=1, max_size=8))
    def compare(private: list[RawTuple]) -> None:
        assert known.expected.differs(known.runs.run_tuples([*known.public, *private])) is None

    compare()
