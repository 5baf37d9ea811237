"""Import SQLAlchemy, or raise an error that says how to install it."""

from __future__ import annotations

from tacit.errors import MissingExtraError

MISSING = (
    "a ledger needs the extra tacit[ledger]: pip install 'tacit[ledger]', or 'tacit[postgres]' for"
    " a ledger in PostgreSQL"
)

try:
    import sqlalchemy as sa
except ModuleNotFoundError as missing:
    raise MissingExtraError(MISSING) from missing

__all__ = ["MISSING", "sa"]
