"""What windows cost whom: an engine's subjects and the accounts that they have in a ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tacit.ledger.accounts import Accounts
from tacit.ledger.charges import Account, Charge
from tacit.pipeline.engine import Engine
from tacit.pipeline.versions import SpecVersion
from tacit.pipeline.window_state import ClosedWindows
from tacit.spec.specification import Private
from tacit.windows.clock import NEVER

if TYPE_CHECKING:
    from tacit.ledger.lease import Lease


@dataclass(frozen=True, slots=True)
class WindowCharges:
    """Who is exhausted in some windows, by slot, and what they cost the others."""

    exhausted: NDArray[np.bool_] | None
    """None where nobody has a limit."""
    charges: Sequence[Charge]


NO_BILL: Final = WindowCharges(None, ())
"""Where there is no ledger."""


class Accountant:
    """Keeps the accounts of an engine's subjects, as they stand in the ledger."""

    def __init__(self, engine: Engine, version: SpecVersion, lease: Lease) -> None:
        self._engine = engine
        self._version = version
        self._lease = lease
        self.limited = any(private.limit is not None for private in version.spec.private)
        # Where panes are drawn, each is paid for with the window that ends with it, also by a
        # newcomer, whose first window comes when all of its panes are drawn.
        self._ahead = version.spec.windows.panes - 1 if version.plan.draws_panes else 0
        self._slots: NDArray[np.int64] = np.empty(0, np.int64)
        """The slots of subjects that are registered, in the order of the accounts."""
        self._ids: NDArray[np.int64] = np.empty(0, np.int64)
        self._registered: tuple[int, int] | None = None
        self._accounts: Accounts | None = None

    def forget(self) -> None:
        """Others have charged: read the accounts anew."""
        self._registered = self._accounts = None

    def ids(self) -> NDArray[np.int64]:
        """The ledger's number of the subject in each slot; -1 of one that is not registered."""
        self._open()
        return self._ids

    def bill(self, closed: ClosedWindows, *, public_only: bool = False) -> WindowCharges:
        """Charge for windows that closed together: the same subjects are exhausted in all.

        What they cost is spent, as far as the windows after them are concerned. They cost nothing
        where they are answered from public events alone.
        """
        accounts = self._open()
        starts = self._windows(closed)
        charges: list[Charge] = []
        exhausted = np.full(len(self._slots), public_only)
        if self.limited and not public_only:
            if len(starts) > 1:
                raise AssertionError("where there are limits, windows close one by one")
            exhausted = accounts.exhausted(starts[0])
        since = closed.since[self._slots]
        for start in starts:
            last = start // starts.step + self._ahead
            charges += accounts.charges(start, exhausted, since <= last)
        if not self.limited:
            return WindowCharges(None, charges)
        spread = np.zeros(len(closed.since), np.bool_)
        spread[self._slots] = exhausted
        return WindowCharges(spread, charges)

    def _windows(self, closed: ClosedWindows) -> range:
        """When the windows start that these panes end."""
        windows, panes = self._engine.flow.spec.windows, closed.closed
        first = (panes.first - windows.panes + 1) * windows.pane
        return range(first, first + len(panes.words) * windows.pane, windows.pane)

    def _open(self) -> Accounts:
        """The accounts of all subjects that are registered by now."""
        shard = self._engine.shard
        known = shard.since < NEVER
        registered = (len(known), int(known.sum()))
        if self._accounts is None or registered != self._registered:
            self._registered = registered
            self._slots = np.flatnonzero(known)
            enrolled = self._lease.enrol(shard.subjects.names.take(self._slots))
            self._ids = np.full(len(known), -1, np.int64)
            self._ids[self._slots] = enrolled
            accounts = accounts_of(self._version, shard.subjects.names.take(self._slots))
            self._accounts = self._lease.accounts(enrolled, accounts)
        return self._accounts


def accounts_of(version: SpecVersion, names: pa.Array) -> list[Account]:
    """What a window costs subjects of these names, by the version."""
    return [
        Account.of(
            private,
            _having(private, names),
            version.plan.spent_per_window(private) / Fraction(private.epsilon),
        )
        for private in version.spec.private
    ]


def _having(private: Private, names: pa.Array) -> NDArray[np.bool_]:
    """Which subjects keep a pattern private."""
    if private.subjects is None:
        return np.ones(len(names), np.bool_)
    named = pa.array(private.subjects, pa.large_string())
    return np.asarray(pc.is_in(names, value_set=named))
