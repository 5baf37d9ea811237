"""The example with Kafka works as its README says."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.connectors.examples import Example
from tests.connectors.mqtt_clients import until
from tests.engines.forking import Forks
from tests.services import KAFKA_JARS, QUICK_JAVA, free_port, program


@pytest.mark.soak
def test_the_commands_of_the_readme_give_a_consumer_its_answers(
    tmp_path: Path, forks: Forks, monkeypatch: pytest.MonkeyPatch
) -> None:
    program("java")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", " ".join(QUICK_JAVA))
    if not any(KAFKA_JARS.glob("kafka_*.jar")):
        pytest.skip("the Kafka server is not there; make test fetches it if there is Maven")
    port, controller = free_port(), free_port()
    with Example("kafka", tmp_path, forks.program) as example:
        (example.folder / "server").symlink_to(KAFKA_JARS)
        example.replace("server.properties", {"9092": str(port), "9093": str(controller)})
        broker, drive, run, listen, *ledger = example.commands(
            {
                "//localhost/": f"//localhost:{port}/",
                ".py": f".py --servers localhost:{port}",
            }
        )
        fetch, prepare, serve = broker.strip().splitlines()
        assert fetch == "mvn -q dependency:copy-dependencies -DoutputDirectory=server"
        example.run(prepare)
        example.start(f"exec {serve}")
        until(lambda: is_listening(port), "a broker", 120)
        example.start(drive)
        engine = example.start(run)
        example.start(listen)
        until(lambda: "standing: " in example.said(3), "answered", 120)
        engine.send_signal(signal.SIGTERM)
        assert engine.wait(60) == 0, example.said(2)
        assert "jam: " in example.said(3)
        assert "care: " not in example.said(3), "the clinic's answers are in its own topic"
        assert "hospital_visit" in example.run("".join(ledger))


def is_listening(port: int) -> bool:
    """Whether the broker accepts connections."""
    try:
        socket.create_connection(("localhost", port), 1).close()
    except OSError:
        return False
    return True


def test_without_a_broker_the_scripts_say_what_to_do(tmp_path: Path, forks: Forks) -> None:
    """Each of them waits for a broker for ten seconds, here for one."""
    with Example("kafka", tmp_path, forks.program) as example:
        for script in ("drive.py", "listen.py"):
            assert "list_topics(timeout=10)" in (example.folder / script).read_text()
            example.replace(script, {"list_topics(timeout=10)": "list_topics(timeout=1)"})
            done = subprocess.run(
                [sys.executable, script, "--servers", f"localhost:{free_port()}"],
                cwd=example.folder,
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert done.returncode == 1, script
            assert "no broker answers at localhost" in done.stderr, script
            assert "Traceback" not in done.stderr, script
