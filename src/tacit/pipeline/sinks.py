"""The interface of sinks, and their batches.

With a ledger, a release is delivered from there until the sink has it. After a crash the last
release may be delivered again, with the same answers and ids. To add a sink, subclass `Sink`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import pyarrow as pa

from tacit.errors import SinkError


@dataclass(frozen=True, slots=True)
class ReleaseBatch:
    """Answers of one release that are delivered together."""

    release: int
    """Its number in the ledger."""
    table: pa.Table
    """The answers, one per row; from a ledger, the column `id` identifies each of them."""
    consumers: Mapping[str, str] = field(default_factory=dict)
    """The consumer of each query."""


class Sink(ABC):
    """Delivers answers in the order of their releases.

    A delivery that fails temporarily raises `UnreachableError` and is retried. One that cannot
    succeed raises another `SinkError`. As a context manager, a sink aborts on an exception.
    """

    name: str
    """The same for the same target in every run: the ledger stores deliveries under it."""
    once: bool = False
    """Whether consumers see each release exactly once, even after a crash."""
    content: Literal["answers", "counts"] = "answers"
    """What it receives: answers about single subjects, or counts."""

    def recover(self, position: Any) -> None:  # noqa: B027 - most have nothing to undo
        """Undo what was delivered after this position; called before the first delivery.

        The position is the result of the last recorded delivery, or None.
        """

    def is_missing(self, release: int, position: Any) -> bool:  # noqa: ARG002
        """Return whether answers that were delivered up to this release are missing."""
        return False

    @abstractmethod
    def deliver(self, batch: ReleaseBatch) -> Any:
        """Deliver answers; with a ledger, the sink has them when this returns.

        Returns a position to record, as plain data fit for JSON, or None.
        """

    @abstractmethod
    def close(self) -> None:
        """End the deliveries: make everything that was delivered final."""

    def abort(self) -> None:
        """Close after a failure: leave nothing behind that looks complete."""
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


def check_regular(path: Path) -> None:
    """Refuse a name that is taken by something that is not a file."""
    if path.exists() and not path.is_file():
        raise SinkError(f"{path} is there and is not a regular file; choose another name")
