"""A run from Kafka to Kafka that is killed: nothing is lost, and nothing comes twice."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from random import Random

from tests.connectors.checks import tuples
from tests.connectors.kafka_ends import KafkaFeed, KafkaReceiver, config, detect_in_file, wait
from tests.connectors.test_kafka_runs import SPEC
from tests.engines.forking import Forks
from tests.services import Kafka

__all__ = ["config"]  # a fixture


def test_answers_are_seen_once_over_random_kills_of_the_engine_and_the_broker(
    kafka: Kafka, config: Path, tmp_path: Path, forks: Forks
) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    feed, receiver = KafkaFeed(kafka.secure, config), KafkaReceiver(kafka, config)
    topic = f"{receiver.prefix}-{{consumer}}-{{query}}"
    run = [
        *("run", f"{tmp_path}/spec.yaml", "--ledger", f"{tmp_path}/ledger"),
        f"kafka://{kafka.secure}/{feed.topic}?config={config}&{feed.options}",
        *("--to", f"kafka://{kafka.secure}/{topic}?config={config}"),
        *("--dead-letters", f"{tmp_path}/refused.jsonl"),
    ]
    rows = tuples(0, 2400)
    random = Random(5)
    kills = set(random.sample(range(2, 38), 3))
    engine = forks.start(tmp_path / "log", *run)
    try:
        for step in range(40):
            for part in range(3):
                feed.send(rows[60 * step + part : 60 * (step + 1) : 3], part)
            feed.send_raw(b"junk %d" % step)
            if step in kills:
                time.sleep(random.uniform(0, 1))
                os.kill(engine, signal.SIGKILL)
                assert forks.wait(engine) == -signal.SIGKILL
                engine = forks.start(tmp_path / "log", *run)
            if step == 20:
                kafka.stop()
                kafka.start()
        wait(lambda: len(receiver.received()) >= 14 * (2400 // 60 - 3))
        wait(lambda: len(set(letters(tmp_path))) == 40)
    finally:
        os.kill(engine, signal.SIGKILL)
        forks.wait(engine)
    assert sorted(letters(tmp_path)) == sorted(f"junk {step}" for step in range(40))
    found = receiver.received()
    truth = detect_in_file(tmp_path, rows)
    answers = {(row["window_start"], row["subject"], row["query"]): row for row in found}
    assert len(answers) == len(found) == len({row["id"] for row in found})
    assert {place: row["detected"] for place, row in answers.items()} == {
        place: truth[place] for place in answers
    }


def letters(folder: Path) -> list[str]:
    """The messages in the dead letters."""
    lines = (folder / "refused.jsonl").read_text().splitlines()
    return [json.loads(line)["raw"] for line in lines]
