"""What runs have declared in a ledger: the elements of their accounts, and subjects' time zones.

An account belongs to a private pattern. A release that depends on an element is charged to every
account with that element, whichever run declared it and whatever it is called. Elements are
compared by their definitions. Each change is an act of the ledger's chain, so a row that is
deleted is missed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.ledger.acts import ActKind, record_act
from tacit.ledger.alchemy import sa
from tacit.ledger.chain import ACCOUNT, ZONE, seal
from tacit.ledger.charges import Account
from tacit.ledger.codec import pack_ids, unpack_ids
from tacit.ledger.covered_rows import CoveredRow
from tacit.ledger.tables import ACCOUNTS, ZONES
from tacit.ledger.zones import ALWAYS, UTC_ALWAYS, History, Zones


@dataclass(frozen=True, slots=True, eq=False)
class DeclaredAccount:
    """An account that some run has declared."""

    run: str
    private: str
    elements: frozenset[str]
    """The definitions of its elements."""
    limit: int | None
    horizon: int
    ids: NDArray[np.bool_]
    """Its subjects, by ledger id."""
    until: int | None
    """The first window after the run withdrew it; None while it is declared."""


def declare_accounts(
    connection: sa.Connection,
    run: str,
    accounts: Sequence[Account],
    definitions: Mapping[str, str],
    ids: NDArray[np.int64],
    start: int,
) -> None:
    """Record the accounts of a run; the ones that it no longer declares end with their horizon.

    `start` is the next window, `definitions` has the definition of each element. A pattern that is
    declared several times, for different subjects, is recorded once, with its strictest limit.
    Lock the head before.
    """
    own = ACCOUNTS.c.run == run
    rows = connection.execute(sa.select(ACCOUNTS).where(own)).mappings()
    known = {row["private"]: dict(row) for row in rows}
    declared = {}
    for name in dict.fromkeys(account.name for account in accounts):
        same = [account for account in accounts if account.name == name]
        account = min(same, key=_strictness)
        subjects = np.zeros(int(ids.max(initial=-1)) + 1, np.bool_)
        subjects[ids] = np.logical_or.reduce([one.mask for one in same])
        declared[account.name] = {
            "run": run,
            "private": account.name,
            "elements": json.dumps(sorted(definitions[name] for name in account.elements)),
            "limit": account.limit,
            "horizon": account.horizon,
            "ids": pack_ids(subjects),
            "until": None,
        }
    for name, row in known.items():
        if name not in declared:
            until = start if row["until"] is None else row["until"]
            declared[name] = {**row, "until": until}
    changed = []
    for name, row in declared.items():
        row["seal"] = seal(ACCOUNT, row)
        if name not in known:
            connection.execute(ACCOUNTS.insert().values(row))
        elif row != known[name]:
            mine = sa.and_(own, ACCOUNTS.c.private == name)
            connection.execute(ACCOUNTS.update().where(mine).values(row))
        else:
            continue
        changed.append(name)
    if changed:
        covers = [cover_account(run, name) for name in changed]
        detail = {"private": sorted(changed)}
        record_act(connection, f"run {run}", ActKind.DECLARED, "accounts", detail, covers)


def cover_account(run: str, private: str) -> CoveredRow:
    """Cover an account as it is declared now."""
    return CoveredRow(ACCOUNTS, {"run": run, "private": private}, "declared", ACCOUNT)


def cover_zone(number: int) -> CoveredRow:
    """Cover a registered time zone, which never changes."""
    return CoveredRow(ZONES, {"number": number}, "registered", ZONE)


def _strictness(account: Account) -> float:
    """Return what an account allows by time: the least is the strictest."""
    return float("inf") if account.limit is None else account.limit / account.horizon


def read_accounts(connection: sa.Connection) -> Iterator[DeclaredAccount]:
    """Read the accounts that all runs have declared."""
    query = sa.select(ACCOUNTS).order_by(ACCOUNTS.c.run, ACCOUNTS.c.private)
    for row in connection.execute(query).mappings():
        yield DeclaredAccount(
            row["run"],
            row["private"],
            frozenset(json.loads(row["elements"])),
            row["limit"],
            row["horizon"],
            unpack_ids(row["ids"]),
            row["until"],
        )


def register_zones(
    connection: sa.Connection, run: str, ids: NDArray[np.int64], zones: Sequence[str], start: int
) -> None:
    """Register the time zones of subjects, in the order of their ids.

    A subject's first zone applies at once, another one when its horizon ends; `start` is the next
    window. Lock the head before.
    """
    known = read_zones(connection, ids)
    names = np.array(zones, np.object_)
    last = connection.execute(sa.select(sa.func.count()).select_from(ZONES)).scalar_one()
    number = last
    for place, history in enumerate(known.histories):
        for zone in sorted(set(names[known.places == place].tolist())):
            if history and history[-1][0] == zone:
                continue
            chosen = ids[(known.places == place) & (names == zone)]
            subjects = np.zeros(int(chosen.max()) + 1, np.bool_)
            subjects[chosen] = True
            number += 1
            row: dict[str, Any] = {
                "number": number,
                "zone": zone,
                "since": start if history else ALWAYS,
                "ids": pack_ids(subjects),
            }
            connection.execute(ZONES.insert().values(row | {"seal": seal(ZONE, row)}))
    if number > last:
        covers = [cover_zone(new) for new in range(last + 1, number + 1)]
        record_act(connection, f"run {run}", ActKind.DECLARED, "time zones", {}, covers)


def read_zones(connection: sa.Connection, ids: NDArray[np.int64]) -> Zones:
    """Read the time zones of subjects; the history of an unregistered subject is empty."""
    places = np.zeros(len(ids), np.int32)
    histories: list[History] = [()]
    query = sa.select(ZONES).order_by(ZONES.c.number)
    for row in connection.execute(query).mappings():
        subjects = unpack_ids(row["ids"])
        own = (ids < len(subjects)) & subjects[np.minimum(ids, len(subjects) - 1)]
        for place in np.unique(places[own]).tolist():
            histories.append((*histories[place], (row["zone"], row["since"])))
            places[own & (places == place)] = len(histories) - 1
    used, places_used = np.unique(places, return_inverse=True)
    return Zones(places_used.astype(np.int32), [histories[place] for place in used.tolist()])


def fill_zones(zones: Zones) -> Zones:
    """Return the zones, where unregistered subjects are in UTC."""
    return Zones(zones.places, [history or UTC_ALWAYS for history in zones.histories])
