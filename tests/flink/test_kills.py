"""Machines and the driver are killed while a job runs: every window is released once."""

from __future__ import annotations

from pathlib import Path

from tests.flink.cluster import StandaloneCluster
from tests.flink.killing import killed


def test_windows_are_released_once_whatever_is_killed(
    cluster: StandaloneCluster, tmp_path: Path
) -> None:
    """The driver and a TaskManager; `make soak` kills more often."""
    assert killed(tmp_path, cluster, kills=1, seed=31, rescaled=False) == (1, 1)
