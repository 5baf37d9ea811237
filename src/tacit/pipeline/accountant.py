"""The charges of windows: an engine's subjects and their accounts in the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tacit.ledger.accounts import Accounts
from tacit.ledger.charges import Account, Charge
from tacit.patterns.tree import elements
from tacit.pipeline.engine import Engine
from tacit.pipeline.pacing import CountReserve, Pacer
from tacit.pipeline.versions import SpecVersion
from tacit.pipeline.window_state import ClosedWindows
from tacit.privacy.mechanisms.counts import price_count
from tacit.privacy.prices import Claim
from tacit.spec.specification import Private, Specification
from tacit.windows.clock import NEVER

if TYPE_CHECKING:  # a run without a ledger needs no database
    from tacit.ledger.declarations import DeclaredAccount
    from tacit.ledger.lease import Lease


@dataclass(frozen=True, slots=True)
class WindowCharges:
    """The exhausted subjects of some windows, by slot, and the charges of the others."""

    exhausted: NDArray[np.bool_] | None
    """Who does not pay: a limit is reached, or pacing saves it for later. None without limits."""
    charges: Sequence[Charge]
    uncounted: NDArray[np.bool_] | None = None
    """Who does not pay for counts: a limit is reached. None without limits."""


NO_CHARGES: Final = WindowCharges(None, ())
"""The charges without a ledger."""


class Accountant:
    """Keeps the ledger accounts of an engine's subjects."""

    def __init__(self, engine: Engine, version: SpecVersion, lease: Lease) -> None:
        self._engine = engine
        self._version = version
        self._lease = lease
        self.limited = any(private.limit is not None for private in version.spec.private)
        self._pacer = Pacer(
            version.spec,
            [mechanism.pacing for mechanism in version.plan.mechanisms],
            engine.random_source,
        )
        self._reserve = CountReserve(version.spec, version.plan.count_memories)
        self._slots: NDArray[np.int64] = np.empty(0, np.int64)
        """The slots of registered subjects, in the order of the accounts."""
        self._ids: NDArray[np.int64] = np.empty(0, np.int64)
        self._registered: tuple[int, int] | None = None
        self._accounts: Accounts | None = None

    def forget(self) -> None:
        """Drop the cached accounts: another engine has charged."""
        self._registered = self._accounts = None

    def ledger_ids(self) -> NDArray[np.int64]:
        """Return the ledger's id of the subject in each slot of the windows billed last."""
        return self._ids

    def bill(self, closed: ClosedWindows, *, public_only: bool = False) -> WindowCharges:
        """Compute the charges of windows that closed together, and who is exhausted in all of them.

        Later windows see these charges as spent. A window costs what it reveals, which depends
        on public events. Windows that are answered from public events alone cost nothing.
        """
        starts = self._windows(closed)
        accounts = self._open_accounts(starts[0])
        charges: list[Charge] = []
        exhausted = uncounted = np.full(len(self._slots), public_only)
        if self.limited and len(starts) > 1:
            raise AssertionError("where there are limits, windows close one by one")
        if accounts.private and not public_only:
            claims = list_claims(accounts.private)
            prices = self._engine.windows.price(closed, claims)
            counts = self._engine.windows.price_counts(closed, claims)
            since = closed.since[self._slots]
            for place, start in enumerate(starts):
                own = prices[place][:, self._slots]
                counted = np.zeros_like(own) if counts is None else counts[place][:, self._slots]
                if self.limited:
                    # Counts come first: they cost little, and a count without some is no count.
                    uncounted = accounts.find_exhausted(start, counted)
                    counted = np.where(uncounted, 0, counted)
                    exhausted = self._find_exhausted(closed, accounts, start, own, counted)
                registered = since <= start // starts.step
                total = np.where(exhausted, 0, own) + counted
                silent = exhausted if counts is None else exhausted & ~counted.any(axis=0)
                charges += accounts.charge(start, silent, registered, total)
        if not self.limited:
            return WindowCharges(None, charges)
        return WindowCharges(
            self._spread(exhausted, closed), charges, self._spread(uncounted, closed)
        )

    def _find_exhausted(
        self,
        closed: ClosedWindows,
        accounts: Accounts,
        start: int,
        prices: NDArray[np.int64],
        counted: NDArray[np.int64],
    ) -> NDArray[np.bool_]:
        """Return who does not pay for the answers about it, in the order of the accounts.

        `counted` is what counts have cost in this window. What they will need until horizons end
        is not for answers.
        """
        kept = counted + self._reserve.find_reserved(accounts, start)
        exhausted = accounts.find_exhausted(start, np.where(prices > 0, prices + kept, 0))
        if self._pacer.active:
            gains = self._engine.windows.gains(closed)[self._slots]
            policies = self._engine.windows.policy_numbers(closed)[self._slots]
            exhausted |= self._pacer.find_declined(accounts, start, prices, gains, policies, kept)
        return exhausted

    def _spread(self, chosen: NDArray[np.bool_], closed: ClosedWindows) -> NDArray[np.bool_]:
        """Return subjects by slot."""
        spread = np.zeros(len(closed.since), np.bool_)
        spread[self._slots] = chosen
        return spread

    def _windows(self, closed: ClosedWindows) -> range:
        """Return the start times of the windows that end with these panes."""
        windows, panes = self._engine.compiled.spec.windows, closed.panes
        first = (panes.first - windows.panes + 1) * windows.pane
        return range(first, first + len(panes.words) * windows.pane, windows.pane)

    def _open_accounts(self, start: int) -> Accounts:
        """Return the accounts of all registered subjects; `start` is the next window."""
        window_state = self._engine.window_state
        known = window_state.since < NEVER
        registered = (len(known), int(known.sum()))
        if self._accounts is None or registered != self._registered:
            self._registered = registered
            self._slots = np.flatnonzero(known)
            names = window_state.subjects.names.take(self._slots)
            enrolled = self._lease.enrol(names)
            self._ids = np.full(len(known), -1, np.int64)
            self._ids[self._slots] = enrolled
            accounts = declare_accounts(self._version, names, enrolled, self._lease, start)
            zones = self._lease.register_zones(enrolled, self._version.find_zones(names), start)
            self._accounts = self._lease.open_accounts(enrolled, accounts, zones)
        return self._accounts


def declare_accounts(
    version: SpecVersion, names: pa.Array, ids: NDArray[np.int64], lease: Lease, start: int
) -> list[Account]:
    """Declare the accounts of these subjects in the ledger; return all that releases may charge."""
    own = list_accounts(version, names)
    declared = lease.declare_accounts(ids, own, version.definitions, start)
    return share_accounts(own, declared, version.definitions, ids, lease.run)


def list_accounts(version: SpecVersion, names: pa.Array) -> list[Account]:
    """List the accounts of these subjects: what a window costs them at most in this version."""
    return [
        Account.of(
            private,
            _find_protected(version.spec, private, names),
            version.plan.spent_per_window(private) / Fraction(private.epsilon),
            frozenset(elements(pattern)),
            sum(map(price_count, version.plan.spent_on_counts(private))),
        )
        for private, pattern in zip(
            version.spec.private, version.spec.private_patterns, strict=True
        )
    ]


def list_claims(accounts: Sequence[Account]) -> tuple[Claim, ...]:
    """Return what each account must be paid for, beside the counts, which have their own price."""
    return tuple(Claim(account.elements, account.amount - account.counts) for account in accounts)


def share_accounts(
    own: Sequence[Account],
    declared: Sequence[DeclaredAccount],
    definitions: Mapping[str, str],
    ids: NDArray[np.int64],
    run: str,
) -> list[Account]:
    """Add the accounts that others have declared for the same elements.

    A release that depends on an element is charged to all of them. The limit of another run is that
    run's to enforce. An account that this run has withdrawn keeps its limit until its horizon ends.
    A pattern that is declared several times, for different subjects, has an account for each.
    """
    private = frozenset[str]().union(*(account.elements for account in own))
    accounts: dict[str, list[Account]] = {}
    for account in own:
        accounts.setdefault(account.name, []).append(account)
    for other in declared:
        shared = frozenset(name for name in private if definitions[name] in other.elements)
        mine = accounts.get(other.private, [])
        if not shared or any(shared <= one.elements and one.until is None for one in mine):
            continue
        mask = (ids < len(other.ids)) & np.append(other.ids, False)[np.minimum(ids, len(other.ids))]
        withdrawn = other.run == run
        found = Account(
            other.private,
            sum(account.amount for account in own if account.elements & shared),
            other.limit if withdrawn else None,
            other.horizon,
            mask,
            shared,
            other.until,
            sum(account.counts for account in own if account.elements & shared),
        )
        accounts[other.private] = _add_account(mine, found)
    return [account for same in accounts.values() for account in same]


def _add_account(mine: Sequence[Account], found: Account) -> list[Account]:
    """Add what another declaration of the same name protects."""
    if len(mine) < 2:
        return [_merge_accounts(one, found) for one in mine] or [found]
    split = [
        _merge_accounts(one, replace(found, mask=found.mask & one.mask))
        if (found.mask & one.mask).any()
        else one
        for one in mine
    ]
    rest = found.mask & ~np.logical_or.reduce([one.mask for one in mine])
    return [*split, replace(found, mask=rest)] if rest.any() else split


def _merge_accounts(one: Account, other: Account) -> Account:
    """Return one account for what two declarations of the same name protect."""
    ends = [account.until for account in (one, other) if account.until is not None]
    limited = one if one.limit is not None or other.limit is None else other
    return replace(
        limited,
        amount=one.amount + other.amount,
        mask=one.mask | other.mask,
        elements=one.elements | other.elements,
        until=max(ends) if len(ends) == 2 else None,
        counts=one.counts + other.counts,
    )


def _find_protected(spec: Specification, private: Private, names: pa.Array) -> NDArray[np.bool_]:
    """Find the subjects to which a declaration applies."""
    if private.subjects is None:
        others = [one.subjects or () for one in spec.private if one.pattern == private.pattern]
        replaced = pa.array([name for other in others for name in other], pa.large_string())
        return ~np.asarray(pc.is_in(names, value_set=replaced))
    named = pa.array(private.subjects, pa.large_string())
    return np.asarray(pc.is_in(names, value_set=named))
