"""Where released answers are delivered: release by release, each as often as it takes.

A release that was charged is handed over from the ledger until it has arrived. After a crash
the last one may come again, always with the same answers under the same ids. To add an outlet,
subclass `Outlet`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Parcel:
    """The answers of a release: what is delivered at once."""

    release: int
    """Its number in the ledger."""
    table: pa.Table
    """The answers, a row for each; the column `id` tells them apart for ever."""
    consumers: Mapping[str, str]
    """Who asked each query."""


class Outlet(ABC):
    """Delivers parcels in the order of their releases.

    A delivery that fails for now raises `UnreachableError`, and is tried again; one that cannot
    succeed raises another `SinkError`.
    """

    name: str
    """The same for the same place in every run: deliveries are remembered under it."""
    once: bool = False
    """Whether a release is seen there once, whatever happens on the way."""

    def recover(self, position: Any) -> None:  # noqa: B027 - most have nothing to undo
        """Before the first parcel: undo what was delivered after this position.

        It is what the last remembered delivery gave, or None if none was remembered.
        """

    def is_missing(self, release: int, position: Any) -> bool:  # noqa: ARG002
        """Whether answers that were delivered up to this release are no longer there."""
        return False

    @abstractmethod
    def deliver(self, parcel: Parcel) -> Any:
        """Deliver a parcel; when this returns, it has arrived.

        Gives a position to be remembered, as plain data fit for JSON, or None.
        """

    @abstractmethod
    def close(self) -> None:
        """No parcel comes any more."""

    def __enter__(self) -> Outlet:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
