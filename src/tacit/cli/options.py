"""Options and arguments that several commands share, each defined once.

They are decorators: `@options.sink` gives a command the option `--to SINK`. Where the help text
differs from command to command, they take it: `@options.as_json("Report as JSON.")`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeAlias

import click

from tacit.spec.mechanisms import mechanism_choices

Decorator: TypeAlias = Callable[[Any], Any]

PAST_WINDOWS: Final = (
    "Past windows: a SOURCE as for detect, STREAM=SOURCE for several streams. Repeatable."
)
_ALLOWED_PATHS: Final = "tacit.allow_paths"
_FIELDS: Final = {"plan_file": "plan", "sink": "to", "ledger_place": "ledger"}
"""Options that `RunOptions` calls by another name."""


def file(*names: str, metavar: str = "FILE", help: str, multiple: bool = False) -> Decorator:  # noqa: A002
    """Define an option that names a file."""
    kind = click.Path(path_type=Path, dir_okay=False)
    return click.option(*names, metavar=metavar, type=kind, help=help, multiple=multiple)


def as_json(text: str = "Report as JSON.") -> Decorator:
    """Define `--json`."""
    return click.option("--json", "as_json", is_flag=True, help=text)


def allow_path(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the option `--allow-path`; `allowed_paths` returns its values."""

    def keep(context: click.Context, _: click.Parameter, value: tuple[Path, ...]) -> None:
        context.meta[_ALLOWED_PATHS] = value

    return click.option(
        "--allow-path",
        metavar="DIR",
        type=click.Path(path_type=Path),
        multiple=True,
        expose_value=False,
        callback=keep,
        help="Let the specification name files below DIR too. Repeatable.",
    )(command)


def allowed_paths() -> tuple[Path, ...]:
    """Return the values of `--allow-path`, while the command runs in this thread."""
    context = click.get_current_context(silent=True)
    paths: tuple[Path, ...] = () if context is None else context.meta.get(_ALLOWED_PATHS, ())
    return paths


def log_level(default: str) -> Decorator:
    """Define `--log-level`."""
    return click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        help=f"Minimum log level; by default {default}.",
    )


def ledger(text: str) -> Decorator:
    """Define `--ledger`."""
    return click.option("--ledger", "ledger_place", metavar="LEDGER", help=text)


def as_run(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that describe a run as one `RunOptions`, its first argument."""

    @wraps(command)
    def collect(**values: Any) -> Any:
        from tacit.cli.sources import split_streams
        from tacit.engines.setup import RunOptions

        values = {_FIELDS.get(name, name): value for name, value in values.items()}
        if values.pop("no_ledger", False):
            if values["ledger"] is not None:
                raise click.UsageError("--ledger and --no-ledger cannot be used together")
            values["ledger"] = False
        values |= {"sources": split_streams(values["sources"]), "allow_paths": allowed_paths()}
        names = [field.name for field in fields(RunOptions) if field.name in values]
        return command(RunOptions(**{name: values.pop(name) for name in names}), **values)

    return collect


def name(text: str, metavar: str = "RUN") -> Decorator:
    """Define `--name`."""
    return click.option("--name", metavar=metavar, help=text)


def follow(text: str) -> Decorator:
    """Define `--follow`."""
    return click.option("--follow", is_flag=True, help=text)


def history(text: str = PAST_WINDOWS, *, required: bool = False) -> Decorator:
    """Define `--history`."""
    return click.option("--history", metavar="SOURCE", multiple=True, required=required, help=text)


def plot(text: str) -> Decorator:
    """Define `--plot`."""
    return file("--plot", metavar="PICTURE", help=text)


def metrics(text: str) -> Decorator:
    """Define `--metrics`."""
    return click.option("--metrics", metavar="[HOST:]PORT", help=text)


def pid_file(until: str) -> Decorator:
    """Define `--pid-file`."""
    return file("--pid-file", help=f"Write the process id to this file while {until}.")


def archives(text: str) -> Decorator:
    """Define `--archive`."""
    return file("--archive", "archives", help=f"{text} Repeatable.", multiple=True)


def time(*names: str, required: bool = False, help: str) -> Decorator:  # noqa: A002
    """Define an option whose value is a date or time; the command gets microseconds since 1970."""
    return click.option(*names, metavar="TIME", required=required, callback=_read_time, help=help)


def _read_time(_context: click.Context, _param: click.Parameter, given: str | None) -> int | None:
    """Read a time in microseconds since 1970; a time without a zone is in UTC."""
    if given is None:
        return None
    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        raise click.BadParameter(
            f"expected a date or time, such as 2026-03-01 or 2026-03-01T08:00Z; got {given!r}"
        ) from None
    from tacit.ledger.answers import parse_microseconds

    return parse_microseconds(moment)


spec: Final = click.argument("spec", type=click.Path(path_type=Path))
sources: Final = click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
optional_sources: Final = click.argument("sources", metavar="[SOURCE...]", nargs=-1)
ledger_place: Final = click.argument("place", metavar="LEDGER")
counts_to: Final = click.option(
    "--counts-to",
    metavar="SINK",
    help="Where to write counts, if queries count subjects: .parquet, .csv, .jsonl or .arrow; with"
    " a ledger as for --to.",
)
sink: Final = click.option(
    "--to",
    "sink",
    metavar="SINK",
    default="-",
    show_default=True,
    help="Where to write answers: .parquet, .csv, .jsonl or .arrow; - means JSON lines on standard"
    " output.",
)
dead_letters: Final = file(
    "--dead-letters",
    help="Where to write refused tuples, as JSON lines; by default next to the sink.",
)
subjects: Final = file(
    "--subjects",
    help="A file with the registered subjects, one per line. Overrides the specification.",
)
learn: Final = click.option(
    "--learn",
    metavar="DURATION",
    help="Learn the subjects from the first part of the stream, this long. Overrides the"
    " specification.",
)
seed: Final = click.option(
    "--seed",
    type=click.IntRange(min=0),
    metavar="NUMBER",
    help="Seeded noise, for tests: the answers are NOT PRIVATE.",
)
threads: Final = click.option(
    "--threads",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    help="How many threads insert tuples and draw noise; by default one for each core.",
)
no_ledger: Final = click.option(
    "--no-ledger",
    is_flag=True,
    help="Run without a ledger although private patterns have limits: limits are NOT ENFORCED.",
)
retain: Final = click.option(
    "--retain",
    metavar="DURATION",
    default="7 d",
    show_default=True,
    help="How long the ledger keeps delivered answers. An answer takes about a bit: a million"
    " subjects with 20 queries and one-minute windows fill 15 to 32 GB in 7 days.",
)
fail_if_refused: Final = click.option(
    "--fail-if-refused",
    "allowed",
    metavar="SHARE",
    type=click.FloatRange(0, 1),
    help="Exit with code 11 if more than this share of the tuples was refused, such as 0.5.",
)
plan: Final = file(
    "--plan",
    "plan_file",
    metavar="PLAN",
    help="A plan for this specification, made by tacit plan.",
)
mechanism: Final = click.option(
    "--mechanism",
    type=click.Choice(mechanism_choices()),
    help="The privacy mechanism. Overrides the specification.",
)
log: Final = click.option(
    "--log",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Log format on standard error.",
)
subject: Final = click.option("--subject", metavar="SUBJECT", help="Only this subject.")
private: Final = click.option("--private", metavar="PATTERN", help="Only this private pattern.")
