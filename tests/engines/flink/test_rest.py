"""What answers at an address, and what is said when it is not what was expected."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tacit.engines.flink import rest
from tacit.engines.flink.rest import Cluster, ClusterAddress, Overview
from tacit.errors import EngineError
from tests.services import free_port

OVERVIEW = {
    "flink-version": "2.3.0",
    "taskmanagers": 2,
    "slots-total": 4,
    "slots-available": 3,
    "jobs-running": 1,
}


@contextmanager
def answering(
    answers: Mapping[str, object], status: int = 200, seen: list[str] | None = None
) -> Iterator[Cluster]:
    """A server with these answers, and nothing to say to other questions; `seen` gets headers."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if seen is not None:
                seen.extend(self.headers[name] for name in ("Authorization", "X-Two"))
            self.send_response(status)
            self.end_headers()
            answer = answers.get(self.path, "<html>hello</html>")
            self.wfile.write(answer.encode() if isinstance(answer, str) else _json(answer))

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield Cluster(f"127.0.0.1:{server.server_port}", timeout=5)
        finally:
            server.shutdown()
            thread.join(300)


def _json(answer: object) -> bytes:
    return json.dumps(answer).encode()


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is here, whatever environment this is."""
    monkeypatch.setattr(rest, "find_flink_version", lambda: "2.3.1")


def test_a_cluster_tells_what_it_has() -> None:
    with answering({"/v1/overview": OVERVIEW}) as cluster:
        assert cluster.check(3) == Overview(
            "2.3.0", taskmanagers=2, slots=4, free_slots=3, running=1
        )


def test_a_job_without_slots_for_all_its_tasks_is_noticed() -> None:
    running, waiting = {"status": "RUNNING"}, {"status": "SCHEDULED"}
    answers = {
        "/v1/jobs/7": {"vertices": [running, running]},
        "/v1/jobs/8": {"vertices": [running, waiting]},
    }
    with answering(answers) as cluster:
        assert cluster.has_all_tasks("7")
        assert not cluster.has_all_tasks("8")


def test_an_address_where_nobody_answers_is_named_with_what_to_do() -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(EngineError, match=f"no Flink cluster answers at {address}") as caught:
        Cluster(address).check(1)
    assert "Connection refused" in str(caught.value)
    assert "rest.port" in str(caught.value)


def test_a_host_that_takes_too_long_is_named() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(EngineError, match=f"answers at {address} .it took too long"):
            Cluster(address, timeout=0.05).get_overview()


@pytest.mark.parametrize("status", [200, 404, 500])
def test_something_that_is_not_flink_is_recognised(status: int) -> None:
    with (
        answering({}, status) as cluster,
        pytest.raises(EngineError, match=f"{cluster.address} is not the REST API"),
    ):
        cluster.check(1)


@pytest.mark.parametrize("answer", [{"status": "up"}, ["up"], "42"])
def test_something_that_speaks_json_but_is_not_flink_is_recognised(answer: object) -> None:
    with (
        answering({"/v1/overview": answer}) as cluster,
        pytest.raises(EngineError, match="is not the REST API of Flink"),
    ):
        cluster.check(1)


def test_a_cluster_of_another_version_is_refused() -> None:
    with (
        answering({"/v1/overview": {**OVERVIEW, "flink-version": "2.2.1"}}) as cluster,
        pytest.raises(EngineError, match=r"runs Flink 2\.2\.1, but .* apache-flink is 2\.3\.1"),
    ):
        cluster.check(1)


def test_slots_that_are_missing_are_waited_for_with_a_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with answering({"/v1/overview": OVERVIEW}) as cluster:
        cluster.check(3)
        assert not caplog.messages
        cluster.check(4)
    assert "has 3 of 4 slots free, and the job needs 4: it waits" in caplog.messages[0]


def test_a_path_prefix_and_headers_reach_a_cluster_behind_a_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []
    answers = {"/flink/v1/overview": OVERVIEW}
    monkeypatch.setenv("FLINK_REST_CLIENT_HEADERS", "Authorization: Bearer a:b\nX-Two: 2\n")
    with answering(answers, seen=seen) as cluster:
        behind = Cluster(f"http://127.0.0.1:{cluster.endpoint.port}/flink/", timeout=5)
        assert behind.get_overview().slots == 4
    assert seen == ["Bearer a:b", "2"]


@pytest.mark.parametrize("status", [401, 403])
def test_a_request_without_a_token_is_refused_with_what_to_do(status: int) -> None:
    with (
        answering({}, status) as cluster,
        pytest.raises(EngineError, match="FLINK_REST_CLIENT_HEADERS"),
    ):
        cluster.check(1)


def test_what_a_cluster_refuses_is_told_with_its_reason() -> None:
    trace = "org.apache.flink.FlinkJobNotFoundException: Could not find job 7\n\tat x.Y(Z.java:1)"
    with (
        answering({"/v1/jobs/7/status": {"errors": ["Failed.", trace]}}, 404) as cluster,
        pytest.raises(EngineError, match=r"refuses: org\.apache\.flink.*Could not find job 7$"),
    ):
        cluster.get_state("7")


@pytest.mark.parametrize(
    "text",
    [
        "localhost",
        ":8081",
        "host:",
        "host:http",
        "h:65536",
        "ftp://host:1",
        "host:8081/path",
        "https://user@host",
        "https://host/?x=1",
        "",
    ],
)
def test_an_address_is_a_host_and_a_port_or_a_url(text: str) -> None:
    with pytest.raises(EngineError, match="given as HOST:PORT"):
        ClusterAddress.parse(text)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("flink:8081", "http://flink:8081"),
        ("[::1]:8081", "http://[::1]:8081"),
        ("http://flink", "http://flink:80"),
        ("https://example.org/a/b/", "https://example.org:443/a/b"),
        ("https://example.org:8443", "https://example.org:8443"),
    ],
)
def test_addresses_are_read(text: str, url: str) -> None:
    assert ClusterAddress.parse(text).url == url


def test_a_triggered_checkpoint_is_over_when_flink_says_so() -> None:
    answers = {
        f"/v1/jobs/7/checkpoints/{one}": {"status": {"id": one}} for one in ("COMPLETED", "IN")
    }
    with answering(answers) as cluster:
        assert cluster.is_checkpoint_over("7", "COMPLETED")
        assert not cluster.is_checkpoint_over("7", "IN")
