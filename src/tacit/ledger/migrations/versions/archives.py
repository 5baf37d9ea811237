"""Add archives of old releases, and the record of the last verification."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add two tables; the others stay unchanged."""
    op.create_table(
        "tacit_archives",
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("first", sa.BigInteger, nullable=False),
        sa.Column("last", sa.BigInteger, nullable=False),
        sa.Column("after", sa.BigInteger, nullable=False),
        sa.Column("answers", sa.BigInteger, nullable=False),
        sa.Column("charges", sa.BigInteger, nullable=False),
        sa.Column("runs", sa.Text, nullable=False),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sa.Column("file", sa.Text, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("settled", sa.LargeBinary, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "tacit_verified",
        sa.Column("one", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("release", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sa.Column("charges", sa.BigInteger, nullable=False),
        sa.Column("moment", sa.BigInteger, nullable=False),
        sa.Column("seal", sa.LargeBinary, nullable=False),
    )
