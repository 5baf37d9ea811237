"""Print a consumer's answers as they come: python listen.py [city]."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from paho.mqtt.client import Client, MQTTMessage, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion

HERE = Path(__file__).parent


class Answers:
    """Prints each answer once: after a crash the last ones may come again, with the same ids."""

    def __init__(self) -> None:
        self.last: dict[str, int] = {}

    def show(self, message: MQTTMessage) -> None:
        """Print what is new in an array of answers."""
        for answer in json.loads(message.payload):
            if answer["id"] > self.last.get(message.topic, -1):
                self.last[message.topic] = answer["id"]
                said = "yes" if answer["detected"] else "no"
                print(
                    answer["window_start"],
                    answer["subject"],
                    f"{answer['query']}: {said} ({answer['confidence']:.0%} sure)",
                    flush=True,
                )


def main() -> None:
    """Subscribe to everything that this consumer may see."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("consumer", nargs="?", default="city")
    arguments.add_argument("--port", type=int, default=1883)
    given = arguments.parse_args()
    answers = Answers()

    def subscribe(client: Client, *_: Any) -> None:
        client.subscribe(f"tacit/answers/{given.consumer}/+", 1)

    client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTv5)
    client.on_connect = subscribe
    client.on_message = lambda _client, _userdata, message: answers.show(message)
    secret = HERE / f"{given.consumer}.secret"
    try:
        client.username_pw_set(given.consumer, secret.read_text().strip())
        client.connect("localhost", given.port)
    except FileNotFoundError:
        sys.exit(f"{secret.name} is missing beside this script: create it as README.md says")
    except OSError as error:
        why = error.strerror or type(error).__name__
        sys.exit(f"no broker answers at localhost:{given.port} ({why}): start it as README.md says")
    client.loop_forever()


if __name__ == "__main__":
    main()
