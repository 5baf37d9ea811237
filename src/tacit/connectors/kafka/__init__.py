"""Kafka: tuples from topics, read as a consumer group; answers to topics, in transactions.

`open_source("kafka://host:9092/gps?group=tacit&columns=...")` reads,
`open_sink("kafka://host:9092/answers-{consumer}")` delivers.
"""

from __future__ import annotations

from tacit.connectors.kafka.address import read_inward, read_outward
from tacit.connectors.urls import need
from tacit.errors import SinkError, SourceError
from tacit.pipeline.sinks import Sink
from tacit.pipeline.sources import Source


def open_source(url: str) -> Source:
    """The tuples in some topics; connects when it is first read."""
    need("confluent_kafka", "kafka", SourceError)
    address, inward = read_inward(url)
    if inward.payload == "cbor":
        need("cbor2", "kafka", SourceError)
    from tacit.connectors.kafka.source import KafkaSource

    return KafkaSource(address, inward)


def open_sink(url: str) -> Sink:
    """Topics that answers are delivered to, each release once; connects when it recovers."""
    need("confluent_kafka", "kafka", SinkError)
    address, outward = read_outward(url)
    from tacit.connectors.kafka.sink import KafkaSink

    return KafkaSink(address, outward)


def probe(url: str, *, source: bool) -> str:
    """What the broker says to a source or a sink; raises if a run could not use it."""
    from tacit.connectors.kafka import reachability

    return reachability.probe(url, source=source)
