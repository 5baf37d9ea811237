"""Accounts in memory: which subjects can pay for a window, and their charges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tacit.ledger.charges import Account, Charge

Amounts = NDArray[np.int64]
Key = tuple[str, int, int]
"""A private pattern, and the length and start of a horizon."""


def _nothing(_: Key) -> Amounts:
    return np.zeros(0, np.int64)


class Accounts:
    """The accounts of an engine's subjects, one for each private pattern.

    Charges count immediately, so the windows of one release see each other's charges. If a release
    fails, call `forget`.
    """

    def __init__(
        self,
        ids: NDArray[np.int64],
        private: Sequence[Account],
        read: Callable[[Key], Amounts] = _nothing,
    ) -> None:
        self.ids = np.ascontiguousarray(ids, np.int64)
        self.private = tuple(private)
        self._read = read
        self._spent: dict[Key, Amounts] = {}
        self._places = int(self.ids.max()) + 1 if len(self.ids) else 0
        self._where = _places(self.ids)
        self._masks: dict[str, tuple[NDArray[np.bool_], NDArray[np.bool_]]] = {}

    def spent(self, account: Account, window_start: int) -> Amounts:
        """Return what each of the engine's subjects has spent in the horizon of a window."""
        own: Amounts = self._balance(account, window_start)[self._where]
        return own

    def find_exhausted(self, window_start: int) -> NDArray[np.bool_]:
        """Find the engine's subjects for which a window would exceed one of their limits."""
        result = np.zeros(len(self.ids), np.bool_)
        for account in self.private:
            if account.limit is not None:
                beyond = self.spent(account, window_start) > account.limit - account.amount
                result |= beyond & account.mask
        return result

    def charge(
        self,
        window_start: int,
        exhausted: NDArray[np.bool_],
        registered: NDArray[np.bool_] | None = None,
    ) -> list[Charge]:
        """Charge a window to all registered subjects that are not exhausted."""
        charges = []
        paying = ~exhausted if registered is None else registered & ~exhausted
        for account in self.private:
            chosen = account.mask & paying
            if not chosen.any():
                continue
            spent = self._balance(account, window_start)
            if isinstance(self._where, slice):
                own = spent[self._where]
                np.add(own, account.amount, out=own, where=chosen)
            else:
                spent[self._where] += account.amount * chosen
            charges.append(
                Charge(
                    account.name,
                    account.amount,
                    window_start,
                    account.horizon,
                    self._by_ledger_id(account.name, chosen),
                    account.limit,
                )
            )
        return charges

    def settle(self, balances: Mapping[Key, Amounts], until: int) -> None:
        """Use the balances in the ledger after a release; `until` is the next window's start."""
        known = {**self._spent, **balances}
        self._spent = {
            key: _extend(spent, self._places)
            for key, spent in known.items()
            if key[1] + key[2] > until
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

    def _balance(self, account: Account, window_start: int) -> Amounts:
        start = window_start // account.horizon * account.horizon
        key = (account.name, account.horizon, start)
        if key not in self._spent:
            self._spent[key] = _extend(self._read(key), self._places)
        return self._spent[key]

    def _by_ledger_id(self, name: str, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the same subjects by ledger id; the same array while they do not change."""
        before = self._masks.get(name)
        if before is not None and np.array_equal(before[0], chosen):
            return before[1]
        ids = np.zeros(self._places, np.bool_)
        ids[self._where] = chosen
        self._masks[name] = chosen, ids
        return ids


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
