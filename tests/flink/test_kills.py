"""Machines and the driver are killed while a job runs: windows go on, and each is released once."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.flink.cluster import Proxy, StandaloneCluster, flink_home
from tests.flink.killing import Driver, check, prepare


@pytest.fixture
def cluster() -> Iterator[StandaloneCluster]:
    """A standalone cluster that can lose a TaskManager."""
    with StandaloneCluster(taskmanagers=2, slots=2) as running:
        yield running


@pytest.fixture
def proxy(
    cluster: StandaloneCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Proxy]:
    """A proxy with HTTPS before the cluster; drivers know its token and its certificate."""
    monkeypatch.setenv("FLINK_REST_CLIENT_HEADERS", f"Authorization:{Proxy.TOKEN}")
    started = Proxy(cluster.port, tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(started.certificate))
    yield started
    started.close()


@pytest.mark.soak
def test_windows_go_on_without_the_driver(
    cluster: StandaloneCluster, proxy: Proxy, tmp_path: Path
) -> None:
    """The driver and a TaskManager are killed together, and nobody helps.

    Then the job is watched again, stopped by Flink's own command, and resumed from there. Drivers
    reach the cluster through a proxy with HTTPS, a token and a path. State is in RocksDB. `make
    soak` kills more often.
    """
    settings = {**proxy.settings, "state.backend.type": "rocksdb"}
    feeder, driver = prepare(tmp_path, proxy.address, 31, settings)
    driver.start(2, "--detach")
    assert driver.process is not None
    assert driver.process.wait(240) == 0, driver.log
    assert "It continues by itself" in driver.log
    feeder.start()
    try:
        driver.wait_for(2, cluster, alone=True)
        driver.start(2)
        wait_for_line(driver, "is running")
        workers = cluster.kill_taskmanager_alone()
        driver.kill()
        before = driver.released()
        driver.wait_for(before + 4, cluster, alone=True)
        _, left = psutil.wait_procs(workers, timeout=30)
        assert not left
        driver.attach()
        wait_for_line(driver, "released")
        driver.process.send_signal(signal.SIGTERM)
        assert driver.process.wait(60) == 0, driver.log
        driver.wait_for(driver.released() + 2, cluster, alone=True)
        stop_with_flink(cluster, tmp_path / "home.job" / "savepoints")
        before = driver.released()
        driver.start(2)
        driver.wait_for(before + 2, cluster)
    finally:
        feeder.stop()
    driver.stop()
    check(driver, feeder.paths)


def wait_for_line(driver: Driver, text: str) -> None:
    """Until the driver that was started last has said this."""
    deadline = time.monotonic() + 120
    while text not in driver.last_log:
        assert time.monotonic() < deadline, driver.log
        time.sleep(0.2)


def stop_with_flink(cluster: StandaloneCluster, folder: Path) -> None:
    """Stop the job with a savepoint by the command of Flink itself; retry until all tasks run."""
    job = cluster.rest.find_running("home")
    assert job is not None
    command = [str(flink_home() / "bin" / "flink"), "stop", "-m", cluster.address]
    command += ["--savepointPath", folder.as_uri(), job.id]
    deadline = time.monotonic() + 120
    while True:
        done = subprocess.run(
            command, env=cluster.environment, capture_output=True, text=True, timeout=180
        )
        if done.returncode == 0:
            break
        told = done.stdout + done.stderr
        assert "Not all required tasks are currently running" in told, told
        assert time.monotonic() < deadline, told
    assert list(folder.glob("savepoint-*/_metadata"))
