"""Charge a million subjects for a window, against one row per subject in the same database.

The time includes finding who can pay, the charge, and the transaction until it is on disk. Before
that, subjects have spent random amounts.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.jobs import Setting, UnequalError
from benchmarks.measuring import race
from benchmarks.report import OURS, Finding, against
from tacit.ledger.charges import Account, Charge
from tacit.ledger.drafts import ReleaseDraft
from tacit.ledger.ledger import Ledger

_SUBJECTS = 1_000_000
_MINUTE, _DAY = 60_000_000, 86_400_000_000
_AMOUNT = 10**9
_LIMIT = 1000 * _AMOUNT
_TARGET = 10
_ROWS, _STATEMENT = "a row for each subject", "one statement over rows"
_NOTE = "the same balances; SQLite, write-ahead, full sync"


Contestant = Callable[[], Callable[[], int]]
"""Charges for a window, and returns a function for the sum of all balances, not timed."""


def charging(setting: Setting) -> Iterator[Finding]:
    """Compare with one row per subject, and with one statement over such rows."""
    subjects = min(_SUBJECTS, setting.scale.events // 20)
    before = np.random.default_rng(7).integers(0, 32, subjects)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=setting.folder)))
        contestants: dict[str, Contestant] = {
            OURS: _ours(stack, folder, before),
            _ROWS: _by_row(stack, folder, before),
            _STATEMENT: _by_statement(stack, folder, before),
        }
        outcomes = race(contestants, setting.rounds, lambda _, total: total())
        totals = {name: charge()() for name, charge in contestants.items()}
    first = {name: outcome.result for name, outcome in outcomes.items()}
    for found in (first, totals):
        if len(set(found.values())) != 1:
            raise UnequalError(f"balances differ: {found}")
    seconds = {name: outcome.spent for name, outcome in outcomes.items()}
    job = f"Charging {subjects:,} subjects for a window"
    yield against(job, seconds, _TARGET, note=_NOTE, only=_ROWS)
    yield against(f"{job}, all in one statement", seconds, None, note=_NOTE, only=_STATEMENT)


def _ours(stack: ExitStack, folder: Path, before: NDArray[np.int64]) -> Contestant:
    """Charge a window in the ledger, with its link of the chain."""
    ledger = stack.enter_context(Ledger.open(str(folder / "ledger.db")))
    lease = ledger.take_over("bench", "specification")
    ids = lease.enrol(pa.array(np.arange(len(before))))
    account = Account("private", _AMOUNT, _LIMIT, _DAY, np.ones(len(before), np.bool_))
    spent = [
        Charge("private", _AMOUNT << bit, 0, _DAY, before >> bit & 1 == 1, _LIMIT)
        for bit in range(5)
    ]
    windows = count(0, _MINUTE)

    def release(start: int, charges: Sequence[Charge]) -> None:
        body = os.urandom(64)
        lease.commit(b"", ReleaseDraft(start, 1, _MINUTE, _MINUTE, "", "", len(ids), body, charges))

    release(next(windows), spent)
    accounts = lease.open_accounts(ids, [account])

    def charge() -> Callable[[], int]:
        start = next(windows)
        release(start, accounts.charge(start, accounts.find_exhausted(start)))
        return lambda: int(accounts.spent(account, start).sum())

    return charge


def _by_row(stack: ExitStack, folder: Path, before: NDArray[np.int64]) -> Contestant:
    connection = _rows(stack, folder / "rows.db", before)
    update = "UPDATE accounts SET spent = spent + ? WHERE subject = ? AND spent + ? <= ?"

    def charge() -> Callable[[], int]:
        connection.execute("BEGIN IMMEDIATE")
        rows = ((_AMOUNT, subject, _AMOUNT, _LIMIT) for subject in range(len(before)))
        connection.executemany(update, rows)
        connection.execute("COMMIT")
        return partial(_total, connection)

    return charge


def _by_statement(stack: ExitStack, folder: Path, before: NDArray[np.int64]) -> Contestant:
    connection = _rows(stack, folder / "statement.db", before)
    update = "UPDATE accounts SET spent = spent + ? WHERE spent + ? <= ?"

    def charge() -> Callable[[], int]:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(update, (_AMOUNT, _AMOUNT, _LIMIT))
        connection.execute("COMMIT")
        return partial(_total, connection)

    return charge


def _rows(stack: ExitStack, path: Path, before: NDArray[np.int64]) -> sqlite3.Connection:
    """Create a table of accounts with one row per subject."""
    connection = sqlite3.connect(path, isolation_level=None)
    stack.callback(connection.close)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE accounts (subject INTEGER PRIMARY KEY, spent INTEGER)")
    connection.execute("BEGIN")
    rows = enumerate((before * _AMOUNT).tolist())
    connection.executemany("INSERT INTO accounts VALUES (?, ?)", rows)
    connection.execute("COMMIT")
    return connection


def _total(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT sum(spent) FROM accounts").fetchone()[0])
