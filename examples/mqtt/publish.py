"""Publish the positions of ten taxis: python publish.py [--seconds N | --text TEXT]."""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from contextlib import suppress
from pathlib import Path

from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion

HERE = Path(__file__).parent


def connect(user: str, port: int) -> Client:
    """A connection as this user, who may publish."""
    client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTv5)
    try:
        client.username_pw_set(user, (HERE / f"{user}.secret").read_text().strip())
        client.connect("localhost", port)
    except FileNotFoundError:
        sys.exit(f"{user}.secret is missing beside this script: create it as README.md says")
    except OSError as error:
        why = error.strerror or type(error).__name__
        sys.exit(f"no broker answers at localhost:{port} ({why}): start it as README.md says")
    client.loop_start()
    return client


def main() -> None:
    """Publish for as long as asked for."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--seconds", type=float, default=math.inf, help="stop after so many")
    arguments.add_argument("--port", type=int, default=1883)
    arguments.add_argument("--text", help="publish this once instead, as if it were a position")
    given = arguments.parse_args()
    client = connect("taxis", given.port)
    if given.text is not None:
        client.publish("taxis/taxi-01/position", given.text, qos=1).wait_for_publish(30)
        given.seconds = 0
    else:
        print("Ten taxis publish their positions. Ctrl-C stops them.", flush=True)
    with suppress(KeyboardInterrupt):
        drive(client, given.seconds)
    client.disconnect()
    client.loop_stop()


def drive(client: Client, seconds: float) -> None:
    """Drive about, each taxi for itself; some stop at the hospital."""
    speeds = {f"taxi-{number:02}": 40.0 for number in range(1, 11)}
    end = time.time() + seconds
    while time.time() < end:
        for taxi, speed in speeds.items():
            speeds[taxi] = min(max(speed + random.uniform(-15, 15), 0), 80)
            row = {
                "ts": time.time(),
                "lon": round(random.uniform(116.36, 116.42), 5),
                "lat": round(random.uniform(39.88, 39.94), 5),
                "speed": round(speeds[taxi], 1),
            }
            # Quality of service 1: what the broker has acknowledged reaches the engine.
            client.publish(f"taxis/{taxi}/position", json.dumps(row), qos=1)
        time.sleep(0.5)


if __name__ == "__main__":
    main()
