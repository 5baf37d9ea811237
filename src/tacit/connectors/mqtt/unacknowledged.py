"""Messages that were received and not yet acknowledged, over all connections of a session.

A broker sends what is not acknowledged again on the next connection, marked as a repetition
and under the same number (1 to 65535). It is dropped here, and acknowledged once the first one
is safe. Acknowledgements are made in bulk and in the order of arrival.
"""

from __future__ import annotations

from collections import deque

import numpy as np

_NUMBERS = 1 << 16
_PUBACK = 0x4002
"""The head of an acknowledgement: its kind and the length of what follows, a number."""


class UnacknowledgedMessages:
    """Keeps account of one session; used by the thread of the connection alone."""

    def __init__(self) -> None:
        self.count = 0
        """How many messages arrived, repetitions not counted."""
        self._connection = 0
        self._settled = 0
        self._order: deque[tuple[int, int]] = deque()
        self._due: list[int] = []
        # What last came under each number: its checksum, its count, and on which connection.
        self._marks = [-1] * _NUMBERS
        self._counts = [0] * _NUMBERS
        self._on = [0] * _NUMBERS

    def connected(self, *, resumed: bool) -> None:
        """A new connection; without a resumed session the broker knows nothing of what is held."""
        self._connection += 1
        self._due.clear()
        if not resumed:
            self._order.clear()
            self._marks = [-1] * _NUMBERS

    def arrived(self, number: int, mark: int, *, again: bool) -> int:
        """The count of a message that has this number and checksum; 0 if it is a repetition.

        `again` is the broker's word that it may be one. Messages that are not to be
        acknowledged have the number 0.
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
        """All messages up to this one are safe."""
        self._settled = max(self._settled, count)
        order = self._order
        while order and order[0][0] <= count:
            number = order.popleft()[1]
            # One of an earlier connection is acknowledged when it comes again.
            if self._on[number] == self._connection:
                self._due.append(number)

    def acknowledgements(self) -> bytes:
        """What to send to the broker now."""
        if not self._due:
            return b""
        packets = np.empty((len(self._due), 2), ">u2")
        packets[:, 0] = _PUBACK
        packets[:, 1] = self._due
        self._due.clear()
        return packets.tobytes()
