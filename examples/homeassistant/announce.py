"""Announce answers to Home Assistant by MQTT discovery: python announce.py CONSUMER [--remove].

For every home and every query of the consumer, one retained message describes a binary sensor:
where its answers arrive, and how to read them. Home Assistant then shows it under the device of
that home, with the confidence of the last answer as an attribute.
"""

from __future__ import annotations

import argparse
import json
import sys

from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion

import tacit


def discovery(consumer: str, query: str, home: str) -> tuple[str, dict[str, object]]:
    """The topic and the payload that describe one sensor, as Home Assistant documents them."""
    name = f"tacit_{consumer}_{query}_{home}".replace("-", "_")
    answers = f"tacit/answers/{consumer}/{query}/{home}"
    return f"homeassistant/binary_sensor/{name}/config", {
        "name": query.replace("_", " ").capitalize(),
        "unique_id": name,
        "state_topic": answers,
        "value_template": "{{ 'ON' if value_json.detected else 'OFF' }}",
        "json_attributes_topic": answers,
        "json_attributes_template": "{{ {'confidence': value_json.confidence,"
        " 'window_end': value_json.window_end} | tojson }}",
        "device": {"identifiers": [f"tacit_{home}"], "name": home, "manufacturer": "Tacit"},
        "origin": {"name": "tacit"},
    }


def main() -> None:
    """Publish the descriptions; with --remove, empty ones, which remove the sensors."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("consumer")
    arguments.add_argument("--remove", action="store_true")
    arguments.add_argument("--port", type=int, default=1883)
    given = arguments.parse_args()
    spec = tacit.load("home.yaml")
    asked = [query.name for query in spec.queries if query.consumer == given.consumer]
    if not asked:
        sys.exit(f"{given.consumer} asks nothing in home.yaml")
    client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTv5)
    try:
        client.connect("localhost", given.port)
    except OSError:
        sys.exit(f"no broker answers at localhost:{given.port}: start it as README.md says")
    client.loop_start()
    for query in asked:
        for home in spec.subjects or ():
            topic, payload = discovery(given.consumer, query, str(home))
            text = "" if given.remove else json.dumps(payload)
            client.publish(topic, text, qos=1, retain=True).wait_for_publish(30)
            print(topic)
    client.disconnect()
    client.loop_stop()


if __name__ == "__main__":
    main()
