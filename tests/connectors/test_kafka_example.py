"""The example with Kafka works as its README says."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.connectors.mqtt_clients import until
from tests.services import KAFKA_JARS, free_port, program

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "kafka"


def commands() -> list[str]:
    """The commands of the README, in order."""
    return re.findall(r"```sh\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.S)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the example, with the server that Maven has fetched."""
    program("java")
    if not any(KAFKA_JARS.glob("kafka_*.jar")):
        pytest.skip("the Kafka server is not there; make test fetches it if there is Maven")
    copy = tmp_path / "kafka"
    shutil.copytree(EXAMPLE, copy)
    (copy / "server").symlink_to(KAFKA_JARS)
    return copy


def test_the_commands_of_the_readme_give_a_consumer_its_answers(folder: Path) -> None:
    port, controller = free_port(), free_port()
    settings = folder / "server.properties"
    text = settings.read_text().replace("9092", str(port)).replace("9093", str(controller))
    settings.write_text(text)
    tacit = str(Path(sys.executable).with_name("tacit"))
    broker, drive, run, listen, *ledger = (
        command.replace("//localhost/", f"//localhost:{port}/")
        .replace("python ", f"exec {sys.executable} ")
        .replace("tacit run", f"exec {tacit} run")
        .replace("tacit ledger", f"{tacit} ledger")
        .replace(".py", f".py --servers localhost:{port}")
        for command in commands()
    )
    fetch, prepare, serve = broker.strip().splitlines()
    assert fetch == "mvn -q dependency:copy-dependencies -DoutputDirectory=server"
    subprocess.run(["bash", "-ec", prepare], cwd=folder, check=True, capture_output=True)
    running: list[subprocess.Popen[str]] = []

    def start(command: str) -> subprocess.Popen[str]:
        with (folder / f"log-{len(running)}").open("w") as log:
            running.append(
                subprocess.Popen(
                    ["bash", "-ec", command], cwd=folder, stdout=log, stderr=log, text=True
                )
            )
        return running[-1]

    def said(number: int) -> str:
        return (folder / f"log-{number}").read_text()

    try:
        start(f"exec {serve}")
        until(lambda: is_listening(port), "a broker", 120)
        start(drive)
        engine = start(run)
        start(listen)
        until(lambda: "standing: " in said(3), "answered", 120)  # kernels may have to be compiled
        engine.send_signal(signal.SIGTERM)
        assert engine.wait(60) == 0, said(2)
    finally:
        for process in reversed(running):
            process.kill()
            process.wait(30)
    assert "jam: " in said(3)
    assert "care: " not in said(3), "the clinic's answers are in its own topic"
    shown = subprocess.run(
        ["bash", "-ec", "".join(ledger)], cwd=folder, check=True, capture_output=True, text=True
    )
    assert "hospital_visit" in shown.stdout


def is_listening(port: int) -> bool:
    """Whether the broker accepts connections."""
    try:
        socket.create_connection(("localhost", port), 1).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("script", ["drive.py", "listen.py"])
def test_without_a_broker_the_scripts_say_what_to_do(script: str) -> None:
    command = [sys.executable, script, "--servers", f"localhost:{free_port()}"]
    done = subprocess.run(command, cwd=EXAMPLE, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "no broker answers at localhost" in done.stderr
    assert "Traceback" not in done.stderr
