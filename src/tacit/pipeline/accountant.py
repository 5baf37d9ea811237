"""The charges of windows: an engine's subjects and their accounts in the ledger."""

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
    """The exhausted subjects of some windows, by slot, and the charges of the others."""

    exhausted: NDArray[np.bool_] | None
    """None if no subject has a limit."""
    charges: Sequence[Charge]


NO_BILL: Final = WindowCharges(None, ())
"""The charges without a ledger."""


class Accountant:
    """Keeps the ledger accounts of an engine's subjects."""

    def __init__(self, engine: Engine, version: SpecVersion, lease: Lease) -> None:
        self._engine = engine
        self._version = version
        self._lease = lease
        self.limited = any(private.limit is not None for private in version.spec.private)
        # If noise is drawn per pane, each pane is charged with the window that ends with it. This
        # includes a new subject, whose first window comes when all of its panes are drawn.
        self._ahead = version.spec.windows.panes - 1 if version.plan.draws_panes else 0
        self._slots: NDArray[np.int64] = np.empty(0, np.int64)
        """The slots of registered subjects, in the order of the accounts."""
        self._ids: NDArray[np.int64] = np.empty(0, np.int64)
        self._registered: tuple[int, int] | None = None
        self._accounts: Accounts | None = None

    def forget(self) -> None:
        """Drop the cached accounts: another engine has charged."""
        self._registered = self._accounts = None

    def ledger_ids(self) -> NDArray[np.int64]:
        """Return the ledger's id of the subject in each slot; -1 if it is not registered."""
        self._open_accounts()
        return self._ids

    def bill(self, closed: ClosedWindows, *, public_only: bool = False) -> WindowCharges:
        """Compute the charges of windows that closed together, and who is exhausted in all of them.

        Later windows see these charges as spent. Windows that are answered from public events
        alone cost nothing.
        """
        accounts = self._open_accounts()
        starts = self._windows(closed)
        charges: list[Charge] = []
        exhausted = np.full(len(self._slots), public_only)
        if self.limited and not public_only:
            if len(starts) > 1:
                raise AssertionError("where there are limits, windows close one by one")
            exhausted = accounts.find_exhausted(starts[0])
        since = closed.since[self._slots]
        for start in starts:
            last = start // starts.step + self._ahead
            charges += accounts.charge(start, exhausted, since <= last)
        if not self.limited:
            return WindowCharges(None, charges)
        spread = np.zeros(len(closed.since), np.bool_)
        spread[self._slots] = exhausted
        return WindowCharges(spread, charges)

    def _windows(self, closed: ClosedWindows) -> range:
        """Return the start times of the windows that end with these panes."""
        windows, panes = self._engine.compiled.spec.windows, closed.panes
        first = (panes.first - windows.panes + 1) * windows.pane
        return range(first, first + len(panes.words) * windows.pane, windows.pane)

    def _open_accounts(self) -> Accounts:
        """Return the accounts of all registered subjects."""
        window_state = self._engine.window_state
        known = window_state.since < NEVER
        registered = (len(known), int(known.sum()))
        if self._accounts is None or registered != self._registered:
            self._registered = registered
            self._slots = np.flatnonzero(known)
            enrolled = self._lease.enrol(window_state.subjects.names.take(self._slots))
            self._ids = np.full(len(known), -1, np.int64)
            self._ids[self._slots] = enrolled
            accounts = list_accounts(self._version, window_state.subjects.names.take(self._slots))
            self._accounts = self._lease.open_accounts(enrolled, accounts)
        return self._accounts


def list_accounts(version: SpecVersion, names: pa.Array) -> list[Account]:
    """List the accounts of these subjects: what a window costs them in this version."""
    return [
        Account.of(
            private,
            _find_protected(private, names),
            version.plan.spent_per_window(private) / Fraction(private.epsilon),
        )
        for private in version.spec.private
    ]


def _find_protected(private: Private, names: pa.Array) -> NDArray[np.bool_]:
    """Find the subjects for which a pattern is private."""
    if private.subjects is None:
        return np.ones(len(names), np.bool_)
    named = pa.array(private.subjects, pa.large_string())
    return np.asarray(pc.is_in(names, value_set=named))
