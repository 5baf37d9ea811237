"""Schemathesis against the OpenAPI document: nothing is a server error, and all is described."""

from __future__ import annotations

import json
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


ROLES = (("operator", "ann", 3, 32), ("consumer", "city", 4, 7), ("subject", "t1", 4, 5))
"""For each role a name, how many requests for each route, and how many routes."""
EACH = """
import json, sys
from schemathesis.cli import schemathesis
for arguments in json.load(sys.stdin):
    try:
        schemathesis(arguments)
    except SystemExit as end:
        print("ended with", end.code, flush=True)
"""
"""Runs the program several times in one process: it takes long to import."""


def test_no_request_is_answered_with_a_server_error(fuzzed: Running, tmp_path: Path) -> None:
    """An operator gets past the check of roles almost everywhere; others have what is theirs."""
    commands = [
        [
            "run", f"{fuzzed.url}/v1/openapi.json", "--header",
            f"Authorization: Bearer {fuzzed.token(role, name)}", "--checks", CHECKS,
            "--phases", "fuzzing", "--max-examples", str(examples), "--seed", "1",
            *(word for path in OWN.get(role, ()) for word in ("--include-path", f"/v1/{path}")),
            "--exclude-path", "/v1/answers/stream", "--exclude-path", "/v1/counts/stream",
            "--exclude-path", INGEST, "--warnings", "off",
            "--generation-database", "none", "--request-timeout", "60", "--no-shrink",
            "--suppress-health-check", "too_slow",
        ]
        for role, name, examples, _ in ROLES
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", EACH],
        input=json.dumps(commands),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    *parts, rest = done.stdout.split("ended with ")
    codes = [part.split()[0] for part in (*parts[1:], rest)]
    assert codes == ["0"] * len(ROLES), done.stdout[-6000:] + done.stderr[-2000:]
    for part, (*_, tested) in zip(parts, ROLES, strict=True):
        assert f"Tested: {tested}" in part


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
