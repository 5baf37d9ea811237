"""`tacit serve` and `tacit token` as they are typed."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import httpx

from tests.cli.small_runs import tacit
from tests.engines.forking import Forks
from tests.service.services import (
    QUERIES,
    SPEC,
    SUBJECTS,
    bearer,
    killing_after,
    write_tuples,
)


def test_tokens_are_created_listed_and_revoked(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    created = tacit("token", "create", ledger, "--role", "consumer", "--name", "city", "--json")
    fields = json.loads(created.output)
    assert fields["token"].startswith(f"tacit_{fields['id']}_")
    plain = tacit(
        "token", "create", ledger, "--role", "subject", "--name", "t1", "--expires", "1 d"
    )
    assert plain.output.startswith("tacit_")
    listed = tacit("token", "list", ledger).output
    assert f"{fields['id']}  valid    consumer city" in listed
    assert fields["token"] not in listed
    assert "subject t1, until" in listed
    assert tacit("token", "revoke", ledger, fields["id"]).exit_code == 0
    states = {
        one["id"]: one["state"]
        for one in json.loads(tacit("token", "list", ledger, "--json").output)
    }
    assert states[fields["id"]] == "revoked"
    assert tacit("token", "revoke", ledger, "nope").exit_code == 8
    assert tacit("token", "list", tmp_path / "other.db").exit_code == 8
    wrong = tacit("token", "create", ledger, "--role", "source", "--name", "x", "--expires", "soon")
    assert wrong.exit_code == 2


def test_serve_refuses_what_does_not_fit(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC)
    source = write_tuples(tmp_path / "tuples.csv", 1)
    assert "needs SPEC and --ledger" in tacit("serve", spec, source).output
    given = ("serve", spec, source, "--ledger", tmp_path / "ledger.db")
    assert "need each other" in tacit(*given, "--tls-key", tmp_path / "key.pem").output


def test_serve_runs_until_it_is_told_to_stop(tmp_path: Path, forks: Forks) -> None:
    """With TLS; other tests serve without it."""
    (tmp_path / "spec.yaml").write_text(SPEC)
    source = write_tuples(tmp_path / "tuples.csv", 4)
    ledger = tmp_path / "ledger.db"
    token = tacit("token", "create", ledger, "--role", "operator", "--name", "ann").output.strip()
    command = ["serve", "spec.yaml", source.name, "--ledger", "ledger.db", "--port", "0"]
    command += ["--to", "answers.csv"]
    make = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 1"
    words = [*make.split(), "-subj", "/CN=localhost"]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    command += ["--tls-certificate", "cert.pem", "--tls-key", "key.pem"]
    process = subprocess.Popen(
        [forks.program, *command],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        line = ""
        with killing_after(process):
            while not line.startswith("Listening at "):
                line = process.stderr.readline()
                assert line, "the service ended"
        url = line.removeprefix("Listening at ").strip()
        with httpx.Client(base_url=url, headers=bearer(token), verify=False, timeout=60) as client:
            deadline = time.monotonic() + 90
            while client.get("/v1/answers").json()["next"] < 4 * SUBJECTS * QUERIES - 1:
                assert time.monotonic() < deadline
                time.sleep(0.2)
            health = client.get("/v1/health")
            assert "strict-transport-security" in health.headers
            assert client.get("/v1/ready").status_code == 200
    finally:
        process.send_signal(signal.SIGTERM)
        with killing_after(process):
            _, rest = process.communicate()
    assert process.returncode == 0, rest
    assert "For the operator only" in rest
    assert len((tmp_path / "answers.csv").read_text().splitlines()) == 4 * SUBJECTS * QUERIES + 1
