"""How many bytes of bodies may be in memory before the inbox counts them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

MOST_BYTES: Final = 256 << 20
MOST_OF_A_TOKEN: Final = 64 << 20


class NoRoomError(Exception):
    """Too many bodies arrive at the same time."""


@dataclass
class BodyRoom:
    """Counts bodies that arrive, in all and by token, so that no token takes the whole room.

    Only one thread may use it.
    """

    taken: Counter[str] = field(default_factory=Counter)
    total: int = 0

    @contextmanager
    def open(self, token: str) -> Iterator[BodySpace]:
        """Give space for a body, which is free again at the end."""
        space = BodySpace(self, token)
        try:
            yield space
        finally:
            space.free()


@dataclass
class BodySpace:
    """The space of one body."""

    room: BodyRoom
    token: str
    size: int = 0

    def extend(self, size: int) -> None:
        """Take space until there are so many bytes; raise an error if there is too little."""
        more, room = max(0, size - self.size), self.room
        own = room.taken[self.token] + more
        if room.total + more > MOST_BYTES or own > MOST_OF_A_TOKEN:
            raise NoRoomError
        room.taken[self.token] = own
        room.total += more
        self.size += more

    def free(self) -> None:
        """Give the space back."""
        room = self.room
        room.total -= self.size
        room.taken[self.token] -= self.size
        if not room.taken[self.token]:
            del room.taken[self.token]
        self.size = 0
