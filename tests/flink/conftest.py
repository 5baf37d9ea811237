"""These tests run in the environment that has PyFlink."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyflink", reason="there is no PyFlink for this version of Python")

if TYPE_CHECKING:
    from tests.flink.cluster import StandaloneCluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[StandaloneCluster]:
    """A standalone cluster for all tests that need one."""
    from tests.flink.cluster import StandaloneCluster

    with StandaloneCluster(taskmanagers=1, slots=2) as running:
        yield running
