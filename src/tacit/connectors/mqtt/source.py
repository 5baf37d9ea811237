"""Read tuples from an MQTT broker, in a session that survives crashes without loss.

A message is acknowledged to the broker only when it is safe, so after a crash the broker sends it
again. A batch's token identifies its messages by packet id and checksum. The messages of a batch
are acknowledged with the receipt of the next batch: until then a run may resume at this batch, and
it must come first again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tacit.connectors.mqtt.address import MqttAddress, MqttSourceOptions
from tacit.connectors.mqtt.connection import log
from tacit.connectors.mqtt.messages import BatchRange, Message, MessageRows
from tacit.connectors.mqtt.session import MOST, Session, Subscription
from tacit.connectors.payloads import declared_types
from tacit.events.streams import ColumnType
from tacit.pipeline.sources import Batch, Rejected, Source

_AGAIN: Final = 1.0
"""Seconds without a message after which the broker has repeated all it will repeat."""


class MqttSource(Source):
    """Reads the messages under a topic filter."""

    textual = True
    keyed = True
    replayable = False  # a broker sends a message again only while it is not acknowledged

    def __init__(self, address: MqttAddress, options: MqttSourceOptions) -> None:
        self.name = f"{address.place}/{options.topics}"
        self.live = True
        self.once = True
        self._address = address
        self._options = options
        self._session: Session | None = None
        self._token: BatchRange | None = None
        self._last = 0
        self._after = 0

    @property
    def listening(self) -> bool:
        """Whether the broker has confirmed the subscription."""
        return self._session is not None and self._session.subscription.listening > 0

    def schema(self) -> pa.Schema:
        """Return an empty schema: payloads name their own columns."""
        return pa.schema([])

    def declared_types(self) -> Mapping[str, ColumnType]:
        """Return the column types from the URL or its sample."""
        return declared_types(self._options.columns, self._options.sample)

    def resume(self, token: Any) -> None:
        """Start with the batch of this token; earlier messages are dropped."""
        self._token = None if token is None else BatchRange.from_json(token)

    def acknowledge(self, receipt: Any) -> None:
        """Acknowledge all messages up to this one."""
        if self._session is not None:
            self._session.settle(receipt)

    def read(self, columns: Sequence[str], keys: Sequence[str]) -> Iterator[Batch]:
        """Yield batches of new messages, and empty ones while nothing arrives."""
        rows = MessageRows(self._options, columns, keys)
        session = self._open_session()
        try:
            if self._token is not None:
                yield from self._read_resumed(self._token, session, rows)
            while True:
                yield self._batch(session.gather(), rows)
        finally:
            self._session = None
            session.close()

    def _open_session(self) -> Session:
        if self._session is None:
            self._session = Session(self._address, self._options)
        return self._session

    def _batch(self, messages: Sequence[Message], rows: MessageRows) -> Batch:
        table, origin, rejected = rows.read(messages)
        token = BatchRange(
            self._after,
            np.array([message.identity for message in messages], np.int64),
            np.bincount(origin, minlength=len(messages)),
        )
        places = np.array([message.place for message in messages], np.int64)[origin]
        batch = self._make_batch(table, token, places, rejected)
        if messages:
            self._last = messages[-1].place
            sent = token.messages[token.messages != 0]
            self._after = int(sent[-1]) if len(sent) else self._after
        return batch

    def _make_batch(
        self,
        table: pa.RecordBatch,
        token: BatchRange,
        places: Any = None,
        rejected: Sequence[Rejected] = (),
    ) -> Batch:
        return Batch(
            table,
            self._last + 1,
            self._last + len(token.messages),
            self.name,
            tuple(rejected),
            places,
            token.to_json(),
            self._last or None,
        )

    def _read_resumed(
        self, token: BatchRange, session: Session, rows: MessageRows
    ) -> Iterator[Batch]:
        """Yield the batch of the token again, then what the broker sent after it.

        The number of its rows stays the same, since they were counted. Rows of a message that was
        not sent again are null.
        """
        nothing = rows.read([])[0]
        gathered: list[Message] = []
        last_message = time.monotonic()
        while not _complete(gathered, token, session.subscription, last_message):
            # Without a token: the previous position stays valid, with its rows.
            yield Batch(nothing, 1, 0, self.name)
            fresh = session.gather()
            gathered += fresh
            last_message = time.monotonic() if fresh else last_message
        earlier, again, rest = sort_repeated(gathered, token)
        if earlier:
            self._last = earlier[-1].place
            session.settle(self._last)
        if len(again) < np.count_nonzero(token.messages):
            log.warning("%s: the broker did not repeat all unacknowledged messages", self.name)
        yield self._repeat_batch(token, again, rows)
        sent = token.messages[token.messages != 0]
        self._after = int(sent[-1]) if len(sent) else token.after
        self._last = max([self._last, *(message.place for message in again)])
        for start in range(0, len(rest), MOST):
            yield self._batch(rest[start : start + MOST], rows)

    def _repeat_batch(
        self, token: BatchRange, again: Sequence[Message], rows: MessageRows
    ) -> Batch:
        table, origin, rejected = rows.read(again)
        firsts = np.searchsorted(origin, np.arange(len(again)))
        counts = np.bincount(origin, minlength=len(again))
        at = {message.identity: number for number, message in enumerate(again)}
        places = np.full(int(token.rows.sum()), -1, np.int64)
        ends = np.cumsum(token.rows)
        for identity, end, count in zip(token.messages, ends, token.rows, strict=True):
            number = at.get(int(identity))
            if number is not None:
                there = min(int(count), int(counts[number]))
                first = int(firsts[number])
                places[end - count : end - count + there] = np.arange(first, first + there)
        whole = table.take(pa.array(places, mask=places < 0))
        return self._make_batch(whole, token, rejected=rejected)


def _complete(
    gathered: Sequence[Message],
    token: BatchRange,
    subscription: Subscription,
    last_message: float,
) -> bool:
    """Return whether the broker has repeated all messages that it will repeat."""
    if subscription.resumed is None:
        return False
    if not subscription.resumed or any(not message.again for message in gathered):
        return True
    expected = set(token.messages.tolist()) - {0}
    if expected and expected <= {message.identity for message in gathered}:
        return True
    listening = subscription.listening
    return bool(listening) and time.monotonic() - max(last_message, listening) > _AGAIN


def sort_repeated(
    gathered: Sequence[Message], token: BatchRange
) -> tuple[list[Message], list[Message], list[Message]]:
    """Sort repeated messages into those before a batch, of the batch, and after it.

    A broker repeats messages in their first order. So if the last message before the batch is
    among them, all messages up to it come before the batch.
    """
    identities = [message.identity for message in gathered]
    start = identities.index(token.after) + 1 if token.after in identities else 0
    expected = set(token.messages.tolist()) - {0}
    again = [message for message in gathered[start:] if message.identity in expected]
    rest = [message for message in gathered[start:] if message.identity not in expected]
    return list(gathered[:start]), again, rest
