"""Add the administrative acts; earlier ones were not recorded."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add a table; the chain stays unchanged until the first act."""
    op.create_table(
        "tacit_acts",
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("after", sa.BigInteger, nullable=False),
        sa.Column("archives", sa.BigInteger, nullable=False),
        sa.Column("moment", sa.BigInteger, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("about", sa.Text, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Column("seal", sa.LargeBinary, nullable=False),
    )
    op.create_index("tacit_acts_after", "tacit_acts", ["after"])
