"""The database of a ledger: a SQLite file or PostgreSQL, its transactions and its errors.

Both write to disk at every commit (SQLite in WAL mode, PostgreSQL with synchronous_commit).
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from tacit.errors import LedgerError, LedgerLostError, MissingExtraError
from tacit.ledger.alchemy import sa
from tacit.masking import find_secrets, is_ambiguous, mask, scrub
from tacit.options import command

LOCK_TIMEOUT: Final = 30
"""Seconds to wait for another engine's transaction."""
_WRITES: Final = "tacit_writes"
_SUFFIXES: Final = ("-wal", "-journal")


class Database:
    """The database with the tables of a ledger. It is safe to use from several threads."""

    def __init__(self, place: str, *, create: bool = True, read_only: bool = False) -> None:
        self.read_only = read_only
        self._closed = False
        self._place = place
        if "://" in place:
            self.name = mask(place)
            self._engine = _postgres(place)
        elif find_secrets(place):
            raise LedgerError(
                "a ledger is a file or postgresql://...; this looks like a connection string of"
                " libpq. Write it as a URL"
            )
        else:
            path = Path(place).expanduser()
            self.name = str(path)
            self._engine = _sqlite(path, create=create, read_only=read_only)
        self.sqlite = self._engine.dialect.name == "sqlite"

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Open a read-only transaction with a consistent view of the ledger."""
        with self._connect() as connection:
            if not self.sqlite:
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """Open a transaction that is on disk when it ends, or rolled back on an error."""
        if self.read_only:
            raise LedgerError(f"the ledger {self.name} was opened read-only")
        with self._connect() as connection:
            connection = connection.execution_options(**{_WRITES: True})
            with connection.begin():
                yield connection

    def compact(self) -> None:
        """Return the space of deleted rows to the disk, if the file is not locked.

        PostgreSQL reuses the space by itself.
        """
        if not self.sqlite:
            return
        with self._connect() as connection:
            raw = connection.connection.dbapi_connection
            if raw is not None:
                with suppress(
                    sqlite3.OperationalError
                ):  # the file is locked; SQLite reuses the space
                    raw.execute("VACUUM")
                    raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Close all connections; those that other threads still use, as soon as they are done."""
        self._closed = True
        self._engine.dispose()

    @contextmanager
    def _connect(self) -> Iterator[sa.Connection]:
        with self._translate_errors(), self._engine.connect() as connection:
            try:
                yield connection
            finally:
                if self._closed and not connection.invalidated:
                    connection.detach()  # no pool would close it

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except sa.exc.DBAPIError as error:
            raise self._explain(error) from error
        except sa.exc.TimeoutError as error:
            raise LedgerLostError(f"the ledger {self.name} has no free connection") from error
        except OverflowError as error:  # from sqlite3, for a value that is too large
            raise LedgerError(
                f"the ledger {self.name} cannot hold a value of this size; release fewer windows"
                " at a time"
            ) from error

    def _explain(self, error: sa.exc.DBAPIError) -> LedgerError:
        """Translate an error of the database, without the passwords that it may contain."""
        detail = scrub(str(error.orig), self._place)
        explain = _explain_sqlite if self.sqlite else _explain_postgres
        return explain(self.name, error, detail)


def _sqlite(path: Path, *, create: bool, read_only: bool) -> sa.Engine:
    if not path.exists() and (read_only or not create):
        creator = command("tacit run --ledger", "tacit.run(..., ledger=...)")
        raise LedgerError(f"there is no ledger at {path}; {creator} creates one")
    check_file(path, read_only=read_only)
    if not path.exists():
        _create_file(path)
    query = {"uri": "true"} | (_choose_read_options(path) if read_only else {})
    url = sa.URL.create("sqlite", database=path.absolute().as_uri(), query=query)
    engine = sa.create_engine(url, connect_args={"timeout": LOCK_TIMEOUT}, hide_parameters=True)

    @sa.event.listens_for(engine, "connect")
    def connect(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # we begin transactions ourselves
        connection.execute(f"PRAGMA {'query_only = ON' if read_only else 'journal_mode = WAL'}")
        connection.execute("PRAGMA synchronous = FULL")
        # A checkpoint holds raw events: old contents must not stay in free pages.
        connection.execute("PRAGMA secure_delete = ON")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        writes = connection.get_execution_options().get(_WRITES)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def check_file(path: Path, *, read_only: bool = False) -> None:
    """Raise LedgerError if no ledger can be stored in, or read from, this file."""
    if path.exists() and not path.is_file():
        raise LedgerError(f"{path} is not a file; a ledger is a file or postgresql://...")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise LedgerError(f"{folder} is not a folder; create it or choose another place")
    for place in () if read_only else (folder, path):
        if place.exists() and not os.access(place, os.W_OK):
            raise LedgerError(f"{place} cannot be written, but a ledger must be; change its owner")


def _create_file(path: Path) -> None:
    """Create an empty file that only its owner can read: checkpoints hold private events."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise LedgerError(f"the ledger {path} cannot be created: {error.strerror}") from error


def _choose_read_options(path: Path) -> dict[str, str]:
    """Return how SQLite opens a file to read it without leaving other files beside it."""
    beside = [path.with_name(path.name + suffix) for suffix in _SUFFIXES]
    sizes = [other.stat().st_size for other in beside if other.exists()]
    if not os.access(path.parent, os.W_OK) and not any(sizes):
        return {"mode": "ro", "immutable": "1"}  # no process is writing, and none can
    # Only a connection that may write removes its files when it closes. `query_only` refuses
    # every change.
    return {"mode": "ro" if sizes or not os.access(path, os.W_OK) else "rw"}


def _postgres(place: str) -> sa.Engine:
    kind, _, rest = place.partition("://")
    if kind not in ("postgresql", "postgres"):
        raise LedgerError(f"a ledger is a file or postgresql://...; got {kind}://...")
    if is_ambiguous(place):
        raise LedgerError(
            "expected postgresql://user@host/database; the ledger's URL cannot be read, or can be"
            " read in two ways. Write @ as %40, / as %2F, : as %3A and ? as %3F in a user or"
            " password"
        )
    try:
        url = sa.make_url(f"postgresql+psycopg://{rest}")
        settings = {
            "connect_timeout": "10",
            "keepalives_idle": "15",
            "tcp_user_timeout": "60000",
            "application_name": "tacit",
        }
        given = {key: value for key, value in settings.items() if key not in url.query}
        engine = sa.create_engine(url, connect_args=given, hide_parameters=True)
    except ModuleNotFoundError as missing:
        raise MissingExtraError(
            "a ledger in PostgreSQL needs the extra tacit[postgres]: pip install 'tacit[postgres]'"
        ) from missing
    except (sa.exc.ArgumentError, ValueError) as error:
        raise LedgerError(
            "expected postgresql://user@host/database; the ledger's URL cannot be read"
        ) from error

    @sa.event.listens_for(engine, "connect")
    def connect(connection: Any, _: Any) -> None:
        connection.execute("SET synchronous_commit = on")
        connection.execute(f"SET lock_timeout = {1000 * LOCK_TIMEOUT:.0f}")
        connection.commit()

    return engine


def _explain_sqlite(name: str, error: sa.exc.DBAPIError, detail: str) -> LedgerError:
    code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return LedgerLostError(f"the ledger {name} is locked by another process; retrying")
    if code == sqlite3.SQLITE_FULL:
        return LedgerError(
            f"the ledger {name} cannot grow: the disk is full. Nothing was released without its"
            " charge; free some space and start again"
        )
    if code == sqlite3.SQLITE_READONLY:
        return LedgerError(f"the ledger {name} cannot be written: it is read-only; {detail}")
    if code == sqlite3.SQLITE_NOTADB:
        return LedgerError(f"{name} is not a ledger: it is not a SQLite database")
    if code == sqlite3.SQLITE_CORRUPT:
        return LedgerError(f"the ledger {name} is damaged ({detail}); restore it from a backup")
    if code == sqlite3.SQLITE_TOOBIG:
        return LedgerError(
            f"the ledger {name} cannot hold a value of this size; release fewer windows at a time"
        )
    if code == sqlite3.SQLITE_IOERR:
        return LedgerError(
            f"the ledger {name} cannot be read or written ({detail}). Nothing was released without"
            " its charge; check that its disk is mounted and has space, and start again"
        )
    if code == sqlite3.SQLITE_CANTOPEN:
        return LedgerError(f"the ledger {name} cannot be opened; check its permissions: {detail}")
    return LedgerError(f"the ledger {name} cannot be used: {detail}")


_RETRIED: Final = ("08", "57P0", "55P03", "40", "53300", "53200", "25P03", "57014")
"""SQLSTATEs of temporary errors: lost connections, locks, restarts, too many connections."""
_FINAL: Final = ("authentication failed", "does not exist", "no pg_hba.conf entry")


def _explain_postgres(name: str, error: sa.exc.DBAPIError, detail: str) -> LedgerError:
    state = getattr(error.orig, "sqlstate", None) or ""
    detail = (detail.strip().splitlines() or [type(error.orig).__name__])[0]
    if state == "53100":
        return LedgerError(
            f"the ledger {name} cannot grow: its server's disk is full. Nothing was released"
            " without its charge; free some space and start again"
        )
    if state in ("25006", "42501"):
        return LedgerError(f"the ledger {name} cannot be written: {detail}")
    connecting = isinstance(error, sa.exc.OperationalError) and not state
    if connecting and any(words in str(error.orig) for words in _FINAL):
        return LedgerError(f"the ledger {name} cannot be opened: {detail}")
    if connecting or error.connection_invalidated or state.startswith(_RETRIED):
        return LedgerLostError(f"the ledger {name} does not answer; retrying: {detail}")
    return LedgerError(f"the ledger {name} cannot be used: {detail}")


def now() -> int:
    """Return the current time in microseconds since 1970."""
    return time.time_ns() // 1000
