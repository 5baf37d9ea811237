"""A run from Kafka to Kafka that is killed: nothing is lost, and nothing comes twice."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from tacit.cli.main import main
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
    rows = tuples(0, 2400)
    for half in (rows[:1200], rows[1200:]):
        process = start(run)
        for begin in range(0, 1200, 60):
            for part in range(3):
                feed.send(half[begin + part : begin + 60 : 3], part)
        wanted = 14 * (2400 // 60 - 3) if half[0]["n"] else 1
        wait(lambda wanted=wanted: len(receiver.received()) >= wanted)
        process.kill()
        process.wait(60)
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
    command = ["detect", f"{folder}/spec.yaml", f"{folder}/rows.jsonl"]
    command += ["--to", f"{folder}/truth.jsonl"]
    assert CliRunner().invoke(main, command).exit_code == 0
    lines = map(json.loads, (folder / "truth.jsonl").read_text().splitlines())
    return {(row["window_start"], row["subject"], row["query"]): row["detected"] for row in lines}
