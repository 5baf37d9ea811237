"""The first version."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "tacit_head",
        sa.Column("one", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("releases", sa.BigInteger, nullable=False),
        sa.Column("answers", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sa.Column("subjects", sa.BigInteger, nullable=False),
        sa.Column("registry", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "tacit_subjects",
        sa.Column("first", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("count", sa.BigInteger, nullable=False),
        sa.Column("names", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "tacit_runs",
        sa.Column("run", sa.Text, primary_key=True),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("checkpoint", sa.LargeBinary),
        sa.Column("released", sa.BigInteger, nullable=False),
        sa.Column("until", sa.BigInteger),
        sa.Column("dropped", sa.BigInteger, nullable=False),
        sa.Column("seal", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "tacit_checkpoints",
        sa.Column("run", sa.Text, primary_key=True),
        sa.Column("checkpoint", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "tacit_releases",
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("run", sa.Text, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("first", sa.BigInteger, nullable=False),
        sa.Column("windows", sa.BigInteger, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("slide", sa.BigInteger, nullable=False),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("plan", sa.Text, nullable=False),
        sa.Column("first_id", sa.BigInteger, nullable=False),
        sa.Column("answers", sa.BigInteger, nullable=False),
        sa.Column("committed", sa.BigInteger, nullable=False),
        sa.Column("subjects", sa.BigInteger, nullable=False),
        sa.Column("registry", sa.LargeBinary, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("hash", sa.LargeBinary, nullable=False),
    )
    op.create_index("tacit_releases_of_run", "tacit_releases", ["run", "number"])
    op.create_table(
        "tacit_bodies",
        sa.Column("release", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "tacit_charges",
        sa.Column("release", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("place", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("private", sa.Text, nullable=False),
        sa.Column("amount", sa.BigInteger, nullable=False),
        sa.Column("first", sa.BigInteger, nullable=False),
        sa.Column("last", sa.BigInteger, nullable=False),
        sa.Column("windows", sa.BigInteger, nullable=False),
        sa.Column("slide", sa.BigInteger, nullable=False),
        sa.Column("horizon", sa.BigInteger, nullable=False),
        sa.Column("horizon_start", sa.BigInteger, nullable=False),
        sa.Column("limit", sa.BigInteger),
        sa.Column("ids", sa.LargeBinary, nullable=False),
    )
    op.create_index("tacit_charges_of_private", "tacit_charges", ["private", "last"])
    op.create_table(
        "tacit_balances",
        sa.Column("private", sa.Text, primary_key=True),
        sa.Column("horizon", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("horizon_start", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("release", sa.BigInteger, nullable=False),
        sa.Column("spent", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "tacit_deliveries",
        sa.Column("run", sa.Text, primary_key=True),
        sa.Column("outlet", sa.Text, primary_key=True),
        sa.Column("release", sa.BigInteger, nullable=False),
        sa.Column("position", sa.Text, nullable=False),
        sa.Column("delivered", sa.BigInteger, nullable=False),
        sa.Column("seal", sa.LargeBinary, nullable=False),
    )
