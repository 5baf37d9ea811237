"""Kafka: tuples from topics, read as a consumer group; answers to topics, in transactions.

`open_kafka_source("kafka://host:9092/gps?group=tacit&columns=...")` reads,
`open_kafka_outlet("kafka://host:9092/answers-{consumer}")` delivers.
"""

from __future__ import annotations

from importlib.util import find_spec

from tacit.connectors.kafka.address import read_inward, read_outward
from tacit.connectors.outlets import Outlet
from tacit.connectors.sources import Source
from tacit.errors import SinkError, SourceError, TacitError


def open_kafka_source(url: str) -> Source:
    """The tuples in some topics; connects when it is first read."""
    _need("confluent_kafka", SourceError)
    address, inward = read_inward(url)
    if inward.payload == "cbor":
        _need("cbor2", SourceError)
    from tacit.connectors.kafka.source import KafkaSource

    return KafkaSource(address, inward)


def open_kafka_outlet(url: str) -> Outlet:
    """Topics that answers are delivered to, each release once; connects when it recovers."""
    _need("confluent_kafka", SinkError)
    address, outward = read_outward(url)
    from tacit.connectors.kafka.outlet import KafkaOutlet

    return KafkaOutlet(address, outward)


def _need(module: str, kind: type[TacitError]) -> None:
    if find_spec(module) is None:
        raise kind("Kafka needs the extra tacit[kafka]: pip install 'tacit[kafka]'")
