"""Reports on a ledger and its archives, from Python; a run may go on meanwhile."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import pyarrow as pa

from tacit.connectors.openers import open_sink
from tacit.ledger.answers import parse_microseconds
from tacit.ledger.archival import ArchiveResult, archive
from tacit.ledger.ledger import Ledger
from tacit.ledger.rows import SCHEMA, iterate_rows
from tacit.ledger.statement import Statement, read_statement
from tacit.ledger.verification import Verdict, verify


def show_ledger(
    ledger: str | os.PathLike[str], *, subject: str | None = None, private: str | None = None
) -> Statement:
    """Who was charged what and when, and what is left; of one subject or private pattern alone."""
    with Ledger.open(os.fspath(ledger), read_only=True) as opened:
        return read_statement(opened, subject=subject, private=private)


def export_ledger(
    ledger: str | os.PathLike[str],
    *,
    to: str | os.PathLike[str] | None = None,
    subject: str | None = None,
    private: str | None = None,
) -> pa.Table | None:
    """Charges as rows, one for each window, subject and private pattern; written to `to` if given.

    Without `to` they come back as an Arrow table.
    """
    with Ledger.open(os.fspath(ledger), read_only=True) as opened:
        tables = iterate_rows(opened, subject=subject, private=private)
        if to is None:
            return pa.concat_tables([SCHEMA.empty_table(), *tables])
        with open_sink(to, SCHEMA) as sink:
            for table in tables:
                sink.write(table)
    return None


def verify_ledger(
    ledger: str | os.PathLike[str],
    *,
    anchors: Mapping[int, str] | None = None,
    archives: Sequence[str | os.PathLike[str]] = (),
    full: bool = False,
) -> Verdict:
    """Whether a ledger is as it was written; `passed` says so, `faults` names what was changed.

    `anchors` are numbers of releases with the hashes that an earlier verification gave; `archives`
    are files of `archive_ledger` to be checked too. What `tacit ledger verify` has verified before
    is not checked again, except for a sample, unless `full` is true.
    """
    files = [Path(path) for path in archives]
    with Ledger.open(os.fspath(ledger), read_only=True) as opened:
        return verify(opened, anchors or {}, full=full, archives=files)


def archive_ledger(
    ledger: str | os.PathLike[str],
    *,
    before: str | datetime,
    out: str | os.PathLike[str] | None = None,
    undelivered: bool = False,
) -> ArchiveResult:
    """Move releases that ended before a time to a file; balances and limits stay as they are.

    A time without a zone is in UTC. Releases that were not delivered everywhere, and all after
    them, stay, unless `undelivered` is true: then they will not be delivered.
    """
    file = None if out is None else Path(out)
    with Ledger.open(os.fspath(ledger), create=False) as opened:
        return archive(opened, parse_microseconds(before), file, undelivered=undelivered)
