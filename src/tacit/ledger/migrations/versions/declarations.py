"""Cover the accounts and time zones that were declared so far by an act of the chain."""

import json
import time

import sqlalchemy as sa
from alembic import op

from tacit.ledger.chain import ACT, link_act, seal
from tacit.ledger.covered_rows import FIELD
from tacit.ledger.declarations import cover_account, cover_zone

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Record one act for all of them, as they are now."""
    connection = op.get_bind()
    accounts = sa.table("tacit_accounts", *map(sa.column, ("run", "private")))
    zones = sa.table("tacit_zones", sa.column("number"))
    covers = [
        *(cover_account(*key) for key in connection.execute(sa.select(accounts)).all()),
        *(cover_zone(number) for number in connection.execute(sa.select(zones)).scalars().all()),
    ]
    if not covers:
        return
    head = sa.table("tacit_head", *map(sa.column, ("releases", "hash")))
    acts = sa.table("tacit_acts", *map(sa.column, (*ACT, "seal")))
    archives = sa.table("tacit_archives")
    releases, hashed = connection.execute(sa.select(head)).one()
    last = connection.execute(sa.select(sa.func.max(acts.c.number))).scalar() or 0
    row = {
        "number": last + 1,
        "after": releases,
        "archives": connection.execute(sa.select(sa.func.count()).select_from(archives)).scalar(),
        "moment": time.time_ns() // 1000,
        "actor": "upgrade",
        "kind": "upgraded",
        "about": "accounts and time zones",
        "detail": json.dumps({FIELD: [one.to_list(connection) for one in covers]}, sort_keys=True),
    }
    connection.execute(sa.insert(acts).values(row | {"seal": seal(ACT, row)}))
    connection.execute(sa.update(head).values(hash=link_act(bytes(hashed), row)))
