"""Turn answers into messages: topics and payloads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from urllib.parse import quote

import polars as pl

from tacit.connectors.mqtt.address import MqttSinkOptions
from tacit.connectors.writers import format_json_lines
from tacit.pipeline.sinks import ReleaseBatch

_PLACE = re.compile(r"\{(\w+)\}")
_HEAD = 1 << 10
"""An upper bound of the bytes of a message besides its payload and topic."""


class AnswerMessage(NamedTuple):
    """A message to be published."""

    topic: str
    payload: bytes


def make_messages(
    batch: ReleaseBatch, options: MqttSinkOptions, largest: int
) -> Iterator[AnswerMessage]:
    """Make the messages of a batch, in the order of answers, within the broker's limit."""
    frame = pl.DataFrame(batch.table)
    subjects = {"subject": "subject"} if "{subject}" in options.topic else {}
    for group in frame.partition_by(["window_start", "query", *subjects], maintain_order=True):
        names = {name: str(group[column][0]) for name, column in subjects.items()}
        query = str(group["query"][0])
        topic = format_topic(
            options.topic, {"query": query, "consumer": batch.consumers[query]} | names
        )
        for payload in _encode_payloads(group, options, largest - len(topic.encode()) - _HEAD):
            yield AnswerMessage(topic, payload)


def format_topic(template: str, names: Mapping[str, str]) -> str:
    """Fill in the names of a topic; special characters are escaped.

    >>> format_topic("answers/{consumer}/{query}", {"consumer": "city/hall", "query": "jam"})
    'answers/city%2Fhall/jam'
    """
    return _PLACE.sub(lambda place: _escape(names[place[1]]), template)


def _escape(name: str) -> str:
    return re.sub(r"[%/+#$\x00-\x1f\x7f-\x9f]", lambda sign: quote(sign[0], safe=""), name)


def _encode_payloads(group: pl.DataFrame, options: MqttSinkOptions, room: int) -> Iterator[bytes]:
    if options.per_answer:
        yield from _encode_each(group, options)
        return
    whole = _encode_array(group, options)
    if len(whole) <= room or group.height == 1:
        yield whole
        return
    half = group.height // 2
    yield from _encode_payloads(group[:half], options, room)
    yield from _encode_payloads(group[half:], options, room)


def _encode_each(group: pl.DataFrame, options: MqttSinkOptions) -> Iterator[bytes]:
    if options.payload == "json":
        yield from format_json_lines(group.to_arrow()).splitlines()
        return
    import cbor2

    yield from map(cbor2.dumps, group.rows(named=True))


def _encode_array(group: pl.DataFrame, options: MqttSinkOptions) -> bytes:
    if options.payload == "json":
        # Line breaks within texts are escaped.
        return b"[" + format_json_lines(group.to_arrow()).rstrip(b"\n").replace(b"\n", b",") + b"]"
    import cbor2

    return cbor2.dumps(group.rows(named=True))
