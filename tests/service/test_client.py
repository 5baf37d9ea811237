"""The Python client against a real service."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import polars as pl
import pytest

import tacit
from tacit.errors import ServiceError
from tacit.service.ingest_requests import IngestRequest
from tests.service.conftest import WINDOWS
from tests.service.services import PATIENCE, SUBJECTS, Running, running


def test_a_consumer_reads_its_answers_and_facts(served: Running) -> None:
    client = tacit.connect(served.url, served.token("consumer", "city"))
    assert client.identity() == {"role": "consumer", "name": "city", "streams": []}
    assert [query["name"] for query in client.queries()] == ["both", "either"]
    assert client.private()[0]["name"] == "visit"
    frame = client.answers(query="both", subject=["t1", "t2"])
    with tacit.released(
        served.service.options.ledger_place or "", query="both", subject=["t1", "t2"]
    ) as released:
        same = released.polars()
    assert len(frame) == 2 * WINDOWS
    assert frame["id"].to_list() == same["id"].to_list()
    assert frame["detected"].to_list() == same["detected"].to_list()
    followed = pl.concat(itertools.islice(client.follow(query="both", after=-1), WINDOWS))
    assert followed["id"].to_list() == client.answers(query="both")["id"].to_list()
    assert followed.schema["window_start"] == pl.Datetime("us", "UTC")
    assert "tacit_" not in repr(client)


def test_refusals_are_errors_with_their_status(served: Running) -> None:
    client = tacit.connect(served.url, served.token("consumer", "city"))
    with pytest.raises(ServiceError, match="statements are for") as refused:
        client.statement()
    assert refused.value.status == 403
    with pytest.raises(ServiceError) as wrong:
        tacit.connect(served.url, "tacit_wrong").identity()
    assert wrong.value.status == 401
    with pytest.raises(ServiceError, match="does not answer"):
        tacit.connect("http://127.0.0.1:1", "x").identity()
    with pytest.raises(ServiceError, match="expected the address"):
        tacit.connect("ftp://example", "x")


def test_a_source_sends_frames_once(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        client = tacit.connect(service.url, service.token("source", "sensor"))
        for window in range(3):
            frame = pl.DataFrame(
                {
                    "who": [f"t{n}" for n in range(SUBJECTS)],
                    "at": [60 * window + n for n in range(SUBJECTS)],
                    "kind": ["c"] * SUBJECTS,
                }
            )
            assert client.send("s", frame, sequence=window) is True
            assert client.send("s", frame, sequence=window) is False
        assert client.send("s", [{"who": "t0", "at": 181, "kind": "c"}], sequence=3) is True
        with pytest.raises(ServiceError) as gap:
            client.send("s", frame, sequence=9)
        assert gap.value.status == 409
        service.wait(3 * SUBJECTS * 3)
        consumer = tacit.connect(service.url, service.token("consumer", "clinic"))
        assert len(consumer.answers()) == 3 * SUBJECTS


def test_without_a_number_nothing_is_sent_again_that_may_be_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 503 it may be there; with a number the same request is safe to repeat."""
    monkeypatch.setattr("tacit.service.routes.ingest.STORE_SECONDS", 0.0)
    monkeypatch.setattr("tacit.service.client._ATTEMPTS", 2)
    sent: list[IngestRequest] = []
    with running(tmp_path) as service:
        inbox = service.service.state.inbox
        assert inbox is not None

        async def store(request: IngestRequest) -> bool:
            sent.append(request)
            await asyncio.sleep(PATIENCE)
            return True

        monkeypatch.setattr(inbox, "store", store)
        client = tacit.connect(service.url, service.token("source", "sensor"))
        for sequence, attempts in ((None, 1), (0, 2)):
            sent.clear()
            with pytest.raises(ServiceError) as late:
                client.send("s", [{"who": "t0", "at": 1, "kind": "c"}], sequence=sequence)
            assert (late.value.status, len(sent)) == (503, attempts)
