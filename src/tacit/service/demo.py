"""The demo of the service: generated taxis that report live, faster than real time.

Nothing is special about it but the sender, which is a thread of the same process: a plan is made
from a generated day of history, tuples go through the inbox, and everyone logs in with a token.
"""

from __future__ import annotations

import io
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from tacit.engines.local import plan as make_plan
from tacit.engines.setup import RunOptions
from tacit.evaluation.trips import Trips
from tacit.service.inbox import Inbox, InboxFullError, IngestRequest
from tacit.service.roles import Role
from tacit.service.serving import SetupOptions
from tacit.service.tokens import Tokens
from tacit.spec.yaml_reader import load

STREAM: Final = "gps"
_EARLIER: Final = timedelta(hours=8, minutes=30)
"""How much is sent at once at the beginning, so that pages are not empty."""
_DAYS: Final = 30.0
_STOP_SECONDS: Final = 60.0
"""Seconds in which a request must be stored, and the sender must end."""
_SUBJECT: Final = "7"
_FLEETS: Final = ("north", "south", "airport")
_CATALOGUE: Final = """hospital_visit: {epsilon: [0.5, 3], limit: [20 per day, 300 per day]}
break: {epsilon: [0.5, 3], limit: [20 per day, 300 per day]}
at_station: {epsilon: [0.5, 3], limit: [20 per day, 300 per day]}
"""
"""What the taxis of the demo may choose."""
log = logging.getLogger("tacit.service.demo")


@dataclass(frozen=True)
class DemoOptions:
    """How large and how fast the demo is."""

    taxis: int = 120
    speed: float = 60.0
    """Seconds of event time in each second."""
    seed: int = 0

    @property
    def start(self) -> datetime:
        """When the first taxi reports: today, early in the morning."""
        today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        return today + timedelta(hours=5)


def prepare_demo(folder: Path, demo: DemoOptions) -> tuple[RunOptions, SetupOptions]:
    """Write the specification, the registry, history and a plan; return the options."""
    spec_file, plan_file, subjects = (
        folder / name for name in ("taxi.yaml", "plan.json", "taxis.csv")
    )
    spec_file.write_text(files("tacit.service").joinpath("demo.yaml").read_text("utf-8"), "utf-8")
    fleets = (f"{taxi},{_FLEETS[taxi % len(_FLEETS)]}\n" for taxi in range(demo.taxis))
    subjects.write_text("taxi_id,fleet\n" + "".join(fleets))
    day = demo.start.replace(hour=0) - timedelta(days=1)
    history = Trips(taxis=demo.taxis, days=1, seed=demo.seed + 1, start=day).table()
    make_plan(load(spec_file), history).save(plan_file)
    history_file, catalogue = folder / "history.parquet", folder / "catalogue.yaml"
    pq.write_table(pa.table(history), history_file)
    catalogue.write_text(_CATALOGUE, "utf-8")
    given = RunOptions(spec_file, plan=plan_file, ledger=folder / "taxi.ledger")
    return given, SetupOptions([(None, str(history_file))], catalogue)


def create_links(tokens: Tokens, url: str) -> dict[str, str]:
    """Create a token for each role; return links that log in with them.

    A token is behind `#` in its link: that part stays in the browser.
    """
    people = {
        Role.OPERATOR: "ann",
        Role.CONSUMER: "dispatch",
        Role.SUBJECT: _SUBJECT,
        Role.SOURCE: "taxis",
    }
    return {
        f"{role} {name}": f"{url}/login#{tokens.create(role, name, creator='demo')[0]}"
        for role, name in people.items()
    }


@contextmanager
def send_trips(inbox: Inbox, demo: DemoOptions) -> Iterator[None]:
    """Let the taxis report while the block lasts."""
    stopping = threading.Event()
    arguments = (inbox, demo, stopping)
    sender = threading.Thread(target=_send, args=arguments, name="tacit-demo", daemon=True)
    sender.start()
    try:
        yield
    finally:
        stopping.set()
        sender.join(_STOP_SECONDS)


def _send(inbox: Inbox, demo: DemoOptions, stopping: threading.Event) -> None:
    trips = Trips(taxis=demo.taxis, days=_DAYS, seed=demo.seed, start=demo.start)
    live_from = demo.start + _EARLIER
    began = time.monotonic()
    for number, batch in enumerate(trips.batches(rows=1)):
        newest = pa.compute.max(batch["ts"]).as_py()
        due = began + max(0.0, (newest - live_from).total_seconds()) / demo.speed
        request = IngestRequest(STREAM, "demo", "arrow", _to_stream(batch), number)
        if stopping.wait(max(0.0, due - time.monotonic())):
            return
        while not _put(inbox, request):
            if stopping.wait(0.5):
                return


def _put(inbox: Inbox, request: IngestRequest) -> bool:
    """Send once; return whether it was taken."""
    try:
        inbox.put(request).result(_STOP_SECONDS)
    except InboxFullError:
        return False
    except Exception:
        log.exception("the demo cannot send")
        return False
    return True


def _to_stream(batch: pa.RecordBatch) -> bytes:
    text = io.BytesIO()
    with pa.ipc.new_stream(text, batch.schema) as writer:
        writer.write_batch(batch)
    return text.getvalue()
