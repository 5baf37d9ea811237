"""The Kafka client's own log lines, while a broker is away."""

from __future__ import annotations

import logging

import pytest

pytest.importorskip("confluent_kafka")

from tacit.connectors.kafka.client_log import ClientLog

FORMAT = "%s [%s] %s"
REFUSED = "[thrd:{}]: localhost:9092/1: Connect to ipv4#127.0.0.1:9092 failed: refused (after {}ms)"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the log sees, in a list of one number."""
    now = [0.0]
    monkeypatch.setattr("tacit.connectors.kafka.client_log.time.monotonic", lambda: now[0])
    return now


def test_a_broker_that_is_away_is_one_line_a_minute(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    """Attempts differ in their duration and their thread, and are still the same failure."""
    caplog.set_level(logging.DEBUG)
    log = ClientLog(logging.getLogger("tacit.test"))
    for attempt in range(1200):
        clock[0] = attempt / 10
        thread = "main" if attempt % 2 else "bootstrap"
        log.log(logging.ERROR, FORMAT, "FAIL", "tacit#1", REFUSED.format(thread, attempt))
    assert len(caplog.messages) == 2


def test_other_failures_and_other_lines_are_passed_on(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    """A second reason is news; what is no failed connection is never held back."""
    caplog.set_level(logging.DEBUG)
    log = ClientLog(logging.getLogger("tacit.test"))
    log.log(logging.ERROR, FORMAT, "FAIL", "tacit#1", REFUSED.format("main", 0))
    log.log(logging.ERROR, FORMAT, "FAIL", "tacit#1", "[thrd:main]: SSL handshake failed")
    for _ in range(3):
        log.log(logging.WARNING, FORMAT, "GETPID", "tacit#1", "[thrd:main]: retrying")
    assert len(caplog.messages) == 5
    assert caplog.messages[1] == "FAIL [tacit#1] [thrd:main]: SSL handshake failed"
