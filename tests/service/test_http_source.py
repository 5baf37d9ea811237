"""The inbox does what every source must do."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest

from tacit.engines.setup import RunOptions
from tacit.events.columntypes import ColumnTypes
from tacit.events.streams import COLUMN_TYPES, ColumnType, Stream
from tacit.events.times import to_microseconds
from tacit.ledger.ledger import Ledger
from tacit.pipeline.sources import Source
from tacit.service.app import create_app
from tacit.service.inbox import Inbox
from tacit.service.ingest_requests import StoredRequest
from tacit.service.roles import Role
from tacit.service.server import Server, ServerOptions
from tacit.service.source import HttpSource, RequestParser
from tacit.service.state import ServiceState
from tacit.service.workflow import Workflow
from tacit.spec.yaml_reader import loads
from tests.connectors.checks import Feed, SourceChecks
from tests.service.services import SPEC, TLS, bearer

LINES = {"Content-Type": "application/x-ndjson"}


@dataclass
class Posting(Feed):
    """A sender of HTTP requests; each time it is opened, another process could open it."""

    place: str
    url: str
    token: str

    acknowledges = True

    def open(self) -> Source:
        """The source, with a connection of its own to the inbox."""
        return HttpSource(Inbox(self.place), "s")

    def send(self, rows: Sequence[dict[str, Any]], partition: int = 0) -> None:
        """Send them all in one request."""
        self.send_raw(b"".join(json.dumps(row).encode() + b"\n" for row in rows))

    def send_raw(self, payload: bytes) -> None:
        """Send it as it is."""
        address = f"{self.url}/v1/streams/s/tuples"
        headers = {**bearer(self.token), **LINES}
        response = httpx.post(address, content=payload, headers=headers, timeout=90, verify=TLS)
        assert response.status_code == 200, response.text


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[Posting]:
    place = str(tmp_path / "ledger.db")
    with Ledger.open(place) as ledger, closing(Inbox(place)) as inbox:
        state = ServiceState(
            ledger,
            "run",
            loads(SPEC),
            inbox,
            frozenset(["s"]),
            workflow=Workflow(ledger, "run", RunOptions(loads(SPEC))),
        )
        token, _ = state.tokens.create(Role.SOURCE, "sensor", creator="test")
        with Server(create_app(state), state.signal, ServerOptions(port=0)) as server:
            yield Posting(place, server.url, token)


class TestHttpSource(SourceChecks):
    """The list of checks."""


STREAM = Stream(subject="who", time="at")
DAYS, NUMBERS = [date(2024, 1, 1), None], pa.array([1, None])
COLUMNS: dict[str, pa.Array] = {
    "text": pa.array(["7", None]),
    "large text": pa.array(["0.1", "true"], pa.large_string()),
    "dictionary": pa.array(["7", "x"]).dictionary_encode(),
    "dictionary of numbers": pa.array([7, 0]).dictionary_encode(),
    "dictionary of truth values": pa.array([True, False]).dictionary_encode(),
    "nothing": pa.nulls(2),
    "byte": pa.array([7, -1], pa.int8()),
    "integer": pa.array([7, 10**12]),
    "unsigned": pa.array([1, 2**63 + 5], pa.uint64()),
    "half": pa.array(np.array([7, 0.1], np.float16)),
    "single": pa.array([7.0, 0.1], pa.float32()),
    "double": pa.array([7.0, 1e300]),
    "decimal": pa.array([Decimal("7.10"), None]),
    "wide decimal": NUMBERS.cast(pa.decimal256(60, 2)),
    "truth values": pa.array([True, False]),
    "seconds": NUMBERS.cast(pa.timestamp("s")),
    "microseconds": NUMBERS.cast(pa.timestamp("us", "Europe/Berlin")),
    "unknown zone": NUMBERS.cast(pa.timestamp("s", "Nowhere/Land")),
    "nanoseconds": NUMBERS.cast(pa.timestamp("ns", "UTC")),
    "day": pa.array(DAYS),
    "long day": pa.array(DAYS, pa.date64()),
    "time of day": NUMBERS.cast(pa.time64("us")),
    "list": pa.array([[7], []]),
}


def read_values(columns: Sequence[pa.Array], to: ColumnType | None) -> list[Any]:
    """Read a column of each request; as event times if no type is given."""
    requests = []
    for number, column in enumerate(columns):
        table, body = pa.table({"c": column}), io.BytesIO()
        with pa.ipc.new_stream(body, table.schema) as writer:
            writer.write_table(table)
        requests.append(StoredRequest(number, "s", "arrow", body.getvalue()))
    found: list[Any] = []
    types = ColumnTypes(STREAM, {} if to is None else {"c": to})
    for _, (batch, numbers, rejected) in RequestParser(["c"], []).parse_apart("arrow", requests):
        read = types.convert(batch).column(0)
        found += to_microseconds(read, STREAM).tolist() if to is None else read.to_pylist()
        assert (len(numbers), rejected) == (batch.num_rows, [])
    return found


@pytest.mark.parametrize("to", [None, *COLUMN_TYPES])
def test_requests_of_arrow_do_not_change_how_others_are_read(to: ColumnType | None) -> None:
    """Which requests wait together depends on when they come, and their types on their values."""
    alone = {name: read_values([column], to) for name, column in COLUMNS.items()}
    for name, column in COLUMNS.items():
        for other, beside in COLUMNS.items():
            assert read_values([column, beside], to) == alone[name] + alone[other], (name, other)


def test_truth_values_are_read_as_in_other_formats() -> None:
    for name in ("truth values", "dictionary of truth values"):
        assert read_values([COLUMNS[name]], "boolean") == [True, False]
        assert read_values([COLUMNS[name]], "text") == ["true", "false"]
        assert read_values([COLUMNS[name]], "number") == [None, None]
