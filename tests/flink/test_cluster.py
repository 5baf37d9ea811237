"""A real standalone cluster, as its REST API shows it."""

from __future__ import annotations

import sys
import time

import pytest

from tacit.engines.flink import rest
from tacit.engines.flink.java import find_flink_version
from tacit.engines.flink.launch import _environment
from tacit.errors import EngineError
from tests.flink.cluster import StandaloneCluster


def test_it_tells_what_it_is_and_has(cluster: StandaloneCluster) -> None:
    overview = cluster.rest.check(4)
    assert overview.version == find_flink_version()
    assert (overview.taskmanagers, overview.slots, overview.free_slots) == (2, 4, 4)
    assert cluster.rest.has_python()


def test_it_has_no_job_of_a_name_that_nobody_gave(cluster: StandaloneCluster) -> None:
    assert cluster.rest.find_running("taxi") is None
    with pytest.raises(EngineError, match=r"refuses: .*NotFound"):
        cluster.rest.get_state("0" * 32)


def test_another_version_is_refused(
    cluster: StandaloneCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest, "find_flink_version", lambda: "2.4.0")
    with pytest.raises(EngineError, match=r"both must be of the same version"):
        cluster.rest.check(1)


def test_more_parallelism_than_slots_is_refused(cluster: StandaloneCluster) -> None:
    with pytest.raises(EngineError, match="has 4 of 4 slots free; parallelism 5 needs as many"):
        cluster.rest.check(5)


def test_a_failure_is_told_without_what_an_event_held(cluster: StandaloneCluster) -> None:
    from pyflink.common import Types

    def refuse(name: str) -> str:
        raise ValueError(f"{name} was here")

    settings = {"restart-strategy.type": "none", "python.executable": sys.executable}
    env = _environment(settings, cluster.rest)
    env.set_parallelism(1)
    env.from_collection(["Ada"], Types.STRING()).map(refuse, Types.STRING()).print()
    env.execute_async("refusing")
    job = cluster.rest.list_jobs()[0]
    assert job.name == "refusing"
    deadline = time.monotonic() + 120
    while cluster.rest.get_state(job.id) != "FAILED":
        assert time.monotonic() < deadline, cluster.logs()
        time.sleep(0.1)
    reason = cluster.rest.list_failures(job.id)[0].reason
    assert reason.startswith("ValueError at ")
    assert "test_cluster.py:" in reason
    assert "Ada" not in reason
    assert cluster.rest.find_running("refusing") is None
    cluster.rest.cancel(job.id)
