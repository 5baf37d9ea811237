"""A run from Kafka to Kafka that is killed: nothing is lost, and nothing comes twice."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from click.testing import CliRunner

from tacit.cli.main import main
from tacit.events.subjects import Subjects
from tacit.pipeline.compiled_spec import CompiledSpec
from tacit.pipeline.reader import Input, Positions, Reader, RegistryExtractor
from tacit.spec.yaml_reader import loads
from tests.connectors.checks import PATIENCE, tuples
from tests.connectors.kafka_ends import KafkaFeed, KafkaReceiver, config
from tests.engines.forking import Forks
from tests.services import Kafka

__all__ = ["config"]  # a fixture

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
    truth = detected(tmp_path, rows)
    answers = {(row["window_start"], row["subject"], row["query"]): row for row in found}
    assert len(answers) == len(found) == len({row["id"] for row in found})
    assert {place: row["detected"] for place, row in answers.items()} == {
        place: truth[place] for place in answers
    }


def test_partitions_are_merged_by_event_time_and_resumed_where_each_was(
    kafka: Kafka, config: Path
) -> None:
    """A backlog is read partition by partition, by several readers one after the other."""
    feed = KafkaFeed(kafka.secure, config)
    rows = tuples(0, 3000)
    for part in range(3):
        # Timestamps tell nothing: a partition of a slow producer is behind in event time.
        messages = [(json.dumps(row).encode(), None, 1_200_000_000_000) for row in rows[part::3]]
        feed.produce(messages, part)
    spec = loads(SPEC)
    subjects = Subjects()
    subjects.add(pa.array([f"s{number}" for number in range(7)]))
    extractor = RegistryExtractor(CompiledSpec(spec), subjects)
    positions: Positions = {}
    times: list[int] = []
    for wanted in (500, 1700, 3000):
        inputs = [Input("gps", feed.open())]
        reader = Reader(spec.streams, inputs, extractor, spec.windows.jumps[1], positions=positions)
        deadline = time.monotonic() + PATIENCE
        with closing(reader.read()) as batches:
            for batch in batches:
                assert time.monotonic() < deadline
                taken = 0 if batch is None else min(len(batch), wanted - len(times))
                if batch is not None:
                    times += batch.times[:taken].tolist()
                    reader.advance(batch, taken)
                if len(times) == wanted:
                    break
        positions = json.loads(json.dumps(reader.positions))
    assert times == [row["at"] * 1000 for row in rows]


def letters(folder: Path) -> list[str]:
    """The messages in the dead letters."""
    lines = (folder / "refused.jsonl").read_text().splitlines()
    return [json.loads(line)["raw"] for line in lines]


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
