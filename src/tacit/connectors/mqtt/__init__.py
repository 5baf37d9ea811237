"""MQTT 5: tuples from the topics of a broker, and answers to them.

`open_source("mqtt://host/taxis/+/position?subject=topic:2&columns=...")` subscribes,
`open_sink("mqtt://host/answers/{consumer}/{query}")` publishes.
"""

from __future__ import annotations

from tacit.connectors.mqtt.address import parse_sink_url, parse_source_url
from tacit.connectors.urls import require_extra
from tacit.pipeline.sinks import Sink
from tacit.pipeline.sources import Source


def open_source(url: str) -> Source:
    """Open a source of the messages under a topic filter; it connects on the first read."""
    require_extra("paho", "mqtt")
    address, options = parse_source_url(url)
    if options.payload == "cbor":
        require_extra("cbor2", "mqtt")
    from tacit.connectors.mqtt.source import MqttSource

    return MqttSource(address, options)


def open_sink(url: str) -> Sink:
    """Open a sink that publishes answers, with a topic for each consumer and query."""
    require_extra("paho", "mqtt")
    address, options = parse_sink_url(url)
    if options.payload == "cbor":
        require_extra("cbor2", "mqtt")
    from tacit.connectors.mqtt.sink import MqttSink

    return MqttSink(address, options)


def probe(url: str, *, source: bool) -> str:
    """Check that a run could use the broker; return its reply, or raise."""
    from tacit.connectors.mqtt import reachability

    return reachability.probe(url, source=source)
