"""The inbox does what every source must do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tacit.engines.setup import RunOptions
from tacit.ledger.ledger import Ledger
from tacit.pipeline.sources import Source
from tacit.service.app import create_app
from tacit.service.inbox import Inbox
from tacit.service.roles import Role
from tacit.service.server import Server, ServerOptions
from tacit.service.source import HttpSource
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
