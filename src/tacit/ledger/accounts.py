"""Accounts in memory: which subjects can pay for a window, and their charges."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tacit.ledger.charges import Account, Charge
from tacit.ledger.zones import FURTHEST, Zones

Amounts = NDArray[np.int64]
Key = tuple[str, int, int]
"""A private pattern, and the length and start of a horizon, in local time."""


def _nothing(_: Key) -> Amounts:
    return np.zeros(0, np.int64)


class Accounts:
    """The accounts of an engine's subjects, one for each private pattern.

    Charges count immediately, so the windows of one release see each other's charges. If a release
    fails, call `forget`. Prices are `[account][subject]`; by default a window costs every subject
    the whole amount.
    """

    def __init__(
        self,
        ids: NDArray[np.int64],
        private: Sequence[Account],
        read: Callable[[Key], Amounts] = _nothing,
        zones: Zones | None = None,
    ) -> None:
        self.ids = np.ascontiguousarray(ids, np.int64)
        self.private = tuple(private)
        self._read = read
        self._zones = Zones.utc(len(self.ids)) if zones is None else zones
        self._spent: dict[Key, Amounts] = {}
        self._places = int(self.ids.max()) + 1 if len(self.ids) else 0
        self._where = _places(self.ids)
        self._masks: dict[tuple[str, int, int], tuple[NDArray[np.bool_], NDArray[np.bool_]]] = {}

    def spent(self, account: Account, window_start: int) -> Amounts:
        """Return what each of the engine's subjects has spent in the horizon of a window."""
        result = np.zeros(len(self.ids), np.int64)
        for key, _, own in self._split(account, window_start):
            balance = self._balance(key)[self._where]
            result = balance if own is None else np.where(own, balance, result)
        return result

    def find_exhausted(self, window_start: int, prices: Amounts | None = None) -> NDArray[np.bool_]:
        """Find the engine's subjects for which a window would exceed one of their limits.

        A window that costs nothing exceeds no limit.
        """
        result = np.zeros(len(self.ids), np.bool_)
        for number, account in enumerate(self.private):
            if account.limit is None:
                continue
            price = account.amount if prices is None else prices[number]
            beyond = self.spent(account, window_start) > account.limit - price
            result |= beyond & account.mask & self._in_force(account, window_start) & (price > 0)
        return result

    def find_left(
        self, account: Account, window_start: int
    ) -> Iterator[tuple[int, NDArray[np.bool_] | None, Amounts]]:
        """Yield what is left of an account's limit, by local time of the window's start.

        Yields the local time, its subjects (None is all), and what is left for each of them.
        """
        assert account.limit is not None
        left = account.limit - self.spent(account, window_start)
        for _, offset, own in self._split(account, window_start):
            yield window_start + offset, own, left if own is None else left[own]

    def charge(
        self,
        window_start: int,
        exhausted: NDArray[np.bool_],
        registered: NDArray[np.bool_] | None = None,
        prices: Amounts | None = None,
    ) -> list[Charge]:
        """Charge a window to all registered subjects that are not exhausted.

        Where it costs nothing, a charge of 0 records that it was answered.
        """
        charges = []
        paying = ~exhausted if registered is None else registered & ~exhausted
        for number, account in enumerate(self.private):
            chosen = account.mask & paying & self._in_force(account, window_start)
            if not chosen.any():
                continue
            price = np.broadcast_to(account.amount, chosen.shape)
            if prices is not None:
                price = prices[number]
            for key, offset, own in self._split(account, window_start):
                here = chosen if own is None else chosen & own
                self._add(key, here, price)
                for amount in _find_amounts(price, here):
                    ids = self._by_ledger_id((account.name, amount, offset), here, price == amount)
                    charges.append(
                        Charge(
                            account.name,
                            amount,
                            window_start,
                            account.horizon,
                            ids,
                            account.limit,
                            offset=offset,
                        )
                    )
        return charges

    def settle(self, balances: Mapping[Key, Amounts], until: int) -> None:
        """Use the balances in the ledger after a release; `until` is the next window's start."""
        known = {**self._spent, **balances}
        self._spent = {
            key: _extend(spent, self._places)
            for key, spent in known.items()
            if key[1] + key[2] + FURTHEST > until
        }

    @property
    def balances(self) -> dict[Key, Amounts]:
        """The amounts spent in each horizon that was read, by ledger id."""
        return self._spent

    @balances.setter
    def balances(self, balances: Mapping[Key, Amounts]) -> None:
        self._spent = {key: spent.copy() for key, spent in balances.items()}

    def forget(self) -> None:
        """Drop all balances; they are read again when needed."""
        self._spent.clear()

    def _split(
        self, account: Account, window_start: int
    ) -> Iterator[tuple[Key, int, NDArray[np.bool_] | None]]:
        """Yield each horizon that a window belongs to, its offset from UTC, and its subjects."""
        horizon = account.horizon
        for offset, own in self._zones.split(window_start, horizon):
            start = (window_start + offset) // horizon * horizon
            yield (account.name, horizon, start), offset, own

    def _in_force(self, account: Account, window_start: int) -> NDArray[np.bool_] | bool:
        """Return the subjects for which an account counts in a window; True is all."""
        if account.until is None:
            return True
        result = np.zeros(len(self.ids), np.bool_)
        for (_, _, start), offset, own in self._split(account, window_start):
            if start <= account.until + offset:
                result |= True if own is None else own
        return result

    def _balance(self, key: Key) -> Amounts:
        if key not in self._spent:
            self._spent[key] = _extend(self._read(key), self._places)
        return self._spent[key]

    def _add(self, key: Key, chosen: NDArray[np.bool_], price: Amounts) -> None:
        """Add a window's price to a balance."""
        spent = self._balance(key)
        if isinstance(self._where, slice):
            own = spent[self._where]
            np.add(own, price, out=own, where=chosen)
        else:
            spent[self._where] += price * chosen

    def _by_ledger_id(
        self, kind: tuple[str, int, int], chosen: NDArray[np.bool_], priced: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Return the subjects by ledger id; the same array while they do not change."""
        own = chosen & priced
        before = self._masks.get(kind)
        if before is not None and np.array_equal(before[0], own):
            return before[1]
        ids = np.zeros(self._places, np.bool_)
        ids[self._where] = own
        self._masks[kind] = own, ids
        return ids


def _find_amounts(price: Amounts, chosen: NDArray[np.bool_]) -> list[int]:
    """Return the distinct prices of some subjects, in order."""
    amounts = price[chosen]
    if not len(amounts):
        return []
    low, high = int(amounts.min()), int(amounts.max())
    return [low] if low == high else sorted(pc.unique(pa.array(amounts)).to_pylist())


def _places(ids: NDArray[np.int64]) -> slice | NDArray[np.int64]:
    """Return the places of an engine's subjects among all ids: usually a slice."""
    if len(ids) and np.array_equal(ids, np.arange(ids[0], ids[0] + len(ids))):
        return slice(int(ids[0]), int(ids[0]) + len(ids))
    return ids


def _extend(spent: Amounts, places: int) -> Amounts:
    """Extend balances to all ids; missing subjects have spent nothing."""
    if len(spent) >= places:
        return spent
    return np.concatenate([spent, np.zeros(places - len(spent), np.int64)])
