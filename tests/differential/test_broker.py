"""MQTT messages by a real broker, to answer files: private tuples change nothing there."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.connectors.mqtt_clients import Peer
from tests.differential.codings import payloads
from tests.differential.neighbours import variants
from tests.differential.outputs import LEDGER, Outputs, Runs
from tests.differential.worlds import RawTuple, Variant, World, describe, make_world
from tests.engines.publishing import open_session
from tests.services import Mosquitto

PATIENCE = 60.0


def closing_tuples(world: World, public: Sequence[RawTuple]) -> tuple[list[RawTuple], int]:
    """Tuples of two subjects that come last and close all windows; where the last one begins."""
    windows = world.spec.windows
    last = (world.end + 2 * windows.size // 1_000_000) * 1_000_000
    moment = (last + windows.lateness) // 1_000_000
    found = [
        replace(one, arrival=float("inf"), cells={**one.cells, "at": moment, "who": subject})
        for subject, one in zip(world.subjects[:2], public, strict=False)
    ]
    return found, last - windows.size


@contextmanager
def stopped_after(ledger: Path, last: int) -> Iterator[None]:
    """Stop the run in this process when it has released the window that begins at `last`."""

    def is_released() -> bool:
        query = "SELECT max(first) FROM tacit_releases"
        try:
            with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as database:
                return (database.execute(query).fetchone()[0] or 0) >= last
        except sqlite3.Error:
            return False  # the file is being written

    def watch() -> None:
        deadline = time.monotonic() + PATIENCE
        while not ended.is_set():
            if time.monotonic() > deadline or is_released():
                os.kill(os.getpid(), signal.SIGTERM)
                return
            time.sleep(0.02)

    ended = threading.Event()
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join(300)


def run_live(runs: Runs, broker: Mosquitto, variant: Variant) -> Outputs:
    """What comes of the messages of a variant, sent by a broker."""
    world, (shape,) = runs.world, runs.world.sources
    public = world.public_tuples(variant)
    ending, last = closing_tuples(world, public)
    place = runs.new_folder()
    session = f"{shape.coding}-{world.seed}-{place.name}"
    open_session(broker.port, session, f"{session}/+")
    with Peer(broker.port, topics="none") as sender:
        messages = payloads(shape, [*public, *world.free_tuples(variant), *ending])
        sender.publish((f"{session}/x", message) for message in messages)
    url = f"mqtt://127.0.0.1:{broker.port}/{session}/+?client={session}&payload={shape.coding}"
    with stopped_after(place / LEDGER, last):
        return runs.invoke(place, [f"{shape.stream}={url}"])


@pytest.mark.parametrize("kind", ["json", "cbor"])
def test_private_messages_change_no_byte_of_any_output(kind: str, tmp_path: Path) -> None:
    worlds = (make_world(kind, number) for number in range(100, 120))
    world = next(one for one in worlds if len(one.sources) == 1)
    runs = Runs(world, tmp_path, ledger=True)
    with Mosquitto(tmp_path) as broker:
        first, second = (run_live(runs, broker, variant) for variant in variants(world))
    assert first.exit_code == 0, first.error
    assert first.metrics, describe(world)
    assert first.differs(second) is None
