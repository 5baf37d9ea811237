"""Received messages that are not acknowledged yet, over all connections of a session.

On the next connection a broker repeats unacknowledged messages, marked as duplicates and with the
same packet id (1 to 65535). A duplicate is dropped, and acknowledged once the first copy is safe.
Acknowledgements are sent in bulk and in the order of arrival.
"""

from __future__ import annotations

from collections import deque

import numpy as np

_NUMBERS = 1 << 16
_PUBACK = 0x4002
"""The header of an acknowledgement: packet type and remaining length."""


class UnacknowledgedMessages:
    """Tracks one session; only the thread of the connection uses it."""

    def __init__(self) -> None:
        self.count = 0
        """The number of received messages without duplicates."""
        self._connection = 0
        self._settled = 0
        self._order: deque[tuple[int, int]] = deque()
        self._due: list[int] = []
        # The last message of each packet id: its checksum, its count, and its connection.
        self._marks = [-1] * _NUMBERS
        self._counts = [0] * _NUMBERS
        self._on = [0] * _NUMBERS

    def on_connect(self, *, resumed: bool) -> None:
        """Start a connection; without a resumed session all earlier messages are forgotten."""
        self._connection += 1
        self._due.clear()
        if not resumed:
            self._order.clear()
            self._marks = [-1] * _NUMBERS

    def add(self, number: int, mark: int, *, again: bool) -> int:
        """Add a message with this packet id and checksum; return its count, or 0 for a duplicate.

        `again` is the broker's mark that it may be one. Messages without acknowledgement have the
        number 0.
        """
        if number:
            self._on[number] = self._connection
            if again and self._marks[number] == mark:
                if self._counts[number] <= self._settled:
                    self._due.append(number)
                return 0
            self._marks[number] = mark
            self._counts[number] = self.count + 1
            self._order.append((self.count + 1, number))
        self.count += 1
        return self.count

    def settle(self, count: int) -> None:
        """Mark all messages up to this one as safe."""
        self._settled = max(self._settled, count)
        order = self._order
        while order and order[0][0] <= count:
            number = order.popleft()[1]
            # A message of an earlier connection is acknowledged when it is repeated.
            if self._on[number] == self._connection:
                self._due.append(number)

    def take_acknowledgements(self) -> bytes:
        """Return the acknowledgements to send now."""
        if not self._due:
            return b""
        packets = np.empty((len(self._due), 2), ">u2")
        packets[:, 0] = _PUBACK
        packets[:, 1] = self._due
        self._due.clear()
        return packets.tobytes()
