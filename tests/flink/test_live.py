"""Jobs on Flink, embedded, whose input does not end: a broker, a silent source, a stop."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from tests.connectors.checks import tuples
from tests.connectors.kafka_ends import KafkaFeed, KafkaReceiver, config
from tests.connectors.test_kafka_runs import SPEC, detected, wait
from tests.services import Kafka

__all__ = ["config"]  # a fixture


def test_a_job_from_kafka_to_kafka_is_stopped_and_resumed_with_another_parallelism(
    kafka: Kafka, config: Path, tmp_path: Path
) -> None:
    """Another source sends two tuples and then nothing: the job waits for it only so long.

    They are of two subjects, so that the second tuple confirms the first.
    """
    (tmp_path / "spec.yaml").write_text(SPEC)
    feed, receiver = KafkaFeed(kafka.secure, config), KafkaReceiver(kafka, config)
    rows = tuples(0, 2400)
    (tmp_path / "silent").mkdir()
    lines = "".join(f"{json.dumps(row)}\n" for row in rows[:2])
    (tmp_path / "silent" / "one.jsonl").write_text(lines)
    topic = f"{receiver.prefix}-{{consumer}}-{{query}}"
    command = [
        *(sys.executable, "-m", "tacit", "submit", f"{tmp_path}/spec.yaml"),
        f"kafka://{kafka.secure}/{feed.topic}?config={config}&{feed.options}",
        *(f"{tmp_path}/silent/", "--follow", "--idle", "2 s"),
        *("--to", f"kafka://{kafka.secure}/{topic}?config={config}"),
        *("--folder", f"{tmp_path}/job"),
        *("--set", "execution.checkpointing.interval=500 ms"),
    ]
    halves = ((rows[2:1200], 16, "1"), (rows[1200:], 2400 // 60 - 3, "2"))
    for half, windows, parallelism in halves:
        with (tmp_path / "log").open("ab") as log:
            started = [*command, "--parallelism", parallelism]
            process = subprocess.Popen(started, stdout=log, stderr=log)
        for begin in range(0, len(half), 60):
            for part in range(3):
                feed.send(half[begin + part : begin + 60 : 3], part)
        try:
            wait(lambda windows=windows: len(receiver.received()) >= 14 * windows, patience=300)
            process.send_signal(signal.SIGTERM)
            assert process.wait(180) == 0, (tmp_path / "log").read_text()
        finally:
            process.kill()
            process.wait(60)
    assert "resumed" in (tmp_path / "log").read_text()
    found = receiver.received()
    truth = detected(tmp_path, rows)
    answers = {(row["window_start"], row["subject"], row["query"]): row for row in found}
    assert len(answers) == len(found) == len({row["id"] for row in found})
    assert {place: row["detected"] for place, row in answers.items()} == {
        place: truth[place] for place in answers
    }
    assert len(answers) == 14 * 37
