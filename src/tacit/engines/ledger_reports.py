"""Python functions that report on a ledger and its archives; a run may use it meanwhile."""

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
    """Read the charges and balances of a ledger, of one subject, or of one private pattern."""
    with Ledger.open(os.fspath(ledger), read_only=True) as opened:
        return read_statement(opened, subject=subject, private=private)


def export_ledger(
    ledger: str | os.PathLike[str],
    *,
    to: str | os.PathLike[str] | None = None,
    subject: str | None = None,
    private: str | None = None,
) -> pa.Table | None:
    """Export charges as rows, one for each window, subject and private pattern.

    They are written to `to`, or returned as an Arrow table without it.
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
    """Verify that a ledger is unchanged; see `passed` and `faults` of the result.

    `anchors` are numbers of releases with the hashes from an earlier verification; `archives` are
    files of `archive_ledger` to check as well. What `tacit ledger verify` has verified before is
    not checked again, except for a sample, unless `full` is true.
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

    A time without a zone is in UTC. Releases that some sink does not have, and all after them,
    stay, unless `undelivered` is true: then they are never delivered.
    """
    file = None if out is None else Path(out)
    with Ledger.open(os.fspath(ledger), create=False) as opened:
        return archive(opened, parse_microseconds(before), file, undelivered=undelivered)
