"""Answers as messages: which topic, and what is written into them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from urllib.parse import quote

import polars as pl

from tacit.connectors.mqtt.address import MqttSinkOptions
from tacit.connectors.writers import json_lines
from tacit.pipeline.sinks import ReleaseBatch

_PLACE = re.compile(r"\{(\w+)\}")
_HEAD = 1 << 10
"""More bytes than a message takes beside its payload and its topic."""


class AnswerMessage(NamedTuple):
    """A message to be published."""

    topic: str
    payload: bytes


def letters(batch: ReleaseBatch, outward: MqttSinkOptions, largest: int) -> Iterator[AnswerMessage]:
    """The messages of a batch, none larger than a broker takes, in the order of answers."""
    frame = pl.DataFrame(batch.table)
    subjects = {"subject": "subject"} if "{subject}" in outward.topic else {}
    for group in frame.partition_by(["window_start", "query", *subjects], maintain_order=True):
        names = {name: str(group[column][0]) for name, column in subjects.items()}
        query = str(group["query"][0])
        topic = topic_of(
            outward.topic, {"query": query, "consumer": batch.consumers[query]} | names
        )
        for payload in _payloads(group, outward, largest - len(topic.encode()) - _HEAD):
            yield AnswerMessage(topic, payload)


def topic_of(template: str, names: Mapping[str, str]) -> str:
    """A topic with names in their places; signs that mean something in topics are escaped.

    >>> topic_of("answers/{consumer}/{query}", {"consumer": "city/hall", "query": "jam"})
    'answers/city%2Fhall/jam'
    """
    return _PLACE.sub(lambda place: _escaped(names[place[1]]), template)


def _escaped(name: str) -> str:
    return re.sub(r"[%/+#$\x00-\x1f\x7f-\x9f]", lambda sign: quote(sign[0], safe=""), name)


def _payloads(group: pl.DataFrame, outward: MqttSinkOptions, room: int) -> Iterator[bytes]:
    if outward.per_answer:
        yield from _each(group, outward)
        return
    whole = _array(group, outward)
    if len(whole) <= room or group.height == 1:
        yield whole
        return
    half = group.height // 2
    yield from _payloads(group[:half], outward, room)
    yield from _payloads(group[half:], outward, room)


def _each(group: pl.DataFrame, outward: MqttSinkOptions) -> Iterator[bytes]:
    if outward.payload == "json":
        yield from json_lines(group.to_arrow()).splitlines()
        return
    import cbor2

    yield from map(cbor2.dumps, group.rows(named=True))


def _array(group: pl.DataFrame, outward: MqttSinkOptions) -> bytes:
    if outward.payload == "json":
        # Signs that end a line are escaped within texts.
        return b"[" + json_lines(group.to_arrow()).rstrip(b"\n").replace(b"\n", b",") + b"]"
    import cbor2

    return cbor2.dumps(group.rows(named=True))
