"""The example with Mosquitto works as its README says."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.connectors.examples import EXAMPLES, Example
from tests.connectors.mqtt_clients import until
from tests.engines.forking import Forks
from tests.services import free_port, program


def test_the_commands_of_the_readme_give_a_consumer_its_answers(
    tmp_path: Path, forks: Forks
) -> None:
    port = free_port()
    mosquitto = program("mosquitto", "/usr/sbin/mosquitto")
    for name in ("mosquitto_passwd", "openssl"):
        program(name)
    with Example("mqtt", tmp_path, forks.program) as example:
        example.replace("mosquitto.conf", {"listener 1883": f"listener {port}"})
        passwords, broker, publish, run, listen, bad, *ledger = example.commands(
            {
                "@localhost": f"@localhost:{port}",
                "mosquitto -c": f"exec {mosquitto} -c",
                ".py": f".py --port {port}",
            }
        )
        example.run(passwords)
        example.start(broker)
        until(lambda: "running" in example.said(0), "a broker")
        example.start(publish)
        engine = example.start(run)
        example.start(listen)
        until(lambda: "standing: " in example.said(3), "answered", 120)
        example.run(bad.partition("cat refused")[0])
        refused = example.folder / "refused.jsonl"
        until(lambda: refused.exists() and "no JSON" in refused.read_text(), "refused")
        engine.send_signal(signal.SIGTERM)
        assert engine.wait(30) == 0, example.said(2)
        assert "jam: " in example.said(3)
        assert "care: " not in example.said(3)
        shown = example.run(ledger[0])
        assert "hospital_visit" in shown
        printed = example.said(2) + example.said(3) + shown
        for user in ("tacit", "city"):
            assert (example.folder / f"{user}.secret").read_text().strip() not in printed


@pytest.mark.parametrize("script", ["publish.py", "listen.py city"])
def test_without_a_broker_or_a_password_the_scripts_say_what_to_do(
    tmp_path: Path, script: str
) -> None:
    name, *consumer = script.split()
    shutil.copy(EXAMPLES / "mqtt" / name, tmp_path)
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
