"""Administrative acts: who changed what and when, as links of the ledger's chain.

An act is written in the transaction of what it records, so neither is there without the other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tacit.ledger.alchemy import sa
from tacit.ledger.chain import ACT, link_act, seal
from tacit.ledger.covered_rows import FIELD, CoveredRow
from tacit.ledger.database import Database, now
from tacit.ledger.tables import ACTS, ARCHIVES, HEAD


class ActKind(StrEnum):
    """What was done."""

    TOKEN_CREATED = "token created"
    TOKEN_REVOKED = "token revoked"
    PROPOSED = "proposed"
    WITHDRAWN = "withdrawn"
    APPROVED = "approved"
    REJECTED = "rejected"
    POLICY_CHANGED = "policy changed"
    LIVE = "live"
    DECLARED = "declared"
    """The accounts of a run, or the time zones of its subjects."""
    UPGRADED = "upgraded"
    """Rows of an earlier version of Tacit are covered from here on."""


@dataclass(frozen=True, slots=True)
class Act:
    """Something that was done, by whom and when."""

    number: int
    moment: int
    """In microseconds since 1970."""
    actor: str
    kind: ActKind
    about: str
    """What it was done to, such as a token or a version."""
    detail: Mapping[str, Any]
    after: int
    """The last release before it; 0 if there was none."""


def record_act(
    connection: sa.Connection,
    actor: str,
    kind: ActKind,
    about: str,
    detail: Mapping[str, Any] | None = None,
    covers: Sequence[CoveredRow] = (),
) -> int:
    """Append an act to the chain, in a writing transaction; return its number.

    It covers rows as they are now: call this after you have written them.
    """
    rows = {FIELD: [one.to_list(connection) for one in covers]} if covers else {}
    head = connection.execute(sa.select(HEAD).with_for_update()).mappings().one()
    last = connection.execute(sa.select(sa.func.max(ACTS.c.number))).scalar() or 0
    row: dict[str, Any] = {
        "number": last + 1,
        "after": head["releases"],
        "archives": connection.execute(sa.select(sa.func.count()).select_from(ARCHIVES)).scalar(),
        "moment": now(),
        "actor": actor,
        "kind": str(kind),
        "about": about,
        "detail": json.dumps({**(detail or {}), **rows}, sort_keys=True),
    }
    connection.execute(ACTS.insert().values(row | {"seal": seal(ACT, row)}))
    connection.execute(HEAD.update().values(hash=link_act(head["hash"], row)))
    return int(row["number"])


def read_acts(database: Database, before: int | None = None, limit: int = 100) -> list[Act]:
    """Read acts, the newest first; `before` selects those with smaller numbers."""
    query = sa.select(ACTS).order_by(ACTS.c.number.desc()).limit(limit)
    if before is not None:
        query = query.where(ACTS.c.number < before)
    with database.reading() as connection:
        return [
            Act(
                row["number"],
                row["moment"],
                row["actor"],
                ActKind(row["kind"]),
                row["about"],
                _read_detail(row["detail"]),
                row["after"],
            )
            for row in connection.execute(query).mappings()
        ]


def _read_detail(text: str) -> dict[str, Any]:
    """Return what was done, without the hashes of rows."""
    detail: dict[str, Any] = json.loads(text)
    detail.pop(FIELD, None)
    return detail
