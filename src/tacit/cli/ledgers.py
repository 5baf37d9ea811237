"""`tacit ledger`: what a ledger says, its answers and charges, and whether it was changed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import click
import pyarrow as pa

from tacit.cli.reporting import iso, working
from tacit.counting import count
from tacit.durations import format_duration
from tacit.errors import LedgerError, SinkError
from tacit.insight.tabular import aligned
from tacit.ledger.answers import COLUMNS, ReleasedAnswers, RunAnswers, Selection
from tacit.ledger.archiving import archive
from tacit.ledger.charges import NANO
from tacit.ledger.ledger import Ledger
from tacit.ledger.rows import SCHEMA, charges
from tacit.ledger.statement import Entry, Horizon, Statement, statement
from tacit.ledger.verifying import Verdict, remember, verify

FAILED = 8
_UNIT = "Epsilon counts for one subject and one private pattern; windows add up."
_SHOWN = 7
"""Horizons of a private pattern that are shown as text."""
_ENTRIES = 20
"""Charges that are shown as text."""
_FAULTS = 20
"""Faults that are shown as text."""


def run_show(place: str, subject: str | None, private: str | None, as_json: bool) -> None:
    """Say what a ledger holds."""
    with Ledger.open(place, read_only=True) as ledger, working("Reading the ledger"):
        told = statement(ledger, subject=subject, private=private)
        name = ledger.name
    if as_json:
        click.echo(json.dumps(_plain(told), indent=2))
    else:
        click.echo("\n".join(_told(name, told)))


def run_export(place: str, target: str, subject: str | None, private: str | None) -> None:
    """Write all charges to a file."""
    from tacit.connectors.opening import open_sink

    rows = 0
    with Ledger.open(place, read_only=True) as ledger, open_sink(target, SCHEMA) as sink:
        for table in charges(ledger, subject=subject, private=private):
            sink.write(table)
            rows += table.num_rows
    click.echo(f"{count(rows, 'charge')} written to {sink.name}", err=True)


def run_answers(
    place: str, selection: Selection, archives: Sequence[Path], target: str, as_json: bool
) -> None:
    """Write released answers again, and say which are no longer kept."""
    from tacit.connectors.opening import open_sink

    rows = releases = 0
    with Ledger.open(place, read_only=True) as ledger:
        released = ReleasedAnswers(ledger, selection, archives)
        runs = released.runs()
        if not archives and runs and all(one.deleted == one.releases for one in runs):
            raise LedgerError("\n".join(_deleted(runs)) + "\nNothing was written.")
        tables = iter(released)
        first = next(tables, None)
        columns = COLUMNS if first is None else first.schema
        with open_sink(target, columns, selection.queries_of(released.asked)) as sink:
            for table in chain([] if first is None else [first], tables):
                _insist_columns(table, columns, target)
                sink.write(table)
                rows += table.num_rows
                releases += 1
    if as_json:
        report = {"answers": rows, "releases": releases, "to": sink.name, "runs": _kept(runs)}
        click.echo(json.dumps(report, indent=2), err=target == "-")
        return
    for line in (*_deleted(runs), *_unmatched(released, rows)):
        click.echo(f"tacit: {line}", err=True)
    written = f"{count(rows, 'answer')} of {count(releases, 'release')} written to {sink.name}"
    click.echo(f"{written}, as they were released", err=True)


def _insist_columns(table: pa.Table, columns: pa.Schema, target: str) -> None:
    """Refuse to put answers with different columns into one file."""
    if target != "-" and table.schema != columns:
        start = table["window_start"][0].as_py()
        raise SinkError(
            f"answers from the window at {start:%Y-%m-%dT%H:%M:%SZ} on have the columns"
            f" {', '.join(table.schema.names)}, those before {', '.join(columns.names)}. Write them"
            " to different files with --run, --from and --until, or as JSON lines to -"
        )


def _deleted(runs: Sequence[RunAnswers]) -> Iterator[str]:
    for one in runs:
        if one.deleted:
            kept = "no answers of this run are kept any more"
            if one.kept_from is not None:
                kept = f"answers are kept from the window at {iso(one.kept_from)} on"
            yield (
                f"run '{one.run}': the answers of {count(one.deleted, 'release')} were deleted when"
                f" their time was over (--retain); {kept}."
            )
        if one.archived:
            yield (
                f"run '{one.run}': the answers of {count(one.archived, 'release')} are in archives;"
                " name them with --archive to have these too."
            )


def _unmatched(released: ReleasedAnswers, rows: int) -> Iterator[str]:
    """Which queries and consumers there are, where nothing was found."""
    if rows == 0 and released.asked:
        yield (
            f"no answer matches. There are answers to {', '.join(sorted(released.asked))}"
            f" for {', '.join(sorted(set(released.asked.values())))}."
        )


def _kept(runs: Sequence[RunAnswers]) -> list[dict[str, Any]]:
    return [
        asdict(one) | {"kept_from": None if one.kept_from is None else iso(one.kept_from)}
        for one in runs
    ]


def run_verify(
    place: str,
    anchors: Mapping[int, str],
    archives: Sequence[Path],
    full: bool,
    as_json: bool,
) -> None:
    """Check a ledger; ends with 8 if anything is not as it was written."""
    with Ledger.open(place, read_only=True) as ledger, working("Verifying the ledger"):
        verdict = verify(ledger, anchors, full=full, archives=archives)
        name = ledger.name
    if verdict.passed:
        try:
            with Ledger.open(place, create=False) as ledger:
                remember(ledger, verdict)
        except LedgerError as error:
            click.echo(f"tacit: what was verified is not remembered: {error}", err=True)
    if as_json:
        click.echo(json.dumps({"passed": verdict.passed} | asdict(verdict), indent=2))
    else:
        click.echo("\n".join(_judged(name, verdict)))
    if not verdict.passed:
        sys.exit(FAILED)


def run_archive(
    place: str, before: int, out: Path | None, undelivered: bool, as_json: bool
) -> None:
    """Move old releases to a file."""
    with Ledger.open(place, create=False) as ledger, working("Archiving"):
        done = archive(ledger, before, out, undelivered=undelivered)
    if as_json:
        click.echo(json.dumps(asdict(done) | {"file": str(done.file)}, indent=2))
        return
    begun = "the file of an attempt that was cut off" if done.resumed else str(done.file)
    click.echo(
        f"Releases {done.first:,} to {done.last:,} with {count(done.charges, 'charge')} moved to"
        f" {begun}. {count(done.settled, 'merged charge')} and all balances stay in the ledger.\n"
        f"Keep {done.file}: its SHA-256 is {done.digest}, and tacit ledger verify --archive"
        " checks it."
    )


def epsilon(amount: int) -> str:
    """An amount of nano-epsilon as people write it.

    >>> epsilon(20_000_000_000), epsilon(1), epsilon(2_500_000_000)
    ('20', '0.000000001', '2.5')
    """
    whole, rest = divmod(amount, NANO)
    return f"{whole}.{rest:09}".rstrip("0").rstrip(".")


def _told(name: str, told: Statement) -> Iterator[str]:
    yield (
        f"Ledger {name} ({told.ledger}), since {iso(told.created)}:"
        f" {count(told.releases, 'release')}, {count(told.answers, 'answer')},"
        f" {count(told.subjects, 'subject')}."
    )
    if told.subject is None:
        yield from _runs(told)
    else:
        yield f"Subject {told.subject}:"
    if told.horizons:
        yield from ("", _UNIT, *_horizons(told))
    else:
        yield "Nothing was charged."
    if told.entries:
        yield from ("", "Charges:", *_entries(told.entries))
    if told.archived:
        archived = f"Releases up to {told.archived:,} are archived; their charges are in balances"
        yield from ("", f"{archived}, and no longer listed one by one.")
    if told.releases:
        yield from ("", f"Release {told.releases} has the hash {told.hash}")


def _runs(told: Statement) -> Iterator[str]:
    rows = [("run", "releases", "windows", "answers", "released until")]
    for run in told.runs:
        until = "" if run.until is None else iso(run.until)
        rows.append((run.run, f"{run.releases:,}", f"{run.windows:,}", f"{run.answers:,}", until))
    if told.runs:
        yield from aligned(rows)


def _horizons(told: Statement) -> Iterator[str]:
    """The last horizons of each private pattern, and what the next one allows."""
    patterns: dict[tuple[str, int], list[Horizon]] = {}
    for horizon in told.horizons:
        patterns.setdefault((horizon.private, horizon.length), []).append(horizon)
    for (private, length), horizons in patterns.items():
        last = horizons[-1]
        limit = "no limit"
        if last.limit is not None:
            limit = f"at most {epsilon(last.limit)} in a horizon of {format_duration(length)}"
        yield from ("", f"{private}: {epsilon(last.amount)} for a window, {limit}")
        yield from aligned([_headings(told), *(_row(told, one) for one in horizons[-_SHOWN:])])
        if len(horizons) > _SHOWN:
            yield f"  and {len(horizons) - _SHOWN:,} before; --json shows all"
        yield f"  {_next(told, last)}"


def _headings(told: Statement) -> tuple[str, ...]:
    if told.subject is not None:
        return ("horizon from", "spent", "left", "exhausted")
    return ("horizon from", "subjects", "most spent", "least left", "exhausted")


def _row(told: Statement, horizon: Horizon) -> tuple[str, ...]:
    left = "no limit" if horizon.left is None else epsilon(horizon.left)
    if told.subject is not None:
        exhausted = "yes" if horizon.exhausted else "no"
        return (iso(horizon.start), epsilon(horizon.spent), left, exhausted)
    numbers = (f"{horizon.subjects:,}", epsilon(horizon.spent), left, f"{horizon.exhausted:,}")
    return (iso(horizon.start), *numbers)


def _next(told: Statement, last: Horizon) -> str:
    if last.limit is None or last.allowed is None:
        return "Every window can be paid for."
    who = "The subject" if told.subject is not None else "Whoever is exhausted"
    allows = f"{epsilon(last.limit)} again, enough for {count(last.allowed, 'window')}"
    if not last.exhausted:
        return f"The next horizon, from {iso(last.end)} on, allows {allows}."
    return (
        f"{who} is answered from public events and the prior alone until {iso(last.end)};"
        f" then there is {allows}."
    )


def _entries(entries: tuple[Entry, ...]) -> Iterator[str]:
    rows = [("private pattern", "first window", "windows", "each", "release", "released at")]
    rows += [
        (
            entry.private,
            iso(entry.first),
            f"{entry.windows:,}",
            epsilon(entry.amount),
            f"{entry.release:,}",
            iso(entry.committed),
        )
        for entry in entries[-_ENTRIES:]
    ]
    yield from aligned(rows)
    if len(entries) > _ENTRIES:
        yield f"  and {len(entries) - _ENTRIES:,} before; --json shows all, export writes all"


def _plain(told: Statement) -> dict[str, Any]:
    """For JSON: times as text, amounts in nano-epsilon."""
    plain = asdict(told) | {"created": iso(told.created)}
    for run in plain["runs"]:
        run["until"] = None if run["until"] is None else iso(run["until"])
    plain["horizons"] = [
        asdict(one)
        | {"start": iso(one.start), "end": iso(one.end), "left": one.left, "allowed": one.allowed}
        for one in told.horizons
    ]
    for entry in plain["entries"]:
        entry |= {"committed": iso(entry["committed"]), "first": iso(entry["first"])}
    return plain


def _judged(name: str, verdict: Verdict) -> Iterator[str]:
    looked = (
        f"{count(verdict.releases, 'release')}, {count(verdict.charges, 'charge')},"
        f" {count(verdict.bodies, 'release')} with answers kept,"
        f" {count(verdict.balances, 'balance')}, {count(verdict.subjects, 'subject')}"
    )
    if verdict.passed:
        yield f"The ledger {name} is as it was written: {looked}."
        if verdict.archived:
            yield f"Releases up to {verdict.archived:,} are archived."
        for path in verdict.archives:
            yield f"The archive {path} is as it was written, and joins the ledger."
        if verdict.since > verdict.archived:
            yield (
                f"Releases up to {verdict.since:,} were verified before; {verdict.sampled:,} of"
                " them were checked again, by lot. --full checks all."
            )
        if verdict.releases:
            yield f"Release {verdict.releases} has the hash {verdict.hash}; note it elsewhere,"
            yield f"and --anchor {verdict.releases}:{verdict.hash} tells later whether it stands."
        return
    yield f"The ledger {name} was CHANGED ({looked} read):"
    for fault in verdict.faults[:_FAULTS]:
        yield f"  {fault}"
    if len(verdict.faults) > _FAULTS:
        yield f"  and {len(verdict.faults) - _FAULTS:,} more; --json shows all"
