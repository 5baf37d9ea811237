"""Whatever happens to connections, a message counts once and is acknowledged when it is safe."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tacit.connectors.mqtt.unacknowledged import UnacknowledgedMessages


@dataclass
class Sent:
    """A message under way."""

    number: int
    content: int


class Broker:
    """What the standard asks of a broker, with few numbers so that they are soon used again."""

    def __init__(self, held: UnacknowledgedMessages) -> None:
        self.held = held
        self.flight: list[Sent] = []
        self.unsent: list[Sent] = []
        self.next = 0
        self.published = 0
        self.taken: dict[int, int] = {}
        """By the count that a message was given: its content."""
        self.acknowledged: set[int] = set()
        self.safe = 0

    def publish(self, *, arrives: bool) -> None:
        """Send a message, which may be lost with the connection that it is sent on."""
        used = {sent.number for sent in self.flight}
        free = [n % 7 + 1 for n in range(self.next, self.next + 7) if n % 7 + 1 not in used]
        if not free:
            return
        self.next = free[0]
        self.published += 1
        sent = Sent(free[0], self.published)
        self.flight.append(sent)
        if arrives and not self.unsent:
            self.send(sent, again=False)
        else:
            self.unsent.append(sent)  # the connection breaks before it is received

    def send(self, sent: Sent, *, again: bool) -> None:
        """A message reaches its receiver, and must be new to it if it is taken."""
        count = self.held.add(sent.number, sent.content, again=again)
        if count:
            assert sent.content not in self.taken.values(), "a repetition was taken"
            self.taken[count] = sent.content

    def settle(self, count: int) -> None:
        """The receiver says that messages are safe."""
        self.safe = max(self.safe, count)
        self.held.settle(self.safe)

    def receive(self, *, lost: bool) -> None:
        """The receiver acknowledges what it may; perhaps in vain."""
        data = self.held.take_acknowledgements()
        for kind, length, number in struct.iter_unpack(">BBH", data):
            assert (kind, length) == (0x40, 2)
            (sent,) = [one for one in self.flight if one.number == number]
            places = {content: count for count, content in self.taken.items()}
            assert places[sent.content] <= self.safe, "acknowledged before it was safe"
            if not lost:
                self.flight.remove(sent)
                self.acknowledged.add(sent.content)

    def reconnect(self) -> None:
        """Send again what was not acknowledged, in order."""
        self.unsent.clear()
        self.held.on_connect(resumed=True)
        for sent in self.flight:
            self.send(sent, again=True)


STEPS = st.lists(
    st.sampled_from(["publish", "publish", "lose", "settle", "receive", "drop", "reconnect"]),
    max_size=60,
)


@given(STEPS, st.data())
def test_messages_count_once_and_are_acknowledged_once_safe(
    steps: list[str], data: st.DataObject
) -> None:
    held = UnacknowledgedMessages()
    held.on_connect(resumed=False)
    broker = Broker(held)
    for step in steps:
        if step in ("publish", "lose"):
            broker.publish(arrives=step == "publish")
        elif step == "settle":
            broker.settle(data.draw(st.integers(0, held.count)))
        elif step in ("receive", "drop"):
            broker.receive(lost=step == "drop")
            if step == "drop":
                broker.reconnect()
        else:
            broker.reconnect()
    broker.reconnect()
    broker.settle(held.count)
    broker.receive(lost=False)
    assert not broker.flight
    assert sorted(broker.taken.values()) == list(range(1, broker.published + 1))
    assert held.count == broker.published


def test_a_new_message_under_an_old_number_is_taken_though_it_is_the_same() -> None:
    held = UnacknowledgedMessages()
    held.on_connect(resumed=False)
    assert held.add(1, 7, again=False) == 1
    held.settle(1)
    assert held.take_acknowledgements() == b"\x40\x02\0\1"
    assert held.add(1, 7, again=False) == 2
    held.on_connect(resumed=True)
    assert held.add(1, 7, again=False) == 3


def test_a_broker_that_lost_the_session_is_sent_nothing_of_it() -> None:
    held = UnacknowledgedMessages()
    held.on_connect(resumed=False)
    held.add(1, 7, again=False)
    held.on_connect(resumed=False)
    held.settle(1)
    assert held.take_acknowledgements() == b""
    assert held.add(1, 7, again=True) == 2


def test_messages_that_need_no_acknowledgement_only_count() -> None:
    held = UnacknowledgedMessages()
    held.on_connect(resumed=False)
    assert [held.add(0, 5, again=False) for _ in range(3)] == [1, 2, 3]
    held.settle(3)
    assert held.take_acknowledgements() == b""
