"""The long version of tests/flink/test_kills.py: twenty TaskManagers, and drivers, are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flink.cluster import StandaloneCluster
from tests.flink.killing import killed


@pytest.mark.parametrize("seed", [11])
def test_windows_are_released_once_whatever_is_killed(tmp_path: Path, seed: int) -> None:
    with StandaloneCluster(taskmanagers=2, slots=2) as cluster:
        machines, drivers = killed(tmp_path, cluster, kills=20, seed=seed, rescaled=True)
    assert machines == 20
    assert drivers
