"""State in Flink: base64 text, never a pickle.

PyFlink's type for arbitrary objects is pickle, and decoding one can run any code. It has no type
for bytes that are computed lazily. So a state is text, which PyFlink encodes as UTF-8 and decodes
again. `SavedState` checks its content.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from tacit.errors import StateError


class TextState(Protocol):
    """A text state of Flink, for the current key."""

    def value(self) -> str | None:
        """Return the text, or None."""

    def update(self, value: str) -> None:
        """Replace the text."""


class LazyText(str):
    """A text that is computed when Flink encodes it, and not at every change.

    Flink encodes it before a checkpoint and sometimes in between: for a shard about once per four
    changes.
    """

    _make: Callable[[], bytes]

    def __new__(cls, make: Callable[[], bytes]) -> LazyText:
        """Create a text that calls `make` later."""
        text = super().__new__(cls)
        text._make = make
        return text

    def encode(self, encoding: str = "ascii", errors: str = "strict") -> bytes:  # noqa: ARG002
        """Return the base64 of the current bytes."""
        return base64.b64encode(self._make())


class BytesState:
    """Bytes that are stored in Flink."""

    def __init__(self, text: TextState) -> None:
        self._text = text

    def load(self) -> bytes | None:
        """Load what was saved; raise StateError for another format."""
        try:
            text = self._text.value()
            return None if text is None else base64.b64decode(text.encode("ascii"), validate=True)
        except (UnicodeError, binascii.Error) as error:
            raise StateError(
                "expected the state of a reader or shard of this version, but Flink holds bytes in"
                " another format: start a new job, or start from a savepoint of this version"
            ) from error

    def save(self, make: Callable[[], bytes]) -> None:
        """Save the result of `make`, which is called when Flink needs it."""
        self._text.update(LazyText(make))


class KeyedStates:
    """Bytes that are stored in Flink under several keys, which must belong to this task.

    A batch is for all shards of a task, but Flink shows a function only the state of the key that
    the batch was sent to. PyFlink has no public way to choose another key.
    """

    def __init__(self, context: Any, descriptor: Any, keys: Sequence[int]) -> None:
        self._backend = context._keyed_state_backend
        self._bytes = BytesState(context.get_state(descriptor))
        self._keys = keys
        self._awaited = False
        """Whether Flink has not fetched the states since they were saved last."""

    def load(self) -> list[bytes | None]:
        """Load what was saved under each key."""
        return [self._bytes.load() for _ in self._select()]

    def save(self, make: Callable[[int], bytes]) -> None:
        """Save the results of `make` for each key's place; Flink calls it when it needs them."""
        if self._awaited:
            return  # it will call `make` later, and get the new states
        for place in self._select():
            self._bytes.save(partial(self._fetch, make, place))
        self._awaited = True

    def _fetch(self, make: Callable[[int], bytes], place: int) -> bytes:
        self._awaited = False
        return make(place)

    def _select(self) -> Iterator[int]:
        """Select one key after the other, and then the former one; yield their places."""
        from pyflink.common import Row

        current = self._backend.get_current_key()
        try:
            for place, key in enumerate(self._keys):
                self._backend.set_current_key(Row(key))
                yield place
        finally:
            self._backend.set_current_key(current)
