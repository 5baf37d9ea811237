"""`tacit ledger show`: who was charged what."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tacit.cli import options
from tacit.cli.progress import show_spinner
from tacit.durations import format_duration
from tacit.errors import OptionError
from tacit.insight.tabular import align
from tacit.pipeline.times import format_time
from tacit.privacy.exponentials import format_epsilon
from tacit.quantities import count

if TYPE_CHECKING:
    from tacit.ledger.statement import Entry, Horizon, Statement

_UNIT: Final = (
    "Epsilon is for one subject and one private pattern, summed over windows. Horizons are in each"
    " subject's\nlocal time. Windows asked cost something, free ones revealed nothing and cost"
    " nothing."
)
_SHOWN: Final = 7
"""Horizons of a private pattern that are shown as text."""
_ENTRIES: Final = 20
"""Charges that are shown as text."""


@click.command("show")
@options.ledger_place
@options.subject
@options.private
@options.plot(
    "Draw what was spent in each horizon, as .svg, .png or .pdf. With --subject, draw a day: "
    "what was spent, which windows were paid for, answered from memory, and free."
)
@click.option("--day", metavar="DATE", help="With --subject and --plot: the day, such as"
              " 2026-03-01. Default: the last one.")  # fmt: skip
@options.as_json("Report as JSON, amounts in nano-epsilon.")
def show_ledger(
    place: str,
    subject: str | None,
    private: str | None,
    plot: Path | None,
    day: str | None,
    as_json: bool,
) -> None:
    """Show who was charged what and when, and what is left.

    Also shows what the next horizon allows.

    \b
    Examples:
      tacit ledger show taxi.ledger
      tacit ledger show taxi.ledger --subject 4711 --private hospital_visit
      tacit ledger show taxi.ledger --subject 4711 --plot day.svg --day 2026-03-01
    """
    from tacit.ledger.ledger import Ledger
    from tacit.ledger.statement import read_statement
    from tacit.pictures import check_picture

    if plot is not None:
        if subject is None and day is not None:
            raise OptionError("--day draws the day of one subject: give --subject SUBJECT")
        check_picture(plot)
    elif day is not None:
        raise OptionError("--day needs --plot")

    with Ledger.open(place, read_only=True) as ledger, show_spinner("Reading the ledger"):
        found = read_statement(ledger, subject=subject, private=private)
        name = ledger.name
    if plot is not None:
        found.plot(plot, day=day)
    if as_json:
        click.echo(json.dumps(_to_dict(found), indent=2))
    else:
        click.echo("\n".join(_format_statement(name, found)))


def _format_amount(amount: int) -> str:
    """Format an amount of nano-epsilon as a decimal number."""
    from tacit.privacy.prices import NANO

    return format_epsilon(Fraction(amount, NANO))


def _format_statement(name: str, statement: Statement) -> Iterator[str]:
    yield (
        f"Ledger {name} ({statement.ledger}), since {format_time(statement.created)}:"
        f" {count(statement.releases, 'release')}, {count(statement.answers, 'answer')},"
        f" {count(statement.subjects, 'subject')}."
    )
    if statement.subject is None:
        yield from _format_runs(statement)
    else:
        yield f"Subject {statement.subject}:"
    if statement.horizons:
        yield from ("", _UNIT, *_format_horizons(statement))
    else:
        yield "Nothing was charged."
    if statement.entries:
        yield from ("", "Charges:", *_format_entries(statement.entries))
    if statement.unpaid:
        yield from ("", *_format_unpaid(statement))
    if statement.archived:
        archived = (
            f"Releases up to {statement.archived:,} are archived: balances include their charges,"
        )
        yield from ("", f"{archived} but they are not listed.")
    if statement.releases:
        yield from ("", f"Release {statement.releases} has the hash {statement.hash}")


def _format_runs(statement: Statement) -> Iterator[str]:
    rows = [("run", "releases", "windows", "answers", "released until")]
    for run in statement.runs:
        until = "" if run.until is None else format_time(run.until)
        rows.append((run.run, f"{run.releases:,}", f"{run.windows:,}", f"{run.answers:,}", until))
    if statement.runs:
        yield from align(rows)


def _format_horizons(statement: Statement) -> Iterator[str]:
    """Format the last horizons of each private pattern, and what the next one allows."""
    patterns: dict[tuple[str, int], list[Horizon]] = {}
    for horizon in statement.horizons:
        patterns.setdefault((horizon.private, horizon.length), []).append(horizon)
    for (private, length), horizons in patterns.items():
        last = horizons[-1]
        limit = "no limit"
        if last.limit is not None:
            limit = (
                f"at most {_format_amount(last.limit)} in a horizon of {format_duration(length)}"
            )
        cost = f"{_format_amount(last.amount)} for a window" if last.amount else "nothing charged"
        yield from ("", f"{private}: {cost}, {limit}")
        yield from align(
            [
                _list_headings(statement),
                *(_format_horizon(statement, one) for one in horizons[-_SHOWN:]),
            ]
        )
        if len(horizons) > _SHOWN:
            yield f"  and {len(horizons) - _SHOWN:,} earlier; --json shows all"
        yield f"  {_format_next(statement, last)}"


def _list_headings(statement: Statement) -> tuple[str, ...]:
    if statement.subject is not None:
        return ("horizon from", "asked", "free", "spent", "left", "exhausted")
    return ("horizon from", "subjects", "asked", "free", "most spent", "least left", "exhausted")


def _format_horizon(statement: Statement, horizon: Horizon) -> tuple[str, ...]:
    left = "no limit" if horizon.left is None else _format_amount(horizon.left)
    if statement.subject is not None:
        exhausted = "yes" if horizon.exhausted else "no"
        windows = (f"{horizon.asked:,}", f"{horizon.free:,}")
        spent = _format_amount(horizon.spent)
        return (_format_local(horizon.start), *windows, spent, left, exhausted)
    numbers = (
        f"{horizon.subjects:,}",
        f"{horizon.asked:,}",
        f"{horizon.free:,}",
        _format_amount(horizon.spent),
        left,
        f"{horizon.exhausted:,}",
    )
    return (_format_local(horizon.start), *numbers)


def _format_local(moment: int) -> str:
    """Format the start of a horizon, which is in the local time of each subject."""
    return format_time(moment).removesuffix("Z")


def _format_next(statement: Statement, last: Horizon) -> str:
    if last.limit is None:
        return "There is no limit."
    limit = f"{_format_amount(last.limit)} again"
    if last.allowed is not None:
        limit += f", enough for {count(last.allowed, 'window')} of this cost"
    if not last.exhausted:
        return f"The next horizon, from {_format_local(last.end)} on, allows {limit}."
    who = "The subject gets" if statement.subject is not None else "Exhausted subjects get"
    return (
        f"{who} answers from public events and what was known before, until"
        f" {_format_local(last.end)}."
        f" The next horizon allows {limit}."
    )


def _format_entries(entries: tuple[Entry, ...]) -> Iterator[str]:
    rows = [("private pattern", "first window", "windows", "each", "release", "released at")]
    rows += [
        (
            entry.private,
            format_time(entry.first),
            f"{entry.windows:,}",
            _format_amount(entry.amount),
            f"{entry.release:,}",
            format_time(entry.committed),
        )
        for entry in entries[-_ENTRIES:]
    ]
    yield from align(rows)
    if len(entries) > _ENTRIES:
        yield f"  and {len(entries) - _ENTRIES:,} earlier; --json shows all, export writes all"


def _format_unpaid(statement: Statement) -> Iterator[str]:
    numbers: dict[str, int] = {}
    for one in statement.unpaid:
        numbers[one.private] = numbers.get(one.private, 0) + one.windows
    listed = ", ".join(f"{count(n, 'window')} for {private}" for private, n in numbers.items())
    yield (
        f"Not paid for: {listed}. A limit was reached, or saved for later; answers came from public"
    )
    yield "events and what was known before."


def _to_dict(statement: Statement) -> dict[str, Any]:
    """Return the fields for JSON: times as text, amounts in nano-epsilon."""
    plain = asdict(statement) | {"created": format_time(statement.created)}
    for run in plain["runs"]:
        run["until"] = None if run["until"] is None else format_time(run["until"])
    plain["horizons"] = [
        asdict(one)
        | {
            "start": _format_local(one.start),
            "end": _format_local(one.end),
            "left": one.left,
            "allowed": one.allowed,
        }
        for one in statement.horizons
    ]
    for unpaid in plain["unpaid"]:
        unpaid["first"] = format_time(unpaid["first"])
    for entry in plain["entries"]:
        entry |= {
            "committed": format_time(entry["committed"]),
            "first": format_time(entry["first"]),
        }
    return plain
