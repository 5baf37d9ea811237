"""Print a consumer's answers as they come: python listen.py [city]."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys

from confluent_kafka import Consumer, KafkaException


def main() -> None:
    """Read the topic of this consumer, from the beginning."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("consumer", nargs="?", default="city")
    arguments.add_argument("--servers", default="localhost:9092")
    given = arguments.parse_args()
    consumer = Consumer(
        {
            "bootstrap.servers": given.servers,
            "group.id": f"listen-{given.consumer}",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",  # each release once, or not yet
            "topic.metadata.refresh.interval.ms": 1000,  # the first release creates the topic
            "log_level": 0,
        }
    )
    with contextlib.closing(consumer):
        try:
            consumer.list_topics(timeout=10)
        except KafkaException:
            sys.exit(f"no broker answers at {given.servers}: start it as README.md says")
        consumer.subscribe([f"answers-{given.consumer}"])
        while True:
            for message in consumer.consume(1000, 0.5):
                if message.error() is not None:
                    continue  # the topic is not there yet
                answer = json.loads(message.value() or b"")
                said = "yes" if answer["detected"] else "no"
                print(
                    answer["window_start"],
                    answer["subject"],
                    f"{answer['query']}: {said} ({answer['confidence']:.0%} sure)",
                    flush=True,
                )


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
