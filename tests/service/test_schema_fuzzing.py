"""Schemathesis against the OpenAPI document: nothing is a server error, and all is described."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.services import Running, running

CHECKS = "not_a_server_error,response_schema_conformance,content_type_conformance"
"""What every response must meet, for valid and for invalid requests."""
INGEST = "/v1/streams/{stream}/tuples"
CONTENT_TYPES = (
    "application/x-ndjson",
    "application/json",
    "application/cbor",
    "application/vnd.apache.arrow.stream",
    "text/plain",
)


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service of its own: what is fuzzed revokes tokens and proposes queries."""
    with running(tmp_path_factory.mktemp("fuzzed")) as service:
        yield service


OWN = {
    "consumer": ("answers", "counts", "proposals", "queries", "queries/check", "queries/{name}"),
    "subject": ("answers", "policies", "policies/{pattern}", "statement"),
}
"""Routes that do for a role what they do for no operator."""


@pytest.mark.parametrize(
    ("role", "name", "examples", "tested"),
    [("operator", "ann", 3, 32), ("consumer", "city", 4, 7), ("subject", "t1", 4, 5)],
)
def test_no_request_is_answered_with_a_server_error(
    fuzzed: Running, role: str, name: str, examples: int, tested: int, tmp_path: Path
) -> None:
    """An operator gets past the check of roles almost everywhere; others have what is theirs."""
    own = [f"/v1/{path}" for path in OWN.get(role, ())]
    command = [
        sys.executable, "-W", "ignore", "-m", "schemathesis.cli", "run",
        f"{fuzzed.url}/v1/openapi.json", "--header",
        f"Authorization: Bearer {fuzzed.token(role, name)}", "--checks", CHECKS,
        "--phases", "fuzzing", "--max-examples", str(examples), "--seed", "1", "--warnings", "off",
        *(word for path in own for word in ("--include-path", path)),
        "--exclude-path", "/v1/answers/stream", "--exclude-path", "/v1/counts/stream",
        "--exclude-path", INGEST,
        "--generation-database", "none", "--request-timeout", "60", "--no-shrink",
        "--suppress-health-check", "too_slow",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert f"Tested: {tested}" in done.stdout


@pytest.mark.parametrize("kind", CONTENT_TYPES)
def test_no_body_is_answered_with_a_server_error(fuzzed: Running, kind: str) -> None:
    """Schemathesis does not write these formats: random bytes, and JSON with changed bytes."""
    chance = random.Random(kind)
    good = b'{"who": "t1", "at": 60, "kind": "a"}\n' * 3
    with fuzzed.client("source", "x") as client:
        for round_ in range(30):
            body = bytearray(good if round_ % 2 else chance.randbytes(chance.randrange(200)))
            for _ in range(chance.randrange(4) if body else 0):
                body[chance.randrange(len(body))] = chance.randrange(256)
            headers = {"Content-Type": kind}
            response = client.post("/v1/streams/s/tuples", content=bytes(body), headers=headers)
            assert response.status_code < 500, bytes(body)
            if response.status_code >= 400:
                assert response.headers["content-type"] == "application/problem+json"
