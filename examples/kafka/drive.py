"""Produce the positions of ten taxis: python drive.py [--seconds 120]."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time

from confluent_kafka import KafkaException, Producer


def main() -> None:
    """Drive about, each taxi for itself; some stop at the hospital."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--seconds", type=float, default=120)
    arguments.add_argument("--servers", default="localhost:9092")
    given = arguments.parse_args()
    producer = Producer({"bootstrap.servers": given.servers, "log_level": 0})
    try:
        producer.list_topics(timeout=10)
    except KafkaException:
        sys.exit(f"no broker answers at {given.servers}: start it as README.md says")
    speeds = {f"taxi-{number:02}": 40.0 for number in range(1, 11)}
    end = time.time() + given.seconds
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
