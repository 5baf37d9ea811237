"""A job with as many slots as a topic has partitions: one Python process in each of 64 slots."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tacit.engines.flink.folders import Folders
from tacit.engines.flink.job_status import JobStatus
from tacit.engines.sharded.job import ShardedJob
from tests.connectors.checks import tuples
from tests.connectors.kafka_ends import KafkaFeed, detect_in_file
from tests.connectors.test_kafka_runs import SPEC
from tests.flink.cluster import StandaloneCluster
from tests.services import Kafka

SLOTS = 64
TUPLES = 30
"""Tuples in each partition."""
SETTINGS = {
    "taskmanager.memory.process.size": "2g",
    # Each task sends to all 64 tasks of the next step.
    "taskmanager.memory.network.min": "512m",
    "taskmanager.memory.network.max": "512m",
}


def test_a_topic_with_64_partitions_is_read_in_64_slots(
    kafka: Kafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without TLS, and with the client's own timeouts: 64 clients start on a machine for tests."""
    config = tmp_path / "kafka.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f"sasl.username={kafka.user}\nsasl.password={kafka.password}\n"
    )
    (tmp_path / "spec.yaml").write_text(SPEC)
    feed = KafkaFeed(kafka.servers, config)
    rows = tuples(0, SLOTS * TUPLES)
    feed.send(rows[:1])
    feed.add_partitions(SLOTS)
    for part in range(SLOTS):
        feed.send(rows[part::SLOTS][part == 0 :], part)
    answers = tmp_path / "answers.jsonl"
    command = [
        *(sys.executable, "-m", "tacit", "submit", f"{tmp_path}/spec.yaml"),
        f"kafka://{kafka.servers}/{feed.topic}?config={config}&{feed.options}",
        *("--parallelism", str(SLOTS), "--shards", str(SLOTS), "--to", str(answers)),
        *("--folder", f"{tmp_path}/job", "--set", "execution.checkpointing.interval=5 s"),
    ]
    windows = (SLOTS * (TUPLES - 1) - 120) // 60  # those that the first partition has passed
    with StandaloneCluster(taskmanagers=2, slots=SLOTS // 2, settings=SETTINGS) as cluster:
        started = time.monotonic()
        with (tmp_path / "log").open("wb") as log:
            driver = subprocess.Popen([*command, "--cluster", cluster.address], stderr=log)
        try:
            deadline = time.monotonic() + 540
            while not answers.exists() or answers.read_bytes().count(b"\n") < 14 * windows:
                told = (tmp_path / "log").read_text()
                assert driver.poll() is None, told
                assert time.monotonic() < deadline, told + cluster.logs()
                time.sleep(0.5)
            took = time.monotonic() - started
            workers = [
                process
                for pid in cluster.pids
                for process in psutil.Process(pid).children(recursive=True)
                if process.name().startswith("python")
            ]
            memory = [process.memory_full_info().uss / 2**20 for process in workers]
            driver.send_signal(signal.SIGTERM)
            assert driver.wait(300) == 0, (tmp_path / "log").read_text()
        finally:
            driver.kill()
            driver.wait(60)
    with capsys.disabled():
        print(
            f"\n{len(workers)} workers of {sum(memory) / len(memory):.0f} MiB on average; all"
            f" answers after {took:.0f} s"
        )
    assert "the job failed" not in (tmp_path / "log").read_text()
    folders = Folders(tmp_path / "job")
    partitions = ShardedJob.read(folders.job).partitions
    assert [one.share for one in partitions] == [(number, SLOTS) for number in range(SLOTS)]
    assert JobStatus.read(folders.status).taken == len(rows)
    assert len(workers) >= SLOTS
    found = [json.loads(line) for line in answers.read_bytes().splitlines()]
    truth = detect_in_file(tmp_path, rows)
    places = {(row["window_start"], row["subject"], row["query"]): row for row in found}
    assert len(places) == len(found) == 14 * windows
    assert {place: row["detected"] for place, row in places.items()} == {
        place: truth[place] for place in places
    }
