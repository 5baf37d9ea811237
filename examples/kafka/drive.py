"""Produce the positions of ten taxis until stopped: python drive.py [--seconds N]."""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from contextlib import suppress

from confluent_kafka import KafkaException, Producer


def main() -> None:
    """Produce for as long as asked for."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--seconds", type=float, default=math.inf, help="stop after so many")
    arguments.add_argument("--servers", default="localhost:9092")
    given = arguments.parse_args()
    producer = Producer({"bootstrap.servers": given.servers, "log_level": 0})
    try:
        producer.list_topics(timeout=10)
    except KafkaException:
        sys.exit(f"no broker answers at {given.servers}: start it as README.md says")
    print("Ten taxis produce their positions. Ctrl-C stops them.", flush=True)
    with suppress(KeyboardInterrupt):
        drive(producer, given.seconds)


def drive(producer: Producer, seconds: float) -> None:
    """Drive about, each taxi for itself; some stop at the hospital."""
    speeds = {f"taxi-{number:02}": 40.0 for number in range(1, 11)}
    end = time.time() + seconds
    while time.time() < end:
        for taxi, speed in speeds.items():
            speeds[taxi] = min(max(speed + random.uniform(-15, 15), 0), 80)
            row = {
                "taxi": taxi,
                "ts": time.time(),
                "lon": round(random.uniform(116.36, 116.42), 5),
                "lat": round(random.uniform(39.88, 39.94), 5),
                "speed": round(speeds[taxi], 1),
            }
            # The key keeps the reports of a taxi in one partition, and so in order.
            producer.produce("positions", json.dumps(row), key=taxi)
        producer.flush(10)
        time.sleep(0.5)


if __name__ == "__main__":
    main()
