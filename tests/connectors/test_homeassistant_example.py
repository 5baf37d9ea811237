"""The example with Zigbee2MQTT and Home Assistant works as its README says."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.connectors.examples import Example
from tests.connectors.mqtt_clients import Peer, until
from tests.engines.forking import Forks
from tests.services import free_port, program


@pytest.mark.soak
def test_the_commands_of_the_readme_give_sensors_and_their_states(
    tmp_path: Path, forks: Forks
) -> None:
    port = free_port()
    mosquitto = program("mosquitto", "/usr/sbin/mosquitto")
    with Example("homeassistant", tmp_path, forks.program) as example:
        example.replace("mosquitto.conf", {"listener 1883": f"listener {port}"})
        broker, devices, run, announce = example.commands(
            {
                "//localhost": f"//localhost:{port}",
                "mosquitto -c": f"exec {mosquitto} -c",
                ".py": f".py --port {port}",
            }
        )
        example.start(broker)
        until(lambda: "running" in example.said(0), "a broker")
        example.start(devices)
        engine = example.start(run)
        announced = example.run(announce).split()
        assert len(announced) == 6  # two queries in three homes
        with Peer(port, topics="#") as assistant:

            def last() -> dict[str, bytes]:
                return {one.topic: bytes(one.payload) for one in list(assistant.messages)}

            until(lambda: len(set(last()) & set(announced)) == 6, "discovered")
            configs = [json.loads(last()[topic]) for topic in announced]
            states = {config["state_topic"] for config in configs}
            assert len(states) == len({config["unique_id"] for config in configs}) == 6
            until(lambda: states <= set(last()), "an answer for every sensor", 180)
            answers = {topic: json.loads(last()[topic]) for topic in states}
        for answer in answers.values():
            assert {"detected", "confidence", "window_end"} <= set(answer)
        exact = [answer["confidence"] for topic, answer in answers.items() if "/heated/" in topic]
        assert set(exact) == {1.0}
        engine.send_signal(signal.SIGTERM)
        assert engine.wait(60) == 0, example.said(2)
