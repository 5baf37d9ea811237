"""Jobs on Flink, embedded, whose input does not end: a broker, a silent source, a stop."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tacit.engines.sharded.job import ShardedJob
from tests.connectors.checks import tuples
from tests.connectors.kafka_ends import KafkaFeed, KafkaReceiver, config, detect_in_file, wait
from tests.connectors.test_kafka_runs import SPEC
from tests.services import Kafka

__all__ = ["config"]  # a fixture

WINDOWS = 2400 // 60 - 3


def test_a_job_from_kafka_to_kafka_is_killed_and_resumed_with_another_parallelism(
    kafka: Kafka, config: Path, tmp_path: Path
) -> None:
    """Then it is stopped. `make soak` resumes it from there, with one more parallelism."""
    stages = ((900, 3, 11, "2", signal.SIGKILL), (2400, 4, WINDOWS, "1", signal.SIGTERM))
    run_in_stages(kafka, config, tmp_path, stages)


def run_in_stages(
    kafka: Kafka, config: Path, tmp_path: Path, stages: Sequence[tuple[int, int, int, str, int]]
) -> None:
    """Run a job that is started again for each stage: tuples, partitions, windows, tasks, signal.

    The partitions of a topic have readers of their own, and one more is added.

    Another source sends two tuples and then nothing: the job waits for it only so long. They are
    of two subjects, so that the second tuple confirms the first.
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
        *(f"{tmp_path}/silent/", "--follow", "--idle", "10 s"),
        *("--to", f"kafka://{kafka.secure}/{topic}?config={config}"),
        *("--folder", f"{tmp_path}/job"),
        *("--set", "execution.checkpointing.interval=500 ms"),
    ]
    feed.send(rows[2:3])
    sent = 3
    for until, partitions, windows, parallelism, ending in stages:
        stage, sent = rows[sent:until], until
        if partitions > KafkaFeed.partitions:
            feed.add_partitions(partitions)
        with (tmp_path / "log").open("ab") as log:
            started = [*command, "--parallelism", parallelism]
            process = subprocess.Popen(started, stdout=log, stderr=log)
        for begin in range(0, len(stage), 60):
            for part in range(partitions):
                feed.send(stage[begin + part : begin + 60 : partitions], part)
        try:
            wait(partial(_has_answers, receiver, 14 * windows), patience=300)
            process.send_signal(ending)
            assert process.wait(180) in (0, -signal.SIGKILL), (tmp_path / "log").read_text()
        finally:
            process.kill()
            process.wait(60)
    job = ShardedJob.read(tmp_path / "job" / "job")
    shares = [one.share for one in job.partitions]
    assert shares == [(0, 3), (1, 3), (2, 3), None]
    assert "resumed" in (tmp_path / "log").read_text()
    # A source that a busy machine stops for longer than --idle is late, which is no fault.
    letters = (tmp_path / "job" / "letters").glob("*.jsonl")
    assert not [path.read_text() for path in letters]
    found = receiver.received()
    truth = detect_in_file(tmp_path, rows)
    answers = {(row["window_start"], row["subject"], row["query"]): row for row in found}
    assert len(answers) == len(found) == len({row["id"] for row in found})
    assert {place: row["detected"] for place, row in answers.items()} == {
        place: truth[place] for place in answers
    }
    assert len(answers) == 14 * WINDOWS


def _has_answers(receiver: KafkaReceiver, number: int) -> bool:
    return len(receiver.received()) >= number
