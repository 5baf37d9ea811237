"""Jobs on clusters as people deploy them: a lost JobManager, an application, S3, HDFS, YARN."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tacit.engines.flink.folders import Folders
from tacit.engines.flink.releaser import Releaser
from tacit.errors import EngineError
from tests.flink.cluster import ApplicationCluster, StandaloneCluster, flink_home
from tests.flink.killing import Driver, check, prepare
from tests.flink.test_kills import wait_for_line
from tests.services import free_port, program
from tests.soak.hadoop import Hadoop, YarnSession

_KEYS = {"AWS_ACCESS_KEY_ID": "tacit", "AWS_SECRET_ACCESS_KEY": "tacit-secret"}


@contextmanager
def _server(command: list[str], port: int, **environment: str) -> Iterator[None]:
    """Run a server until the end of the block; it is ready when its port is."""
    process = subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert process.poll() is None, command
                assert time.monotonic() < deadline, command
                time.sleep(0.1)
        yield
    finally:
        process.kill()
        process.wait(60)


@contextmanager
def _zookeeper(folder: Path) -> Iterator[str]:
    """Run the ZooKeeper server that Flink's own JAR has; yield its address."""
    port = free_port()
    jars = ":".join(map(str, (flink_home() / "lib").glob("*.jar")))
    name = "org.apache.flink.shaded.zookeeper3.org.apache.zookeeper.server.ZooKeeperServerMain"
    options = ["-Dzookeeper.admin.enableServer=false", "-Xmx128m"]
    command = [program("java"), *options, "-cp", jars, name, str(port), str(folder)]
    with _server(command, port):
        yield f"localhost:{port}"


def test_the_job_goes_on_when_its_jobmanager_is_lost(tmp_path: Path) -> None:
    """High availability with ZooKeeper: another JobManager takes the job over, without a driver."""
    with _zookeeper(tmp_path / "zookeeper") as quorum:
        settings = {
            "high-availability.type": "zookeeper",
            "high-availability.zookeeper.quorum": quorum,
            "high-availability.zookeeper.client.session-timeout": "5 s",
            "high-availability.storageDir": (tmp_path / "recovery").as_uri(),
        }
        with StandaloneCluster(taskmanagers=2, slots=2, settings=settings) as cluster:
            feeder, driver = prepare(tmp_path, cluster.address, 41)
            driver.start(2, "--detach")
            assert driver.process is not None
            assert driver.process.wait(240) == 0, driver.log
            feeder.start()
            try:
                driver.wait_for(2, cluster, alone=True)
                for _ in range(2):
                    cluster.kill_jobmanager()
                    cluster.start_jobmanager()
                    _wait_until_restored(cluster)
                    driver.wait_for(driver.released() + 5, cluster, alone=True)
                driver.start(2)
                wait_for_line(driver, "is running")
            finally:
                feeder.stop()
            driver.stop()
            check(driver, feeder.paths)


def test_an_application_cluster_runs_one_job_to_its_end(tmp_path: Path) -> None:
    """The JobManager itself runs `tacit submit`; a new one resumes the job from its checkpoint."""
    feeder, driver = prepare(tmp_path, "localhost:8081", 43)
    for _ in range(60):
        feeder.feed()
    command = ["submit", str(tmp_path / "home.yaml"), *map(str, feeder.paths)]
    command += ["--mechanism", "uniform", "--parallelism", "2", "--python", sys.executable]
    command += ["--set", "execution.checkpointing.interval=500 ms"]
    kept = ["--to", str(driver.answers), "--folder", str(tmp_path / "home.job"), "--follow"]
    with ApplicationCluster(*command, *kept) as cluster:
        feeder.start()
        _wait_for_windows(cluster, driver.released, 3)
        cluster.kill_jobmanager()
        cluster.start_jobmanager()
        job = _wait_until_restored(cluster)
        _wait_for_windows(cluster, driver.released, driver.released() + 5)
        feeder.stop()
        with suppress(EngineError):  # the cluster ends with its job, and stops answering
            cluster.rest.stop(job, (tmp_path / "home.job" / "savepoints").as_uri())
        assert cluster.jobmanager is not None
        cluster.jobmanager.wait(120)
    with Releaser(Folders(tmp_path / "home.job")) as releaser:  # as the next start would
        releaser.release()
        releaser.complete()
    check(driver, feeder.paths)
    ended = ["--to", str(tmp_path / "ended.jsonl"), "--folder", str(tmp_path / "ended.job")]
    with ApplicationCluster(*command, *ended) as cluster:
        assert cluster.jobmanager is not None
        assert cluster.jobmanager.wait(240) == 0, cluster.logs()
    assert (tmp_path / "ended.jsonl").read_bytes().count(
        b"\n"
    ) >= driver.answers.read_bytes().count(b"\n")


def _wait_until_restored(cluster: StandaloneCluster) -> str:
    """Wait until the new JobManager has restored the job from a checkpoint; return its id."""
    deadline = time.monotonic() + 240
    while True:
        with suppress(EngineError):
            job = cluster.rest.find_running("home")
            if (
                job is not None
                and job.state == "RUNNING"
                and cluster.rest.get_checkpoints(job.id).restored
            ):
                return job.id
        cluster.heal()
        assert time.monotonic() < deadline, cluster.logs()
        time.sleep(0.2)


def _wait_for_windows(
    cluster: StandaloneCluster, released: Callable[[], int], windows: int
) -> None:
    deadline = time.monotonic() + 240
    while released() < windows:
        cluster.heal()
        assert time.monotonic() < deadline, cluster.logs()
        time.sleep(0.2)


def _install(environment: Path, *packages: str) -> None:
    """Install packages into an environment of their own, or skip the test."""
    for command in (
        [sys.executable, "-m", "venv", str(environment)],
        [str(environment / "bin/pip"), "install", "--quiet", "--no-compile", *packages],
    ):
        if subprocess.run(command, capture_output=True, timeout=300).returncode:
            pytest.skip(f"the package {packages[0]} could not be installed")


@contextmanager
def _s3(folder: Path) -> Iterator[str]:
    """Run a stand-in for S3, which speaks its protocol; yield its URL."""
    environment = folder / "moto"
    _install(environment, "moto[s3]", "flask", "flask-cors")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with _server([str(environment / "bin/moto_server"), "-p", str(port)], port, **_KEYS):
        create = f"import boto3; boto3.client('s3', 'us-east-1', endpoint_url={url!r})"
        create += ".create_bucket(Bucket='states')"
        command = [str(environment / "bin/python"), "-c", create]
        subprocess.run(command, check=True, env={**os.environ, **_KEYS}, timeout=60)
        yield url


def _fetch_plugin(folder: Path) -> Path:
    """Fetch Flink's plugin for S3 with Maven."""
    import pyflink.version

    artifact = f"org.apache.flink:flink-s3-fs-hadoop:{pyflink.version.__version__}"
    command = [program("mvn"), "-q", "-B", "dependency:copy", f"-Dartifact={artifact}"]
    command += [f"-DoutputDirectory={folder}"]
    if subprocess.run(command, capture_output=True, timeout=300).returncode:
        pytest.skip(f"{artifact} could not be fetched")
    return next(folder.glob("flink-s3-fs-hadoop-*.jar"))


def test_states_are_in_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With Flink's plugin, and a stand-in for S3."""
    jar = _fetch_plugin(tmp_path)
    with _s3(tmp_path) as url:
        access = {
            "s3.endpoint": url,
            "s3.path.style.access": True,
            "s3.access-key": _KEYS["AWS_ACCESS_KEY_ID"],
            "s3.secret-key": _KEYS["AWS_SECRET_ACCESS_KEY"],
        }
        cluster = StandaloneCluster(taskmanagers=2, slots=2, settings=access)
        plugin = cluster.folder / "plugins" / "s3"
        plugin.mkdir()
        shutil.copy(jar, plugin)
        for name in ("FLINK_CONF_DIR", "FLINK_PLUGINS_DIR"):
            monkeypatch.setenv(name, cluster.environment[name])
        with cluster:
            _run_with_states_in("s3://states", tmp_path, cluster)


def test_states_are_in_hdfs(
    tmp_path: Path, hadoop: Hadoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flink finds Hadoop's client by HADOOP_CLASSPATH, on the cluster and in the driver."""
    hadoop.start_hdfs()
    monkeypatch.setenv("HADOOP_CLASSPATH", hadoop.environment["HADOOP_CLASSPATH"])
    with StandaloneCluster(taskmanagers=2, slots=2) as cluster:
        _run_with_states_in(hadoop.url, tmp_path, cluster)


def test_a_session_on_yarn_starts_taskmanagers_on_demand(
    tmp_path: Path, hadoop: Hadoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session has no slot before the job comes, and replaces a TaskManager that is lost."""
    hadoop.start_hdfs()
    hadoop.start_yarn()
    monkeypatch.setenv("HADOOP_CLASSPATH", hadoop.environment["HADOOP_CLASSPATH"])
    with YarnSession(hadoop) as cluster:
        driver = _run_with_states_in(hadoop.url, tmp_path, cluster)
    assert "has 0 of 0 slots free, and the job needs 2: it waits" in driver.log


@pytest.fixture
def hadoop(tmp_path: Path) -> Iterator[Hadoop]:
    """Servers of Hadoop that are not started yet."""
    (tmp_path / "hadoop").mkdir()
    with Hadoop(tmp_path / "hadoop") as servers:
        yield servers


def _run_with_states_in(place: str, folder: Path, cluster: StandaloneCluster) -> Driver:
    """Checkpoints and savepoints are there; the job survives a kill, and is resumed from there."""
    settings = {
        "execution.checkpointing.dir": f"{place}/checkpoints",
        "execution.checkpointing.savepoint-dir": f"{place}/savepoints",
    }
    feeder, driver = prepare(folder, cluster.address, 47, settings)
    driver.start(2)
    feeder.start()
    try:
        driver.wait_for(2, cluster)
        cluster.kill_taskmanager()
        driver.wait_for(driver.released() + 3, cluster)
        driver.stop()
        assert f"{place}/savepoints/savepoint-" in driver.log
        cluster.heal()
        cluster.wait_for_taskmanagers()
        before = driver.released()
        driver.start(4)
        driver.wait_for(before + 3, cluster)
        assert "continues" in driver.last_log
    finally:
        feeder.stop()
    driver.stop()
    assert not list((folder / "home.job" / "checkpoints").iterdir())
    check(driver, feeder.paths)
    return driver


def test_a_job_waits_for_taskmanagers_that_come_later(tmp_path: Path) -> None:
    """The cluster has no slot at all when the job is submitted, as where they come on demand.

    Then one TaskManager comes, which is not enough, and later another one.
    """
    with StandaloneCluster(taskmanagers=0, slots=1) as cluster:
        feeder, driver = prepare(tmp_path, cluster.address, 53)
        for _ in range(30):
            feeder.feed()
        driver.start(2)
        wait_for_line(driver, "has 0 of 0 slots free, and the job needs 2: it waits")
        wait_for_line(driver, "starts")
        cluster.start_taskmanager()
        cluster.wait_for_taskmanagers()
        time.sleep(5)
        assert not driver.released()
        cluster.start_taskmanager()
        feeder.start()
        try:
            driver.wait_for(2, cluster)
            _check_metrics(cluster)
        finally:
            feeder.stop()
        driver.stop()
        check(driver, feeder.paths)


def _check_metrics(cluster: StandaloneCluster) -> None:
    """Flink has our metrics of the releaser, which are public, and no others."""
    job = cluster.rest.find_running("home")
    assert job is not None
    vertices = f"/v1/jobs/{job.id}/vertices"
    names = {one["id"]: one["name"] for one in _get(cluster, f"/v1/jobs/{job.id}")["vertices"]}
    deadline = time.monotonic() + 120
    while True:
        found = {
            metric["id"]: name
            for vertex, name in names.items()
            for metric in _get(cluster, f"{vertices}/{vertex}/metrics")
            if ".tacit." in metric["id"]
        }
        released = [metric for metric in found if metric.endswith(".tacit.windowsReleased")]
        if released:
            place = next(vertex for vertex, name in names.items() if name == found[released[0]])
            (value,) = _get(cluster, f"{vertices}/{place}/metrics?get={released[0]}")
            if int(value["value"]) >= 2:
                break
        assert time.monotonic() < deadline, found
        time.sleep(0.5)
    assert {metric.rpartition(".")[2] for metric in found} == {
        "windowsReleased",
        "releasedUntil",
        "subjectsExhausted",
        "releasesUndelivered",
        "deliveryRetries",
    }
    assert set(found.values()) == {"releaser"}


def _get(cluster: StandaloneCluster, path: str) -> Any:
    with urllib.request.urlopen(f"http://{cluster.address}{path}", timeout=60) as answer:
        return json.load(answer)


def test_the_manifests_for_kubernetes_are_valid(tmp_path: Path) -> None:
    """Each object has the fields that the schemas of Kubernetes ask for, and no others."""
    _install(tmp_path / "validator", "kubernetes-validate")
    validate = [str(tmp_path / "validator/bin/kubernetes-validate"), "--strict", "-k", "1.30"]
    manifests = sorted(Path("examples/kubernetes").glob("*.yaml"))
    assert len(manifests) == 2
    for manifest in manifests:
        done = subprocess.run([*validate, manifest], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(manifests[0].read_text().replace("containers:", "container:"))
    assert subprocess.run([*validate, wrong], capture_output=True, timeout=60).returncode
