"""Publish what Zigbee2MQTT would publish in three homes: python devices.py [--seconds N]."""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from contextlib import suppress

from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion

HOMES = ("home-01", "home-02", "home-03")


def readings() -> dict[str, dict[str, object]]:
    """The payloads of a contact sensor, a motion sensor, a radiator valve and a plug."""
    return {
        "front_door": {
            "contact": random.random() > 0.1, "battery": 100, "linkquality": 120, "voltage": 3000,
        },
        "hall_motion": {
            "occupancy": random.random() < 0.3, "illuminance": 14, "battery": 97, "linkquality": 96,
        },
        "living_radiator": {
            "local_temperature": round(random.uniform(18, 23), 1), "system_mode": "heat",
            "occupied_heating_setpoint": 21, "linkquality": 87,
        },
        "stove": {"state": "ON", "power": random.choice([0, 0, 1200]), "linkquality": 140},
    }  # fmt: skip


def main() -> None:
    """Publish a reading of every device about twice a second."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--seconds", type=float, default=math.inf, help="stop after so many")
    arguments.add_argument("--port", type=int, default=1883)
    given = arguments.parse_args()
    client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTv5)
    try:
        client.connect("localhost", given.port)
    except OSError:
        sys.exit(f"no broker answers at localhost:{given.port}: start it as README.md says")
    client.loop_start()
    print("The devices of three homes publish. Ctrl-C stops them.", flush=True)
    end = time.time() + given.seconds
    with suppress(KeyboardInterrupt):
        while time.time() < end:
            for home in HOMES:
                for device, payload in readings().items():
                    client.publish(f"{home}/{device}", json.dumps(payload), qos=1)
            time.sleep(0.5)
    client.disconnect()
    client.loop_stop()


if __name__ == "__main__":
    main()
