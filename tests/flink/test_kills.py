"""Machines and the driver are killed while a job runs: every window is released once."""

from __future__ import annotations

from pathlib import Path

from tests.flink.killing import killed


def test_windows_are_released_once_whatever_is_killed(tmp_path: Path) -> None:
    """A few kills, and then another parallelism; `make soak` kills more often."""
    machines, _ = killed(tmp_path, kills=3, seed=1)
    assert machines == 3
