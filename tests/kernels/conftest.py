"""Programs that start at once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.forking import Forks
from tests.kernels.programs import Programs


@pytest.fixture(scope="session")
def compilers() -> Iterator[Forks]:
    """Forks of a process that has compiled something."""
    with Forks("tests.kernels.programs") as server:
        yield server


@pytest.fixture
def programs(compilers: Forks, tmp_path: Path) -> Programs:
    """Programs in a folder of their own."""
    return Programs(compilers, tmp_path)
