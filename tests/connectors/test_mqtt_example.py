"""The example with Mosquitto works as its README says."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.connectors.mqtt_clients import until
from tests.services import free_port, program

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "mqtt"


def commands() -> list[str]:
    """The commands of the README, in order."""
    return re.findall(r"```sh\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.S)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the example, on a free port."""
    for name in ("mosquitto", "mosquitto_passwd", "openssl"):
        program(name, "/usr/sbin/mosquitto")
    copy = tmp_path / "mqtt"
    shutil.copytree(EXAMPLE, copy)
    return copy


def test_the_commands_of_the_readme_give_a_consumer_its_answers(folder: Path) -> None:
    port = free_port()
    conf = folder / "mosquitto.conf"
    conf.write_text(conf.read_text().replace("listener 1883", f"listener {port}"))
    tacit = str(Path(sys.executable).with_name("tacit"))
    mosquitto = program("mosquitto", "/usr/sbin/mosquitto")
    passwords, broker, publish, run, listen, bad, *ledger = (
        command.replace("@localhost", f"@localhost:{port}")
        .replace("mosquitto -c", f"exec {mosquitto} -c")
        .replace("python ", f"exec {sys.executable} ")
        .replace("tacit run", f"exec {tacit} run")
        .replace("tacit ledger", f"{tacit} ledger")
        .replace(".py", f".py --port {port}")
        for command in commands()
    )
    subprocess.run(["bash", "-ec", passwords], cwd=folder, check=True, capture_output=True)
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
        start(broker)
        until(lambda: "running" in said(0), "a broker")
        start(publish)
        engine = start(run)
        start(listen)
        until(lambda: "standing: " in said(3), "answered", 120)  # kernels may have to be compiled
        subprocess.run(
            ["bash", "-ec", bad.partition("cat refused")[0]], cwd=folder, check=True, timeout=30
        )
        refused = folder / "refused.jsonl"
        until(lambda: refused.exists() and "no JSON" in refused.read_text(), "refused")
        engine.send_signal(signal.SIGTERM)
        assert engine.wait(30) == 0, said(2)
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(30)
    assert "jam: " in said(3)
    assert "care: " not in said(3)
    shown = subprocess.run(
        ["bash", "-ec", ledger[0]], cwd=folder, check=True, capture_output=True, text=True
    )
    assert "hospital_visit" in shown.stdout
    secrets = [(folder / f"{user}.secret").read_text().strip() for user in ("tacit", "city")]
    assert not [secret for secret in secrets if secret in said(2) + said(3) + shown.stdout]


@pytest.mark.parametrize("script", ["publish.py", "listen.py city"])
def test_without_a_broker_or_a_password_the_scripts_say_what_to_do(
    tmp_path: Path, script: str
) -> None:
    name, *consumer = script.split()
    shutil.copy(EXAMPLE / name, tmp_path)
    command = [sys.executable, name, *consumer, "--port", str(free_port())]

    def said() -> str:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        return done.stderr

    assert ".secret is missing" in said()
    (tmp_path / "taxis.secret").write_text("x")
    (tmp_path / "city.secret").write_text("x")
    assert "no broker answers at localhost" in said()
