"""A run from Kafka to Kafka that is killed again and again: nothing is lost, nothing is twice."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.connectors.checks import tuples
from tests.connectors.kafka_ends import Broker, KafkaFeed, KafkaReceiver, broker, config

__all__ = ["broker", "config"]  # fixtures

SPEC = """
version: 1
streams: {gps: {subject: subject, time: at}}
windows: {size: 1 min, lateness: 2 min}
subjects: [s0, s1, s2, s3, s4, s5, s6]
events:
  third: {stream: gps, where: "n % 3 = 1"}
  tenth: {stream: gps, where: "n % 10 = 0"}
queries:
  - {name: jam, consumer: city, pattern: "SEQ(third, tenth)"}
  - {name: visit, consumer: clinic, pattern: "AND(tenth, third)"}
"""


def test_a_run_that_is_killed_releases_what_an_unbroken_one_would(
    broker: Broker, config: Path, tmp_path: Path
) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    feed, receiver = KafkaFeed(broker.servers, config), KafkaReceiver(broker, config)
    topic = f"{receiver.prefix}-{{consumer}}-{{query}}"
    run = [
        *("run", f"{tmp_path}/spec.yaml", "--ledger", f"{tmp_path}/ledger"),
        f"kafka://{broker.servers}/{feed.topic}?config={config}&{feed.options}",
        *("--to", f"kafka://{broker.servers}/{topic}?config={config}"),
    ]
    rows = tuples(0, 3600)
    for kill in range(3):
        process = start(run)
        released = len(receiver.received())
        for begin in range(1200 * kill, 1200 * (kill + 1), 60):
            for part in range(3):
                feed.send(rows[begin + part : begin + 60 : 3], part)
        wait(lambda before=released: len(receiver.received()) > before)
        process.kill()
        process.wait()
    process = start(run)
    wait(lambda: len(receiver.received()) == 14 * (3600 // 60 - 3))
    process.kill()
    process.wait()
    found = receiver.received()
    truth = detected(tmp_path, rows)
    answers = {(row["window_start"], row["subject"], row["query"]): row for row in found}
    assert len(answers) == len(found) == len({row["id"] for row in found})
    assert {place: row["detected"] for place, row in answers.items()} == {
        place: truth[place] for place in answers
    }


def start(arguments: list[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tacit", *arguments]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def wait(until: Any, patience: float = 60) -> None:
    deadline = time.monotonic() + patience
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def detected(folder: Path, rows: list[dict[str, Any]]) -> dict[tuple[str, str, str], bool]:
    """The answers of an unbroken run over a file."""
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    command = [
        "detect",
        f"{folder}/spec.yaml",
        f"{folder}/rows.jsonl",
        "--to",
        f"{folder}/truth.jsonl",
    ]
    assert start(command).wait(60) == 0
    lines = map(json.loads, (folder / "truth.jsonl").read_text().splitlines())
    return {(row["window_start"], row["subject"], row["query"]): row["detected"] for row in lines}
