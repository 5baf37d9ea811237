"""Balances: what subjects have spent in a horizon. It is always the sum of the charges in it.

The first read of a horizon sums up its charges. After that every charge in it is added, from any
run and with any horizon of its own limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import numpy as np

from tacit.errors import LedgerError, StaleError
from tacit.ledger.accounts import Amounts, Key
from tacit.ledger.alchemy import sa
from tacit.ledger.charges import LONGEST, Charge, count_windows
from tacit.ledger.codec import pack_amounts, unpack_amounts, unpack_ids
from tacit.ledger.tables import BALANCES, CHARGES

_MOST = np.iinfo(np.int64).max


def read(connection: sa.Connection, key: Key) -> Amounts:
    """Read what each subject has spent, by id, up to the last who has spent anything."""
    packed = connection.execute(sa.select(BALANCES.c.spent).where(_match_key(key))).scalar()
    return sum_charges(connection, key)[0] if packed is None else unpack_amounts(packed)


def sum_charges(connection: sa.Connection, key: Key) -> tuple[Amounts, int]:
    """Sum up the same from charges; also return the last release that charged, or 0."""
    private, horizon, start = key
    end = start + horizon
    columns = CHARGES.c["release", "ids", "amount", "first", "windows", "slide"]
    query = sa.select(*columns).where(
        CHARGES.c.private == private,
        CHARGES.c.last >= start,
        CHARGES.c.last < end + LONGEST,
        CHARGES.c.first < end,
    )
    amounts: dict[bytes, int] = {}  # most windows cost the same subjects
    latest = 0
    for release, ids, amount, first, windows, slide in connection.execute(query):
        times = count_windows(first, windows, slide, start, end)
        if times:
            amounts[ids] = amounts.get(ids, 0) + amount * times
            latest = max(latest, release)
    spent = np.zeros(0, np.int64)
    for ids, amount in amounts.items():
        spent = _add_amount(spent, unpack_ids(ids), amount, private)
    return spent, latest


def charge(
    connection: sa.Connection, charges: Sequence[Charge], release: int
) -> dict[Key, Amounts]:
    """Add charges to every balance that they belong to; return these balances.

    Raises StaleError if a subject would exceed a limit: the caller used an older balance.
    """
    balances: dict[Key, Amounts] = {}
    for private, own in groupby(sorted(charges, key=lambda one: one.private), _private):
        mine = list(own)
        for key in sorted({*_find_balances(connection, private, mine), *map(_key, mine)}):
            balances[key] = _add_charges(read(connection, key), key, mine)
    for key, spent in balances.items():
        _write(connection, key, spent, release)
    return balances


def _private(charge: Charge) -> str:
    return charge.private


def _key(charge: Charge) -> Key:
    return charge.private, charge.horizon, charge.horizon_start


def _find_balances(
    connection: sa.Connection, private: str, charges: Sequence[Charge]
) -> Iterator[Key]:
    """Find the existing balances, of any horizon, that these charges belong to."""
    first, last = min(one.first for one in charges), max(one.last for one in charges)
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


def _add_charges(spent: Amounts, key: Key, charges: Iterable[Charge]) -> Amounts:
    private, horizon, start = key
    for charge in charges:
        times = charge.count_within(start, start + horizon)
        if times == 0:
            continue
        spent = _add_amount(spent, charge.ids, charge.amount * times, private)
        if charge.limit is not None and charge.horizon == horizon:
            own = spent[: len(charge.ids)]
            if (own[charge.ids] > charge.limit).any():
                raise StaleError(
                    f"others have charged {private} since its balances were read; read them again"
                )
    return spent


def _add_amount(spent: Amounts, ids: np.ndarray[tuple[int], np.dtype[np.bool_]], amount: int,
           private: str) -> Amounts:  # fmt: skip
    if len(spent) < len(ids):
        spent = np.concatenate([spent, np.zeros(len(ids) - len(spent), np.int64)])
    own = spent[: len(ids)]
    if len(own) and amount > _MOST - int(own.max()):
        raise LedgerError(f"the charges of {private} exceed the largest balance that can be stored")
    np.add(own, amount, out=own, where=ids)
    return spent


def _match_key(key: Key) -> sa.ColumnElement[bool]:
    private, horizon, start = key
    return sa.and_(
        BALANCES.c.private == private,
        BALANCES.c.horizon == horizon,
        BALANCES.c.horizon_start == start,
    )


def _write(connection: sa.Connection, key: Key, spent: Amounts, release: int) -> None:
    values = {"release": release, "spent": pack_amounts(spent)}
    if connection.execute(BALANCES.update().where(_match_key(key)).values(values)).rowcount == 0:
        private, horizon, start = key
        named = {"private": private, "horizon": horizon, "horizon_start": start}
        connection.execute(BALANCES.insert().values(named | values))
