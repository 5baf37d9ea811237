"""Add time zones, the elements of accounts, and counts of windows that cost nothing."""

import json
from hashlib import sha256

import numpy as np
import sqlalchemy as sa
from alembic import op

from tacit.ledger.codec import pack_ids, unpack_ids

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Everything so far was in UTC, and every window cost something."""
    for table, columns in (("tacit_charges", ("offset",)), ("tacit_balances", ("asked", "free"))):
        for name in columns:
            zero = sa.text("0")
            op.add_column(
                table, sa.Column(name, sa.BigInteger, nullable=False, server_default=zero)
            )
    op.create_table(
        "tacit_accounts",
        sa.Column("run", sa.Text, primary_key=True),
        sa.Column("private", sa.Text, primary_key=True),
        sa.Column("elements", sa.Text, nullable=False),
        sa.Column("limit", sa.BigInteger),
        sa.Column("horizon", sa.BigInteger, nullable=False),
        sa.Column("ids", sa.LargeBinary, nullable=False),
        sa.Column("until", sa.BigInteger),
        sa.Column("seal", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "tacit_zones",
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("zone", sa.Text, nullable=False),
        sa.Column("since", sa.BigInteger, nullable=False),
        sa.Column("ids", sa.LargeBinary, nullable=False),
        sa.Column("seal", sa.LargeBinary, nullable=False),
    )
    connection = op.get_bind()
    _count_windows(connection)
    _register_subjects(connection)


def _count_windows(connection: sa.Connection) -> None:
    """Count the windows and subjects of each balance."""
    names = ("private", "ids", "first", "windows", "slide")
    charges = sa.table("tacit_charges", *map(sa.column, names))
    totals: dict[tuple[str, int, int], int] = {}
    keys = ("private", "horizon", "horizon_start")
    balances = sa.table("tacit_balances", *map(sa.column, (*keys, "asked")))
    known: dict[str, dict[int, set[int]]] = {}
    for private, horizon, start in connection.execute(sa.select(*balances.c[keys])):
        known.setdefault(private, {}).setdefault(horizon, set()).add(start)
        totals[private, horizon, start] = 0
    for private, ids, first, windows, slide in connection.execute(sa.select(charges)):
        subjects = int(np.count_nonzero(unpack_ids(ids)))
        starts = first + slide * np.arange(windows)
        for horizon, begins in known.get(private, {}).items():
            found, counts = np.unique(starts // horizon * horizon, return_counts=True)
            for start, count in zip(found.tolist(), counts.tolist(), strict=True):
                if start in begins:
                    totals[private, horizon, start] += subjects * count
    for (private, horizon, start), asked in totals.items():
        same = (
            (balances.c.private == private)
            & (balances.c.horizon == horizon)
            & (balances.c.horizon_start == start)
        )
        connection.execute(sa.update(balances).where(same).values(asked=asked))


def _register_subjects(connection: sa.Connection) -> None:
    """Register UTC for all subjects."""
    head = sa.table("tacit_head", sa.column("subjects"))
    subjects = connection.execute(sa.select(head.c.subjects)).scalar()
    if not subjects:
        return
    ids = pack_ids(np.ones(subjects, np.bool_))
    row = {"number": 1, "zone": "UTC", "since": -(1 << 62)}
    text = json.dumps([*row.values(), sha256(ids).hexdigest()], separators=(",", ":"))
    zones = sa.table("tacit_zones", *map(sa.column, (*row, "ids", "seal")))
    values = row | {"ids": ids, "seal": sha256(text.encode()).digest()}
    connection.execute(sa.insert(zones).values(values))
