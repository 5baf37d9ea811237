"""A run logs that it starts once its brokers know it: what is sent from then on is read."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tacit.connectors.files import open_source
from tacit.engines.setup import assign
from tacit.ledger.ledger import Ledger
from tacit.pipeline.run import Run
from tacit.planning.planner import plan_without_history
from tacit.spec.specification import Specification
from tacit.spec.yaml_reader import loads
from tests.connectors.kafka_ends import KafkaFeed, config
from tests.connectors.mqtt_clients import Peer, until
from tests.services import Kafka, Mosquitto

__all__ = ["config"]  # a fixture

SPEC = loads("""
streams: {gps: {subject: subject, time: at}}
windows: {size: 1 min}
subjects: [s0, s1]
events:
  third: {stream: gps, where: "n % 3 = 1"}
queries:
  - {name: jam, consumer: city, pattern: third}
""")


@contextmanager
def running(url: str, folder: Path, spec: Specification = SPEC) -> Iterator[Run]:
    """A run from this source, in a thread."""
    with Ledger.open(str(folder / "spent.db")) as ledger:
        inputs = assign(spec, [(None, open_source(url))])
        plan = plan_without_history(spec, "uniform")
        run = Run(spec, inputs, plan=plan, ledger=ledger, name="r")
        thread = threading.Thread(target=run.run)
        thread.start()
        try:
            yield run
        finally:
            run.stop()
            thread.join(30)
            assert not thread.is_alive()


def test_a_run_from_mqtt_begins_when_the_broker_has_confirmed_the_subscription(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tacit.ledger")
    server = Mosquitto(tmp_path)
    columns = "columns=subject:text,at:time,n:integer"
    try:
        with running(f"mqtt://127.0.0.1:{server.port}/gps?{columns}", tmp_path) as run:
            time.sleep(0.7)
            assert "the run r starts" not in caplog.text
            assert run.status.connecting
            server.start()
            with Peer(server.port) as peer:
                until(lambda: "the run r starts" in caplog.text, "begun")
                assert not run.status.connecting
                for subject in (b"s0", b"s1"):
                    row = b'{"subject": "%b", "at": 60, "n": 1}' % subject
                    peer.publish([("gps", row)], qos=0)
                until(lambda: run.status.tuples == 2, "taken")
    finally:
        server.stop()
    assert caplog.text.count("the run r starts") == 1


def test_a_run_that_learns_its_subjects_says_for_how_long(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tacit.ledger")
    server = Mosquitto(tmp_path)
    server.start()
    url = f"mqtt://127.0.0.1:{server.port}/gps?columns=subject:text,at:time,n:integer"
    try:
        with running(url, tmp_path, SPEC.model_copy(update={"subjects": None})):
            until(lambda: "those seen in the first 10 min of the stream" in caplog.text, "said")
    finally:
        server.stop()


@pytest.mark.soak
def test_a_run_from_kafka_begins_when_it_has_its_partitions(
    kafka: Kafka, config: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """From the end: what is sent before the place in a partition is known would be missed."""
    caplog.set_level(logging.INFO, "tacit.ledger")
    feed = KafkaFeed(kafka.secure, config)
    rows = [{"subject": f"s{part % 2}", "at": 60, "n": 1} for part in range(3)]
    feed.send(rows[:1])
    url = f"kafka://{kafka.secure}/{feed.topic}?config={config}&{feed.options}&from=end"
    with running(url, tmp_path) as run:
        until(lambda: "the run r starts" in caplog.text, "begun")
        for part, row in enumerate(rows):
            feed.send([row], part)
        until(lambda: run.status.tuples == 3, "taken")
