"""SQLAlchemy, or a clear word about where to get it."""

from __future__ import annotations

from tacit.errors import LedgerError

MISSING = "a ledger needs the extra tacit[ledger]: pip install 'tacit[ledger]'"

try:
    import sqlalchemy as sa
except ModuleNotFoundError as missing:
    raise LedgerError(MISSING) from missing

__all__ = ["MISSING", "sa"]
