"""Delivery of releases from a ledger, whose order with the run's own steps is set by hand."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from tacit.ledger.lease import Lease
from tacit.pipeline import delivery
from tacit.pipeline.delivery import Delivery
from tacit.pipeline.sinks import ReleaseBatch, Sink


class StoredReleases:
    """What a delivery needs of a lease."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = list(numbers)
        self.recorded: list[int] = []

    def read_position(self, _: str) -> tuple[int, None]:
        """The last release that the sink has."""
        return max(self.recorded, default=0), None

    def iterate_undelivered(self, _: str, after: int) -> Iterator[Any]:
        """The releases after one."""
        for number in self.numbers:
            if number > after:
                yield SimpleNamespace(release=number, body=b"", first_id=0)

    def record_delivery(self, _: str, number: int, position: object) -> None:
        """Note what the sink has."""
        self.recorded.append(number)


class ReceivingSink:
    """A sink that counts what it receives."""

    name = "sink"
    content = "answers"

    def __init__(self) -> None:
        self.received = threading.Semaphore(0)

    def is_missing(self, *_: object) -> bool:
        """Nothing is."""
        return False

    def recover(self, _: object) -> None:
        """Do nothing."""

    def deliver(self, _: ReleaseBatch) -> None:
        """Receive a release."""
        self.received.release()


def test_a_release_that_is_found_before_the_run_tells_of_it_is_delivered_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A commit is visible before the run can tell its sinks. Later ones are delivered as usual."""
    monkeypatch.setattr(delivery, "unpack", lambda *_: (pa.table({"a": [1]}), {}))
    stored, sink = StoredReleases(1), ReceivingSink()
    made = Delivery(cast("Lease", stored), [cast("Sink", sink)], cast("Any", None))
    made.start()
    try:
        assert sink.received.acquire(timeout=60)
        assert made.is_done(60.0)
        made.release(1)
        assert made.is_done(0.0)
        stored.numbers.append(2)
        made.release(2)
        assert made.is_done(60.0)
        assert stored.recorded == [1, 2]
        assert made.waiting == 0
    finally:
        made.close()
