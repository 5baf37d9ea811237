"""Kafka: tuples from topics, read as a consumer group; answers to topics, in transactions.

`open_kafka_source("kafka://host:9092/gps?group=tacit&columns=...")` reads,
`open_kafka_outlet("kafka://host:9092/answers-{consumer}")` delivers.
"""

from __future__ import annotations

from tacit.connectors.kafka.address import read_inward, read_outward
from tacit.connectors.outlets import Outlet
from tacit.connectors.sources import Source
from tacit.connectors.urls import need
from tacit.errors import SinkError, SourceError


def open_kafka_source(url: str) -> Source:
    """The tuples in some topics; connects when it is first read."""
    need("confluent_kafka", "kafka", SourceError)
    address, inward = read_inward(url)
    if inward.payload == "cbor":
        need("cbor2", "kafka", SourceError)
    from tacit.connectors.kafka.source import KafkaSource

    return KafkaSource(address, inward)


def open_kafka_outlet(url: str) -> Outlet:
    """Topics that answers are delivered to, each release once; connects when it recovers."""
    need("confluent_kafka", "kafka", SinkError)
    address, outward = read_outward(url)
    from tacit.connectors.kafka.outlet import KafkaOutlet

    return KafkaOutlet(address, outward)
