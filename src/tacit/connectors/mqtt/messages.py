"""Messages of the source: their identities, their rows, and the token of a batch."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from tacit.connectors.mqtt.address import MqttSourceOptions
from tacit.connectors.payloads import PayloadParser
from tacit.errors import SourceError
from tacit.pipeline.sources import Rejected, encode_keys

TOPIC = "topic"
SUBJECT = "subject"
_NONE: NDArray[np.int64] = np.empty(0, np.int64)


class Message(NamedTuple):
    """A received message."""

    place: int
    """The number of the message in this run."""
    identity: int
    """Its packet id and checksum: the same if it is sent again; 0 if it never is."""
    again: bool
    """Whether the broker may have sent it before."""
    topic: str
    payload: bytes
    received: float = 0.0
    """When it arrived, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class BatchRange:
    """The messages of a batch, and the last one before it."""

    after: int = 0
    messages: NDArray[np.int64] = field(default_factory=_NONE.copy)
    rows: NDArray[np.int64] = field(default_factory=_NONE.copy)
    """The number of rows of each message."""

    def to_json(self) -> dict[str, Any]:
        """Encode it for a checkpoint."""
        rows = None if (self.rows == 1).all() else _pack(self.rows)
        return {"after": self.after, "messages": _pack(self.messages), "rows": rows}

    @classmethod
    def from_json(cls, plain: Any) -> BatchRange:
        """Decode a token from a checkpoint."""
        try:
            messages = _unpack(plain["messages"])
            rows = plain["rows"]
            counts = np.ones(len(messages), np.int64) if rows is None else _unpack(rows)
            if len(counts) != len(messages):
                raise ValueError("as many counts as messages")
            return cls(int(plain["after"]), messages, counts)
        except (KeyError, TypeError, ValueError) as error:
            raise SourceError("the position in the checkpoint is not one of MQTT") from error


class MessageRows:
    """Turns messages into rows of these columns."""

    def __init__(
        self,
        options: MqttSourceOptions,
        columns: Sequence[str],
        keys: Sequence[str],
    ) -> None:
        self._levels = {name: level for name, level in options.levels.items() if name in columns}
        self._columns = list(columns)
        self._keys = keys
        self._alias = {} if options.subject is None else {SUBJECT: options.subject}
        self._received = options.received if options.received in columns else None
        own = (TOPIC, options.received, *options.levels)
        wanted = [self._alias.get(name, name) for name in columns if name not in own]
        self._parser = PayloadParser(list(dict.fromkeys(wanted)), options.payload)
        self._hidden = options.payload == "cbor"

    def read(
        self, messages: Sequence[Message]
    ) -> tuple[pa.RecordBatch, NDArray[np.int64], list[Rejected]]:
        """Return the rows, the message of each row, and the unreadable messages."""
        parsed = self._parser.parse([message.payload for message in messages])
        frame = parsed.frame.with_columns(self._topic_columns(messages, parsed.origin))
        frame = frame.with_columns(self._arrival_times(messages, parsed.origin))
        frame = frame.with_columns(
            frame[name].rename(column) for column, name in self._alias.items() if name in frame
        )
        table = frame.select(self._columns).rechunk().to_arrow()
        batches = table.to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]
        bad = [
            Rejected(messages[number].place, reason, self._show(messages[number].payload))
            for number, reason in parsed.rejected
        ]
        return encode_keys(batches[0], self._keys), parsed.origin, bad

    def _topic_columns(
        self, messages: Sequence[Message], origin: NDArray[np.int64]
    ) -> list[pl.Series]:
        """Return the topic of every row and its levels; each topic is split once."""
        if TOPIC not in self._columns and not self._levels:
            return []
        coded = pa.array([message.topic for message in messages], pa.string()).dictionary_encode()
        topics = pl.Series(TOPIC, coded.dictionary, pl.String)
        codes = coded.indices.to_numpy()[origin]
        levels = topics.str.split("/")
        parts = {
            name: levels.list.get(level - 1, null_on_oob=True)
            for name, level in self._levels.items()
        }
        return [part.gather(codes).rename(name) for name, part in {TOPIC: topics, **parts}.items()]

    def _arrival_times(
        self, messages: Sequence[Message], origin: NDArray[np.int64]
    ) -> list[pl.Series]:
        """Return the time of arrival of every row, as text like all other columns."""
        if self._received is None:
            return []
        seconds = np.array([message.received for message in messages], np.float64)[origin]
        moments = pl.Series(self._received, (seconds * 1e6).astype(np.int64))
        return [moments.cast(pl.Datetime("us")).dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ")]

    def _show(self, payload: bytes) -> str:
        return payload.hex() if self._hidden else payload.decode(errors="replace")


def _pack(numbers: NDArray[np.int64]) -> str:
    return base64.b64encode(numbers.astype("<i8").tobytes()).decode()


def _unpack(text: str) -> NDArray[np.int64]:
    return np.frombuffer(base64.b64decode(text, validate=True), "<i8").astype(np.int64)
