"""MQTT 5: tuples from the topics of a broker, and answers to them.

`open_source("mqtt://host/taxis/+/position?subject=topic:2&columns=...")` subscribes,
`open_sink("mqtt://host/answers/{consumer}/{query}")` publishes.
"""

from __future__ import annotations

from tacit.connectors.mqtt.address import read_inward, read_outward
from tacit.connectors.urls import need
from tacit.errors import SinkError, SourceError
from tacit.pipeline.sinks import Sink
from tacit.pipeline.sources import Source


def open_source(url: str) -> Source:
    """The tuples that are published under a topic filter; connects when it is first read."""
    need("paho", "mqtt", SourceError)
    address, inward = read_inward(url)
    if inward.payload == "cbor":
        need("cbor2", "mqtt", SourceError)
    from tacit.connectors.mqtt.source import MqttSource

    return MqttSource(address, inward)


def open_sink(url: str) -> Sink:
    """A topic for each consumer and query that answers are published to."""
    need("paho", "mqtt", SinkError)
    address, outward = read_outward(url)
    if outward.payload == "cbor":
        need("cbor2", "mqtt", SinkError)
    from tacit.connectors.mqtt.sink import MqttSink

    return MqttSink(address, outward)


def probe(url: str, *, source: bool) -> str:
    """What the broker says to a source or a sink; raises if a run could not use it."""
    from tacit.connectors.mqtt import reachability

    return reachability.probe(url, source=source)
