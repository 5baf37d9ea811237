"""Kafka: tuples from topics, read as a consumer group; answers to topics, in transactions.

`open_source("kafka://host:9092/gps?group=tacit&columns=...")` reads,
`open_sink("kafka://host:9092/answers-{consumer}")` delivers.
"""

from __future__ import annotations

from tacit.connectors.kafka.address import parse_sink_url, parse_source_url
from tacit.connectors.urls import require_extra
from tacit.pipeline.sinks import Sink
from tacit.pipeline.sources import Source


def open_source(url: str) -> Source:
    """Open a source of the messages in some topics; it connects on the first read."""
    require_extra("confluent_kafka", "kafka")
    address, options = parse_source_url(url)
    if options.payload == "cbor":
        require_extra("cbor2", "kafka")
    from tacit.connectors.kafka.source import KafkaSource

    return KafkaSource(address, options)


def open_sink(url: str) -> Sink:
    """Open a sink that delivers each release once; it connects in `recover`."""
    require_extra("confluent_kafka", "kafka")
    address, options = parse_sink_url(url)
    from tacit.connectors.kafka.sink import KafkaSink

    return KafkaSink(address, options)


def probe(url: str, *, source: bool) -> str:
    """Check that a run could use the broker; return its reply, or raise."""
    from tacit.connectors.kafka import reachability

    return reachability.probe(url, source=source)
