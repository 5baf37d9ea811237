"""Tuples from an MQTT broker: a session that survives, and nothing lost in it.

A message is acknowledged to the broker only when it is safe, so that after a crash the broker
sends it again. A batch's token knows its messages by number and checksum. The messages of a
batch are acknowledged with the receipt of the next: until then a run may have to be resumed at
this batch, and then it must come first again.
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
from tacit.connectors.mqtt.session import MOST, Session
from tacit.connectors.payloads import declared_types
from tacit.events.streams import ColumnType
from tacit.pipeline.sources import Batch, Rejected, Source

_AGAIN: Final = 1.0
"""Seconds of silence after which a broker is taken to have sent all that it sends again."""


class MqttSource(Source):
    """The tuples that are published under a topic filter."""

    textual = True
    keyed = True
    replayable = False  # a broker sends a message again only while it is not acknowledged

    def __init__(self, address: MqttAddress, inward: MqttSourceOptions) -> None:
        self.name = f"{address.place}/{inward.topics}"
        self.live = True
        self.once = True
        self._address = address
        self._inward = inward
        self._session: Session | None = None
        self._token: BatchRange | None = None
        self._last = 0
        self._after = 0

    @property
    def listening(self) -> bool:
        """Whether the broker has confirmed the subscription."""
        return self._session is not None and self._session.listening > 0

    def schema(self) -> pa.Schema:
        """None: payloads name their own columns."""
        return pa.schema([])

    def declared_types(self) -> Mapping[str, ColumnType]:
        """What the URL says of columns, or its sample."""
        return declared_types(self._inward.columns, self._inward.sample)

    def resume(self, token: Any) -> None:
        """Begin with the batch of this token; what came before it is dropped."""
        self._token = None if token is None else BatchRange.read(token)

    def acknowledge(self, receipt: Any) -> None:
        """Let the broker forget all messages up to this one."""
        if self._session is not None:
            self._session.settle(receipt)

    def read(self, columns: Sequence[str], keys: Sequence[str]) -> Iterator[Batch]:
        """Batches of what came within a moment, and empty ones while nothing comes."""
        rows = MessageRows(self._inward, columns, keys)
        session = self._opened()
        try:
            if self._token is not None:
                yield from self._resumed(self._token, session, rows)
            while True:
                yield self._batch(session.gather(), rows)
        finally:
            self._session = None
            session.close()

    def _opened(self) -> Session:
        if self._session is None:
            self._session = Session(self._address, self._inward)
        return self._session

    def _batch(self, messages: Sequence[Message], rows: MessageRows) -> Batch:
        table, origin, rejected = rows.read(messages)
        token = BatchRange(
            self._after,
            np.array([message.identity for message in messages], np.int64),
            np.bincount(origin, minlength=len(messages)),
        )
        places = np.array([message.place for message in messages], np.int64)[origin]
        batch = self._made(table, token, places, rejected)
        if messages:
            self._last = messages[-1].place
            sent = token.messages[token.messages != 0]
            self._after = int(sent[-1]) if len(sent) else self._after
        return batch

    def _made(
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
            token.plain(),
            self._last or None,
        )

    def _resumed(self, token: BatchRange, session: Session, rows: MessageRows) -> Iterator[Batch]:
        """The batch of the token as it was, then what the broker had sent after it.

        Its rows keep their number, since they were counted: those of a message that did not
        come again hold nothing.
        """
        nothing = rows.read([])[0]
        gathered: list[Message] = []
        heard = time.monotonic()
        while not _complete(gathered, token, session, heard):
            # No place to resume at is given: the one there was still holds, with its rows.
            yield Batch(nothing, 1, 0, self.name)
            fresh = session.gather()
            gathered += fresh
            heard = time.monotonic() if fresh else heard
        earlier, again, rest = sort_out(gathered, token)
        if earlier:
            self._last = earlier[-1].place
            session.settle(self._last)
        if len(again) < np.count_nonzero(token.messages):
            log.warning("%s: messages that were under way did not come again", self.name)
        yield self._repeated(token, again, rows)
        sent = token.messages[token.messages != 0]
        self._after = int(sent[-1]) if len(sent) else token.after
        self._last = max([self._last, *(message.place for message in again)])
        for start in range(0, len(rest), MOST):
            yield self._batch(rest[start : start + MOST], rows)

    def _repeated(self, token: BatchRange, again: Sequence[Message], rows: MessageRows) -> Batch:
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
        return self._made(whole, token, rejected=rejected)


def _complete(
    gathered: Sequence[Message], token: BatchRange, session: Session, heard: float
) -> bool:
    """Whether the broker has sent again all that it will."""
    if session.resumed is None:
        return False
    if not session.resumed or any(not message.again for message in gathered):
        return True
    wanted = set(token.messages.tolist()) - {0}
    if wanted and wanted <= {message.identity for message in gathered}:
        return True
    return bool(session.listening) and time.monotonic() - max(heard, session.listening) > _AGAIN


def sort_out(
    gathered: Sequence[Message], token: BatchRange
) -> tuple[list[Message], list[Message], list[Message]]:
    """What came before a batch, what it was made of, and what came after it.

    A broker sends again in the order in which it sent first. Where the last message before the
    batch is among them, so are only messages of before it in front.
    """
    identities = [message.identity for message in gathered]
    start = identities.index(token.after) + 1 if token.after in identities else 0
    wanted = set(token.messages.tolist()) - {0}
    again = [message for message in gathered[start:] if message.identity in wanted]
    rest = [message for message in gathered[start:] if message.identity not in wanted]
    return list(gathered[:start]), again, rest
