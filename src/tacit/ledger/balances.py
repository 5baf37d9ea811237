"""Balances: what subjects have spent in a horizon. It is always the sum of the charges in it.

The first read of a horizon sums up its charges. After that every charge in it is added, from any
run and with any horizon of its own limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from tacit.errors import LedgerError, StaleError
from tacit.ledger.accounts import Amounts, Key
from tacit.ledger.alchemy import sa
from tacit.ledger.charges import LONGEST, Charge, count_windows
from tacit.ledger.codec import pack_amounts, unpack_amounts, unpack_ids
from tacit.ledger.tables import BALANCES, CHARGES
from tacit.ledger.zones import FURTHEST

_MOST = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Balance:
    """What each subject has spent in a horizon, by id, up to the last who has spent anything."""

    spent: Amounts
    asked: int = 0
    """Pairs of a window and a subject that cost something."""
    free: int = 0
    """Pairs of a window and a subject that cost nothing."""
    release: int = 0
    """The last release that charged, or 0."""


def read(connection: sa.Connection, key: Key) -> Amounts:
    """Read what each subject has spent, by id, up to the last who has spent anything."""
    return read_balance(connection, key).spent


def read_balance(connection: sa.Connection, key: Key) -> Balance:
    """Read a balance; sum it up from charges if it was not stored."""
    columns = BALANCES.c["spent", "asked", "free", "release"]
    row = connection.execute(sa.select(*columns).where(_match_key(key))).one_or_none()
    if row is None:
        return sum_charges(connection, key)
    return Balance(unpack_amounts(row.spent), row.asked, row.free, row.release)


def sum_charges(connection: sa.Connection, key: Key) -> Balance:
    """Sum up a balance from charges."""
    private, horizon, start = key
    end = start + horizon
    columns = CHARGES.c["release", "ids", "amount", "first", "windows", "slide", "offset"]
    query = sa.select(*columns).where(
        CHARGES.c.private == private,
        CHARGES.c.last >= start - FURTHEST,
        CHARGES.c.last < end + LONGEST + FURTHEST,
        CHARGES.c.first < end + FURTHEST,
    )
    windows: dict[tuple[bytes, int], int] = {}  # most windows cost the same subjects
    latest = 0
    for release, ids, amount, first, number, slide, offset in connection.execute(query):
        times = count_windows(first + offset, number, slide, start, end)
        if times:
            windows[ids, amount] = windows.get((ids, amount), 0) + times
            latest = max(latest, release)
    balance = Balance(np.zeros(0, np.int64), release=latest)
    for (ids, amount), times in windows.items():
        balance = _add_windows(balance, unpack_ids(ids), amount, times, private)
    return balance


def charge(
    connection: sa.Connection, charges: Sequence[Charge], release: int
) -> dict[Key, Amounts]:
    """Add charges to every balance that they belong to; return these balances.

    Raises StaleError if a subject would exceed a limit: the caller used an older balance.
    """
    balances: dict[Key, Balance] = {}
    for private, own in groupby(sorted(charges, key=lambda one: one.private), _private):
        mine = list(own)
        for key in sorted({*_find_balances(connection, private, mine), *map(_key, mine)}):
            balances[key] = _add_charges(read_balance(connection, key), key, mine)
    for key, balance in balances.items():
        _write(connection, key, balance, release)
    return {key: balance.spent for key, balance in balances.items()}


def _private(charge: Charge) -> str:
    return charge.private


def _key(charge: Charge) -> Key:
    return charge.private, charge.horizon, charge.horizon_start


def _find_balances(
    connection: sa.Connection, private: str, charges: Sequence[Charge]
) -> Iterator[Key]:
    """Find the existing balances, of any horizon, that these charges belong to."""
    first = min(one.first + one.offset for one in charges)
    last = max(one.last + one.offset for one in charges)
    own, start = BALANCES.c.private == private, BALANCES.c.horizon_start
    shortest = sa.select(sa.func.min(BALANCES.c.horizon)).where(own)
    horizon = connection.execute(shortest).scalar()
    while horizon is not None:
        query = sa.select(start).where(
            own, BALANCES.c.horizon == horizon, start > first - horizon, start <= last
        )
        for began in connection.execute(query).scalars():
            yield private, horizon, began
        longer = shortest.where(BALANCES.c.horizon > horizon)
        horizon = connection.execute(longer).scalar()


def _add_charges(balance: Balance, key: Key, charges: Iterable[Charge]) -> Balance:
    private, horizon, start = key
    for charge in charges:
        times = charge.count_within(start, start + horizon)
        if times == 0:
            continue
        balance = _add_windows(balance, charge.ids, charge.amount, times, private)
        if charge.amount and charge.limit is not None and charge.horizon == horizon:
            own = balance.spent[: len(charge.ids)]
            if (own[charge.ids] > charge.limit).any():
                raise StaleError(
                    f"others have charged {private} since its balances were read; read them again"
                )
    return balance


def _add_windows(
    balance: Balance, ids: NDArray[np.bool_], amount: int, times: int, private: str
) -> Balance:
    """Add windows of the same amount for some subjects."""
    pairs = times * int(np.count_nonzero(ids))
    if amount == 0:
        return replace(balance, free=balance.free + pairs)
    spent = balance.spent
    if len(spent) < len(ids):
        spent = np.concatenate([spent, np.zeros(len(ids) - len(spent), np.int64)])
    own = spent[: len(ids)]
    if len(own) and amount * times > _MOST - int(own.max()):
        raise LedgerError(f"the charges of {private} exceed the largest balance that can be stored")
    np.add(own, amount * times, out=own, where=ids)
    return replace(balance, spent=spent, asked=balance.asked + pairs)


def _match_key(key: Key) -> sa.ColumnElement[bool]:
    private, horizon, start = key
    return sa.and_(
        BALANCES.c.private == private,
        BALANCES.c.horizon == horizon,
        BALANCES.c.horizon_start == start,
    )


def _write(connection: sa.Connection, key: Key, balance: Balance, release: int) -> None:
    values = {
        "release": release,
        "spent": pack_amounts(balance.spent),
        "asked": balance.asked,
        "free": balance.free,
    }
    if connection.execute(BALANCES.update().where(_match_key(key)).values(values)).rowcount == 0:
        private, horizon, start = key
        named = {"private": private, "horizon": horizon, "horizon_start": start}
        connection.execute(BALANCES.insert().values(named | values))
