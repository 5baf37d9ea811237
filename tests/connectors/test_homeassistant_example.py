"""The example with Zigbee2MQTT and Home Assistant works as its README says."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tests.connectors.mqtt_clients import Peer, until
from tests.services import free_port, program

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "homeassistant"


def test_the_commands_of_the_readme_give_sensors_and_their_states(tmp_path: Path) -> None:
    folder, port = tmp_path / "example", free_port()
    mosquitto = program("mosquitto", "/usr/sbin/mosquitto")
    shutil.copytree(EXAMPLE, folder)
    conf = folder / "mosquitto.conf"
    conf.write_text(conf.read_text().replace("listener 1883", f"listener {port}"))
    tacit = str(Path(sys.executable).with_name("tacit"))
    broker, devices, run, announce = (
        command.replace("//localhost", f"//localhost:{port}")
        .replace("mosquitto -c", f"exec {mosquitto} -c")
        .replace("python ", f"exec {sys.executable} ")
        .replace("tacit run", f"exec {tacit} run")
        .replace(".py", f".py --port {port}")
        for command in re.findall(r"```sh\n(.*?)```", (folder / "README.md").read_text(), re.S)
    )
    running: list[subprocess.Popen[bytes]] = []

    def start(command: str) -> subprocess.Popen[bytes]:
        log = (folder / f"log-{len(running)}").open("w")
        with log:
            running.append(
                subprocess.Popen(["bash", "-ec", command], cwd=folder, stdout=log, stderr=log)
            )
        return running[-1]

    try:
        start(broker)
        until(lambda: "running" in (folder / "log-0").read_text(), "a broker")
        start(devices)
        engine = start(run)
        announced = subprocess.run(
            ["bash", "-ec", announce], cwd=folder, check=True, capture_output=True, text=True
        )
        assert len(announced.stdout.split()) == 6  # two queries in three homes
        with Peer(port, topics="#") as assistant:

            def last() -> dict[str, bytes]:
                return {one.topic: bytes(one.payload) for one in list(assistant.messages)}

            until(lambda: len(set(last()) & set(announced.stdout.split())) == 6, "discovered")
            configs = [json.loads(last()[topic]) for topic in announced.stdout.split()]
            states = {config["state_topic"] for config in configs}
            assert len(states) == len({config["unique_id"] for config in configs}) == 6
            until(lambda: states <= set(last()), "an answer for every sensor", 180)
            answers = {topic: json.loads(last()[topic]) for topic in states}
        for answer in answers.values():
            assert {"detected", "confidence", "window_end"} <= set(answer)
        exact = [answer["confidence"] for topic, answer in answers.items() if "/heated/" in topic]
        assert set(exact) == {1.0}
        engine.send_signal(signal.SIGTERM)
        assert engine.wait(60) == 0, (folder / "log-2").read_text()
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(30)
