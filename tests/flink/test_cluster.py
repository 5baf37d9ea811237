"""A real standalone cluster, as its REST API shows it."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest

from tacit.engines.flink import rest
from tacit.engines.flink.java import find_flink_version
from tacit.engines.flink.key_groups import find_groups
from tacit.engines.flink.launch import _environment
from tacit.errors import EngineError
from tests.flink.cluster import StandaloneCluster


def test_it_tells_what_it_is_and_has(cluster: StandaloneCluster) -> None:
    overview = cluster.rest.check(2)
    assert overview.version == find_flink_version()
    assert (overview.taskmanagers, overview.slots, overview.free_slots) == (1, 2, 2)
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


def test_slots_that_are_not_there_yet_are_waited_for_with_a_message(
    cluster: StandaloneCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.rest.check(2)
    assert not caplog.messages
    cluster.rest.check(3)
    assert "has 2 of 2 slots free, and the job needs 3: it waits" in caplog.messages[0]


def test_the_java_process_of_a_driver_starts_in_the_background_with_our_options() -> None:
    """In a process of its own: each has one gateway. The environment stays as it was."""
    code = """
import os
from tacit.engines.flink.gateway import start_gateway
os.environ["JVM_ARGS"] = "-Dtacit.given=yes"
start_gateway()
from pyflink.java_gateway import get_gateway
management = get_gateway().jvm.java.lang.management.ManagementFactory
options = list(management.getRuntimeMXBean().getInputArguments())
print("-XX:TieredStopAtLevel=1" in options, "-Dtacit.given=yes" in options)
import threading
[thread.join() for thread in threading.enumerate() if thread.name == "tacit-flink-gateway"]
print(os.environ["JVM_ARGS"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180)
    assert done.stdout.split() == ["True", "True", "-Dtacit.given=yes"], done.stderr


def test_keys_are_in_the_key_groups_that_flink_has() -> None:
    from pyflink.java_gateway import get_gateway

    jvm = get_gateway().jvm
    groups = jvm.org.apache.flink.runtime.state.KeyGroupRangeAssignment
    for key in (0, 1, 77, 1_000_003, (1 << 31) - 40):
        row = jvm.org.apache.flink.types.Row(1)
        row.setField(0, key)
        for number in (128, 2048, 32_768):
            found = find_groups(np.array([key]), number)[0]
            assert found == groups.assignToKeyGroup(row, number)


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
