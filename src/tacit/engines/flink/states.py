"""State as Flink keeps it: base64 text, and never a pickle.

PyFlink has one type for any object, and that is a pickle: reading one can run any code. It has no
type for bytes that are made late. So a state is text here, which PyFlink encodes as UTF-8 and
decodes again, and nothing else. What it holds is checked by `SavedState`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Protocol

from tacit.errors import StateError


class TextState(Protocol):
    """A state of Flink for one text, of the key that is current."""

    def value(self) -> str | None:
        """The text; None where there is none."""

    def update(self, value: str) -> None:
        """Another one instead."""


class LazyText(str):
    """A text that is made when Flink asks for its bytes, and not at every change.

    Flink asks before a checkpoint and some times in between: for a shard about a quarter as often
    as there are changes.
    """

    _make: Callable[[], bytes]

    def __new__(cls, make: Callable[[], bytes]) -> LazyText:
        """The text for what `make` gives when it is called."""
        text = super().__new__(cls)
        text._make = make
        return text

    def encode(self, encoding: str = "ascii", errors: str = "strict") -> bytes:  # noqa: ARG002
        """Base64 of what it is now."""
        return base64.b64encode(self._make())


class BytesState:
    """Bytes that are kept in Flink."""

    def __init__(self, text: TextState) -> None:
        self._text = text

    def load(self) -> bytes | None:
        """What was saved; raises StateError for what cannot have been."""
        try:
            text = self._text.value()
            return None if text is None else base64.b64decode(text.encode("ascii"), validate=True)
        except (UnicodeError, binascii.Error) as error:
            raise StateError(
                "expected the state of a reader or shard of this version, but Flink holds bytes in"
                " another format: start the job anew, or from a savepoint of this version"
            ) from error

    def save(self, make: Callable[[], bytes]) -> None:
        """Keep what `make` gives when Flink asks for it."""
        self._text.update(LazyText(make))
