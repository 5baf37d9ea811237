"""Where answers go: what a sink is, and what it gets.

With a ledger, a release that was charged is delivered from there until it has arrived. After a
crash the last one may come again, always with the same answers under the same ids. To add a sink,
subclass `Sink`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class ReleaseBatch:
    """Answers of a release that are delivered at once."""

    release: int
    """Its number in the ledger."""
    table: pa.Table
    """The answers, a row for each; from a ledger, the column `id` tells them apart for ever."""
    consumers: Mapping[str, str] = field(default_factory=dict)
    """Who asked each query."""


class Sink(ABC):
    """Delivers answers in the order of their releases.

    A delivery that fails for now raises `UnreachableError`, and is tried again; one that cannot
    succeed raises another `SinkError`. Used as a context manager, a sink aborts on an exception.
    """

    name: str
    """The same for the same place in every run: deliveries are remembered under it."""
    once: bool = False
    """Whether a release is seen there once, whatever happens on the way."""

    def recover(self, position: Any) -> None:  # noqa: B027 - most have nothing to undo
        """Before the first delivery from a ledger: undo what was delivered after this position.

        It is what the last remembered delivery gave, or None if none was remembered.
        """

    def is_missing(self, release: int, position: Any) -> bool:  # noqa: ARG002
        """Whether answers that were delivered up to this release are no longer there."""
        return False

    @abstractmethod
    def deliver(self, batch: ReleaseBatch) -> Any:
        """Deliver answers; with a ledger, they have arrived when this returns.

        Gives a position to be remembered, as plain data fit for JSON, or None.
        """

    @abstractmethod
    def close(self) -> None:
        """Nothing comes any more: make everything that was delivered final."""

    def abort(self) -> None:
        """The run has failed: leave nothing behind that looks whole."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()
