"""What windows cost whom: an engine's subjects and the accounts that they have in a ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tacit.engines.terms import Terms
from tacit.ledger.accounts import Accounts
from tacit.ledger.charges import Account, Charge
from tacit.ledger.lease import Lease
from tacit.pipeline.engine import Engine
from tacit.pipeline.shard import Handed
from tacit.spec.specification import Private
from tacit.windows.clock import NEVER


@dataclass(frozen=True, slots=True)
class Bill:
    """Who is exhausted in some windows, by slot, and what they cost the others."""

    exhausted: NDArray[np.bool_] | None
    """None where nobody has a limit."""
    charges: Sequence[Charge]


class Accountant:
    """Keeps the accounts of an engine's subjects, as they stand in the ledger."""

    def __init__(self, engine: Engine, terms: Terms, lease: Lease) -> None:
        self._engine = engine
        self._terms = terms
        self._lease = lease
        self.limited = any(private.limit is not None for private in terms.spec.private)
        # Where panes are drawn, each is paid for with the window that ends with it, also by a
        # newcomer, whose first window comes when all of its panes are drawn.
        self._ahead = terms.spec.windows.panes - 1 if terms.plan.draws_panes else 0
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

    def bill(self, handed: Handed, *, blind: bool = False) -> Bill:
        """Reckon windows in that were handed on together: the same subjects are exhausted in all.

        What they cost is spent, as far as the windows after them are concerned. Nothing, where
        they are answered `blind`.
        """
        accounts = self._open()
        starts = self._windows(handed)
        charges: list[Charge] = []
        exhausted = np.full(len(self._slots), blind)
        if self.limited and not blind:
            if len(starts) > 1:
                raise AssertionError("where there are limits, windows are handed on one by one")
            exhausted = accounts.exhausted(starts[0])
        since = handed.since[self._slots]
        for start in starts:
            last = start // starts.step + self._ahead
            charges += accounts.charges(start, exhausted, since <= last)
        if not self.limited:
            return Bill(None, charges)
        spread = np.zeros(len(handed.since), np.bool_)
        spread[self._slots] = exhausted
        return Bill(spread, charges)

    def _windows(self, handed: Handed) -> range:
        """When the windows start that end with what was handed on."""
        windows, closed = self._engine.flow.spec.windows, handed.closed
        first = (closed.first - windows.panes + 1) * windows.pane
        return range(first, first + len(closed.words) * windows.pane, windows.pane)

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
            accounts = accounts_of(self._terms, shard.subjects.names.take(self._slots))
            self._accounts = self._lease.accounts(enrolled, accounts)
        return self._accounts


def accounts_of(terms: Terms, names: pa.Array) -> list[Account]:
    """What a window costs subjects of these names, by the terms."""
    return [
        Account.of(
            private,
            _having(private, names),
            terms.plan.spent_per_window(private) / Fraction(private.epsilon),
        )
        for private in terms.spec.private
    ]


def _having(private: Private, names: pa.Array) -> NDArray[np.bool_]:
    """Which subjects keep a pattern private."""
    if private.subjects is None:
        return np.ones(len(names), np.bool_)
    named = pa.array(private.subjects, pa.large_string())
    return np.asarray(pc.is_in(names, value_set=named))
