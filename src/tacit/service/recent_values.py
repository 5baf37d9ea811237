"""What was used last, in a bounded number of bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class RecentValues(Generic[T]):
    """Values by number; those that were not used for longest are dropped first.

    The sum of their sizes is kept: to add all of them up each time would take longer than what is
    done with one. Only one thread may use it at a time.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.size = 0
        """About how many bytes all of them take."""
        self._values: OrderedDict[int, tuple[T, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[T]:
        return (value for value, _ in self._values.values())

    def find(self, number: int) -> T | None:
        """Return a value, which counts as used now; None if it is not there."""
        found = self._values.get(number)
        if found is None:
            return None
        self._values.move_to_end(number)
        return found[0]

    def keep(self, number: int, value: T, size: int) -> list[T]:
        """Keep a value, or note its new size; return those that are dropped for it.

        The value itself is kept, whatever its size.
        """
        _, before = self._values.pop(number, (value, 0))
        self._values[number] = value, size
        self.size += size - before
        dropped = []
        while self.size > self.most and len(self._values) > 1:
            _, (oldest, its) = self._values.popitem(last=False)
            self.size -= its
            dropped.append(oldest)
        return dropped
