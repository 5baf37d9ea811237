"""The command line: `tacit COMMAND`.

Commands import what they need when they run, so that `tacit --help` stays quick.
"""

from __future__ import annotations

import json
import string
import sys
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from tacit.cli.endings import EXIT_CODES, ending
from tacit.cli.paths import allow_path, allowed_paths
from tacit.masking import exposed

_ARGUMENTS = "tacit.arguments"
_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class _Group(click.Group):
    """Ends every command in the one way that `ending` has, help and wrong usage included."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        given = tuple(args)  # parsing takes them away
        with ending(given):
            context = super().make_context(info_name, args, parent, **extra)
        context.meta[_ARGUMENTS] = given
        return context

    def invoke(self, context: click.Context) -> Any:
        given = context.meta[_ARGUMENTS]
        for warning in exposed(given):
            click.echo(f"tacit: warning: {warning}.", err=True)
        with ending(given):
            return super().invoke(context)


@click.group(cls=_Group, context_settings=_CONTEXT, epilog=EXIT_CODES)
@click.version_option(package_name="tacit")
def main() -> None:
    """Complex event processing that keeps private patterns unsaid.

    \b
    Example:
      tacit explain taxi.yaml
      tacit plan taxi.yaml --history january.parquet -o plan.json
      tacit run taxi.yaml february.parquet --plan plan.json --to answers.parquet
    """


@main.command()
@click.argument("spec", type=click.Path(path_type=Path))
@allow_path
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
def validate(spec: Path, as_json: bool) -> None:
    """Check a specification and report every mistake in it.

    \b
    Example:
      tacit validate examples/taxi.yaml
    """
    from dataclasses import asdict

    from tacit.cli.validating import checked_names
    from tacit.errors import SpecificationError
    from tacit.insight.sharing import shared_attributes, sharing_lines
    from tacit.spec.columntypes import SpecColumns, column_lines
    from tacit.spec.reading import load

    try:
        checked = load(spec, allowed_paths())
        warnings = checked_names(checked, spec)
    except SpecificationError as error:
        if not as_json:
            raise
        mistakes = [
            {"message": m.message, "file": m.file, "line": m.line, "column": m.column}
            for m in error.mistakes
        ]
        click.echo(json.dumps({"valid": False, "mistakes": mistakes}, indent=2))
        sys.exit(3)
    if as_json:
        columns = {
            stream: {one.column: {"type": one.type, "origin": one.origin} for one in found}
            for stream, found in SpecColumns(checked).report().items()
        }
        report = {
            "valid": True,
            "mistakes": [],
            "warnings": warnings,
            "fingerprint": checked.fingerprint,
            "columns": columns,
            "shared_attributes": [asdict(one) for one in shared_attributes(checked)],
        }
        click.echo(json.dumps(report, indent=2))
    else:
        click.echo(f"{spec} is valid: {checked}")
        for line in (*column_lines(SpecColumns(checked)), *sharing_lines(checked)):
            click.echo(line)
        for message in warnings:
            click.echo(f"Warning: {message}.", err=True)


@main.command()
def schema() -> None:
    """Print the JSON Schema of specifications, for editors.

    \b
    Example:
      tacit schema > tacit.schema.json
    """
    from tacit.spec.schema import json_schema

    click.echo(json.dumps(json_schema(), indent=2))


@main.command()
@click.argument("spec", type=click.Path(path_type=Path))
@allow_path
@click.option("--json", "as_json", is_flag=True, help="Explain as JSON.")
def explain(spec: Path, as_json: bool) -> None:
    """Say in plain words what is protected, how well, and what is not.

    What each private pattern's epsilon means as odds, which queries it touches and why, and what
    is promised.

    \b
    Example:
      tacit explain examples/taxi.yaml
    """
    from tacit.cli.explaining import run_explain

    run_explain(spec, as_json)


def _file(*names: str, metavar: str = "FILE", help: str) -> Callable[[Any], Any]:  # noqa: A002
    """An option that names a file."""
    kind = click.Path(path_type=Path, dir_okay=False)
    return click.option(*names, metavar=metavar, type=kind, help=help)


_SINK = click.option(
    "--to",
    "sink",
    metavar="SINK",
    default="-",
    show_default=True,
    help="Where answers go: .parquet, .csv, .jsonl or .arrow; - is JSON lines on standard output.",
)
_DEAD_LETTERS = _file(
    "--dead-letters", help="Where refused tuples go, as JSON lines; by default beside the sink."
)
_SUBJECTS = _file(
    "--subjects",
    help="A file with the registered subjects, one in a line; instead of the specification's.",
)
_FAIL_IF_REFUSED = click.option(
    "--fail-if-refused",
    "allowed",
    metavar="SHARE",
    type=click.FloatRange(0, 1),
    help="End with exit code 11 if more than this share of the tuples was refused, such as 0.5.",
)
_LEARN = click.option(
    "--learn",
    metavar="DURATION",
    help="Learn the subjects from this stretch of the stream; instead of the specification's.",
)
_LOG = click.option(
    "--log",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How to log on standard error.",
)
_PLAN = _file(
    "--plan", "plan_file", metavar="PLAN", help="A plan for this specification, by tacit plan."
)
_MECHANISM = click.option(
    "--mechanism",
    type=click.Choice(["uniform", "adaptive", "optimal", "auto"]),
    help="What makes answers private; instead of the specification's.",
)


@main.command()
@click.argument("spec", type=click.Path(path_type=Path), required=False)
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
def warm(spec: Path | None, as_json: bool) -> None:
    """Compile what runs of a specification need, or any run, before the first one.

    Hot loops are compiled for the machine's processor and kept. A run compiles what is missing
    itself; this moves the wait to another time, such as when an image is built.

    \b
    Examples:
      tacit warm taxi.yaml
      tacit warm
    """
    from tacit.cli.warming import run_warming

    run_warming(spec, as_json)


@main.command()
@click.argument("spec", type=click.Path(path_type=Path))
@allow_path
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@_SINK
@_DEAD_LETTERS
@_SUBJECTS
@_LEARN
@_FAIL_IF_REFUSED
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def detect(
    spec: Path,
    sources: tuple[str, ...],
    sink: str,
    dead_letters: Path | None,
    subjects: Path | None,
    learn: str | None,
    allowed: float | None,
    as_json: bool,
) -> None:
    """Detect patterns: the TRUE, UNPROTECTED answers, for operators alone.

    A SOURCE is a path (.parquet, .csv, .jsonl, .arrow, a folder or a pattern of these), or - for
    JSON lines on standard input; STREAM=SOURCE where the specification has several streams.
    Subjects that no one names are learned: from the whole input, or, if that is a pipe, from its
    first ten windows.

    \b
    Examples:
      tacit detect examples/taxi.yaml trips.parquet --to answers.parquet
      tacit detect home.yaml doors=doors.csv power=power.jsonl --to answers.csv
      zcat trips.jsonl.gz | tacit detect examples/taxi.yaml - > answers.jsonl
    """
    from tacit.cli.detecting import run_detection

    run_detection(spec, sources, sink, dead_letters, subjects, learn, as_json, allowed)


@main.command()
@click.argument("spec", type=click.Path(path_type=Path))
@allow_path
@click.option(
    "--history",
    metavar="SOURCE",
    multiple=True,
    help="Windows of the past, as for detect; STREAM=SOURCE for each of several streams.",
)
@_file("-o", "--out", metavar="PLAN", help="Where the plan goes, as JSON.")
@_MECHANISM
@click.option(
    "--decode",
    type=click.Choice(["posterior", "literal"]),
    help="How noisy events become answers; instead of the specification's.",
)
@_file(
    "--prior",
    help="Instead of history: YAML or JSON that says how likely event types are in a window.",
)
@click.option(
    "--quality",
    metavar="Q",
    help="Look for the least epsilon with which every query reaches this quality; 'declared'"
    " takes the qualities that queries declare.",
)
@_file("--plot", metavar="PICTURE", help="Draw quality against epsilon, as .svg or .png.")
@click.option(
    "--watch", is_flag=True, help="Plan again whenever the specification or its history changes."
)
@click.option(
    "--signal",
    "target",
    metavar="PID|FILE",
    help="After each plan, tell the run in this process to reload; FILE holds its number.",
)
@_FAIL_IF_REFUSED
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
def plan(
    spec: Path,
    history: tuple[str, ...],
    out: Path | None,
    mechanism: str | None,
    decode: str | None,
    prior: Path | None,
    quality: str | None,
    plot: Path | None,
    watch: bool,
    target: str | None,
    allowed: float | None,
    as_json: bool,
) -> None:
    """Plan from history: the best quality for an epsilon, or the least epsilon for a quality.

    Says what precision, recall and quality to expect of every query. The plan and these figures
    are for operators and subjects, not for consumers.

    \b
    Examples:
      tacit plan taxi.yaml --history january.parquet -o plan.json
      tacit plan taxi.yaml --history january.parquet --quality 0.9
      tacit plan home.yaml --history doors=doors.csv --history power=power.csv --plot curve.svg
      tacit plan taxi.yaml --history january.parquet -o plan.json --watch --signal taxi.pid
    """
    from tacit.cli.outcomes import Wish
    from tacit.cli.planning import run_planning, watch_planning

    wish = Wish(mechanism, decode, quality, out, plot, allowed)
    if watch:
        watch_planning(spec, history, prior, wish, as_json, target)
    elif target is not None:
        raise click.UsageError("--signal needs --watch")
    else:
        run_planning(spec, history, prior, wish, as_json)


@main.command()
@click.argument("spec", type=click.Path(path_type=Path))
@allow_path
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@_PLAN
@_SINK
@_MECHANISM
@_DEAD_LETTERS
@_SUBJECTS
@_LEARN
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    metavar="NUMBER",
    help="Noise that can be made again, for tests: the answers are NOT PRIVATE.",
)
@click.option(
    "--ledger",
    "ledger_place",
    metavar="LEDGER",
    help="Where what is spent is charged, and how far the run is: a file, or postgresql://...",
)
@click.option(
    "--no-ledger",
    is_flag=True,
    help="Charge nothing, though private patterns have limits: NOBODY COUNTS what is spent.",
)
@click.option(
    "--name",
    metavar="RUN",
    help="What the run is called in the ledger; by default as the specification's file.",
)
@click.option(
    "--follow",
    is_flag=True,
    help="Go on reading files as they grow, and folders as files are added, until told to stop.",
)
@click.option(
    "--retain",
    metavar="DURATION",
    default="7 d",
    show_default=True,
    help="How long the ledger keeps answers that have arrived.",
)
@click.option(
    "--metrics",
    metavar="[HOST:]PORT",
    help="Serve metrics for Prometheus; to this machine alone unless a HOST is named.",
)
@_LOG
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Log what is at least so grave; by default info for live sources, else warning.",
)
@_file("--pid-file", help="Keep the number of the process in this file while it runs.")
@_FAIL_IF_REFUSED
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def run(
    spec: Path,
    sources: tuple[str, ...],
    plan_file: Path | None,
    sink: str,
    mechanism: str | None,
    dead_letters: Path | None,
    subjects: Path | None,
    learn: str | None,
    seed: int | None,
    ledger_place: str | None,
    no_ledger: bool,
    name: str | None,
    follow: bool,
    retain: str,
    metrics: str | None,
    log: str,
    log_level: str | None,
    pid_file: Path | None,
    allowed: float | None,
    as_json: bool,
) -> None:
    """Answer queries, protected as the specification says, each answer with its confidence.

    A SOURCE is what it is for detect. Every mechanism but uniform needs a plan. The summary on
    standard error is for the operator alone.

    With a ledger every window is released and charged once: a run that was stopped or killed goes
    on where it was, and answers that have not arrived are delivered again, with the same ids.
    SIGTERM stops it cleanly; SIGHUP makes it read the specification and the plan again, which then
    hold from the next window on. Without a ledger, a run over the same windows again draws new
    noise and spends epsilon again.

    \b
    Examples:
      tacit run taxi.yaml february.parquet --plan plan.json --ledger spent.db --to answers.jsonl
      tacit run taxi.yaml february.parquet --mechanism uniform --no-ledger --to answers.csv
      zcat february.jsonl.gz | tacit run taxi.yaml - --plan plan.json > answers.jsonl
    """
    from tacit.cli.operating import Operating
    from tacit.cli.running import run_protected
    from tacit.engines.setup import LedgerOptions

    if ledger_place is not None and no_ledger:
        raise click.UsageError("--ledger and --no-ledger exclude each other")
    place = False if no_ledger else ledger_place
    options = LedgerOptions.of(spec.stem, place, name, follow, retain)
    operating = Operating.of(metrics, log, log_level, pid_file, ledger_place)
    run_protected(
        spec,
        sources,
        plan_file,
        sink,
        mechanism,
        dead_letters,
        subjects,
        learn,
        seed,
        as_json,
        options,
        operating,
        allowed,
    )


@main.command()
@click.argument("spec", type=click.Path(path_type=Path))
@allow_path
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@_PLAN
@click.option(
    "--to",
    "sink",
    metavar="SINK",
    required=True,
    help="Where answers go: a folder such as answers/, a .jsonl or .csv file, or kafka://...",
)
@click.option(
    "--engine",
    type=click.Choice(["flink"]),
    default="flink",
    show_default=True,
    help="The engine that carries the job.",
)
@click.option(
    "--parallelism",
    type=click.IntRange(min=1, max=128),
    default=1,
    show_default=True,
    metavar="NUMBER",
    help="How many tasks work side by side.",
)
@click.option(
    "--cluster",
    metavar="HOST:PORT",
    help="The REST address of a cluster; by default Flink runs inside this command.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Where the job keeps its files; every machine must reach it under the same name."
    " By default NAME.job.",
)
@click.option(
    "--ledger",
    "ledger_place",
    metavar="LEDGER",
    help="Where what is spent is charged: a file, or postgresql://...; by default in the folder.",
)
@click.option(
    "--name",
    metavar="NAME",
    help="What the job and its run in the ledger are called; by default as the specification.",
)
@_MECHANISM
@_SUBJECTS
@click.option("--follow", is_flag=True, help="Go on reading files and folders as they grow.")
@click.option(
    "--idle",
    default="60 s",
    show_default=True,
    metavar="DURATION",
    help="Without a tuple for so long, a source is no longer waited for by the others.",
)
@click.option(
    "--shards",
    type=click.IntRange(min=1, max=4096),
    default=16,
    show_default=True,
    metavar="NUMBER",
    help="Into how many parts subjects are divided, once and for all.",
)
@click.option(
    "--python",
    metavar="PROGRAM",
    help="The Python with Tacit on the cluster's machines; by default as this one is called.",
)
@click.option(
    "--repeats",
    is_flag=True,
    help="Accept a sink where the last release may show twice after a crash, with the same ids.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of Flink's own, such as execution.checkpointing.interval=5s.",
)
@_LOG
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Log what is at least so grave; by default info.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def submit(
    spec: Path,
    sources: tuple[str, ...],
    plan_file: Path | None,
    sink: str,
    engine: str,  # noqa: ARG001 - there is only one yet
    parallelism: int,
    cluster: str | None,
    folder: Path | None,
    ledger_place: str | None,
    name: str | None,
    mechanism: str | None,
    subjects: Path | None,
    follow: bool,
    idle: str,
    shards: int,
    python: str | None,
    repeats: bool,
    settings: tuple[str, ...],
    log: str,
    log_level: str | None,
    as_json: bool,
) -> None:
    """Answer queries on Apache Flink: the same answers as run gives, from many machines.

    Each SOURCE is read by itself, in its own order. Every window is released and charged once,
    whatever is killed on the way; give the same command again to go on. SIGTERM or Ctrl-C stops
    the job with a savepoint, from which it goes on, also with another parallelism. Needs the extra
    tacit[flink] and Java 17.

    \b
    Examples:
      tacit submit taxi.yaml north.parquet south.parquet --plan plan.json --to answers/
      tacit submit taxi.yaml trips/ --plan plan.json --to answers/ --cluster flink:8081 \\
          --parallelism 8 --folder /mnt/shared/taxi.job --ledger postgresql://ledger/tacit
    """
    from tacit.cli.operating import Operating
    from tacit.cli.submitting import Wanted, run_submission

    wanted = Wanted(
        name,
        folder,
        ledger_place,
        parallelism,
        cluster,
        python,
        shards,
        follow,
        idle,
        repeats,
        settings,
    )
    operating = Operating.of(None, log, log_level, None, None)
    run_submission(spec, sources, plan_file, sink, mechanism, subjects, wanted, operating, as_json)


@main.command()
@click.argument("plan_file", metavar="PLAN", type=click.Path(path_type=Path))
@_file(
    "--spec",
    metavar="SPEC",
    help="The specification it must be for; by default the one that is written in the plan.",
)
@allow_path
@click.option("--json", "as_json", is_flag=True, help="Report as JSON, with every channel.")
def audit(plan_file: Path, spec: Path | None, as_json: bool) -> None:
    """Reckon exactly what a plan gives away, against what private patterns allow.

    For every private pattern the true epsilon of the whole pattern and of a single element, as
    certified upper bounds; for every channel its own. Ends with 7 if anything exceeds.

    \b
    Example:
      tacit audit plan.json --spec taxi.yaml
    """
    from tacit.cli.auditing import run_audit

    run_audit(plan_file, spec, as_json)


@main.command()
@click.argument("spec", type=click.Path(path_type=Path))
@allow_path
@click.argument("sources", metavar="[SOURCE...]", nargs=-1)
@_file("--plan", "plan_file", metavar="PLAN", help="The plan that the run is to go by.")
@click.option("--ledger", "ledger_place", metavar="LEDGER", help="The ledger that is to be used.")
@click.option("--to", "sink", metavar="SINK", help="Where answers are to go.")
@click.option("--name", metavar="RUN", help="What the run is called in the ledger.")
@_SUBJECTS
@_DEAD_LETTERS
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
def doctor(
    spec: Path,
    sources: tuple[str, ...],
    plan_file: Path | None,
    ledger_place: str | None,
    sink: str | None,
    name: str | None,
    subjects: Path | None,
    dead_letters: Path | None,
    as_json: bool,
) -> None:
    """Check a set-up before it runs: give what tacit run is to be given.

    The specification, the plan and its audit, sources and brokers, the ledger's last link and the
    run's checkpoint, the registry, the sink, room on the disk, the clock, who may read which file,
    and what must be installed. Nothing is changed, and no run that is under way is disturbed.
    Ends with 1 if anything is wrong; warnings are no reason not to run.

    \b
    Examples:
      tacit doctor taxi.yaml
      tacit doctor taxi.yaml february.parquet --plan plan.json --ledger spent.db --to answers.jsonl
      tacit doctor taxi.yaml 'mqtt://broker/taxis/{taxi}?columns=ts:time,speed:number' --ledger l.db
    """
    from tacit.cli.doctor import run_doctor
    from tacit.engines.setup import letters_beside
    from tacit.insight.doctor import Setup

    letters = dead_letters if sink is None else letters_beside(sink, dead_letters)
    run_doctor(
        Setup(
            spec, sources, plan_file, ledger_place, name, sink, subjects, letters, allowed_paths()
        ),
        as_json,
    )


@main.command()
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default="demo-output",
              show_default=True, help="The folder that everything is written to.")  # fmt: skip
@click.option("--taxis", type=click.IntRange(1, 100_000), default=500, show_default=True,
              help="How many taxis there are.")  # fmt: skip
@click.option("--days", type=click.FloatRange(0.05, 60), default=2.0, show_default=True,
              help="How many days of history there are; the run is over one more.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True,
              help="Another seed gives other trips.")  # fmt: skip
def demo(out: Path, taxis: int, days: float, seed: int) -> None:
    """Show the whole story on generated taxi trips, in about a minute.

    A plan from history, a protected run over another day, what consumers see beside the truth,
    the audit, and a picture of quality against epsilon.

    \b
    Example:
      tacit demo --taxis 1000 --days 7
    """
    from tacit.cli.showing import show

    show(out, taxis, days, seed)


@main.group()
def ledger() -> None:
    """What was released, what it cost, and whether anyone changed it since.

    A LEDGER is a file, or postgresql://USER@HOST/DATABASE. A run may go on meanwhile. None of these
    commands changes what was released or spent; archive moves old releases to a file.

    \b
    Examples:
      tacit ledger show taxi.ledger
      tacit ledger show taxi.ledger --subject 4711
      tacit ledger verify postgresql://tacit@localhost/tacit
    """


_SUBJECT = click.option("--subject", metavar="SUBJECT", help="Only this subject.")
_PRIVATE = click.option("--private", metavar="PATTERN", help="Only this private pattern.")


def _read_anchors(
    _context: click.Context, _param: click.Parameter, given: tuple[str, ...]
) -> dict[int, str]:
    """Numbers of releases and their hashes."""
    anchors = {}
    for text in given:
        number, _, noted = text.partition(":")
        if not number.isdecimal() or len(noted) != 64 or set(noted.lower()) - set(string.hexdigits):
            raise click.BadParameter(f"expected NUMBER:HASH, as verify prints it; got {text!r}")
        anchors[int(number)] = noted.lower()
    return anchors


@ledger.command("show")
@click.argument("place", metavar="LEDGER")
@_SUBJECT
@_PRIVATE
@click.option("--json", "as_json", is_flag=True, help="Report as JSON, amounts in nano-epsilon.")
def show_ledger(place: str, subject: str | None, private: str | None, as_json: bool) -> None:
    """Say who was charged what and when, what is left, and what the next horizon allows.

    \b
    Examples:
      tacit ledger show taxi.ledger
      tacit ledger show taxi.ledger --subject 4711 --private hospital_visit
    """
    from tacit.cli.ledgers import run_show

    run_show(place, subject, private, as_json)


def _read_moment(_context: click.Context, _param: click.Parameter, given: str | None) -> int | None:
    """A time in microseconds since 1970; one without a zone is in UTC."""
    if given is None:
        return None
    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        raise click.BadParameter(
            f"expected a date or time, such as 2026-03-01 or 2026-03-01T08:00Z; got {given!r}"
        ) from None
    from tacit.ledger.answers import microseconds

    return microseconds(moment)


@ledger.command("answers")
@click.argument("place", metavar="LEDGER")
@click.option("--run", "runs", metavar="RUN", multiple=True, help="Only answers of this run.")
@click.option(
    "--consumer", "consumers", metavar="NAME", multiple=True, help="Only answers to this consumer."
)
@click.option(
    "--query", "queries", metavar="NAME", multiple=True, help="Only answers to this query."
)
@click.option(
    "--subject", "subjects", metavar="SUBJECT", multiple=True, help="Only answers about this one."
)
@click.option(
    "--from",
    "since",
    metavar="TIME",
    callback=_read_moment,
    help="Only windows that start at this time or later; UTC unless it has a zone.",
)
@click.option(
    "--until", metavar="TIME", callback=_read_moment, help="Only windows that start before this."
)
@click.option(
    "--archive",
    "archives",
    metavar="FILE",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Answers in this archive of the ledger too; may be given several times.",
)
@_SINK
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
def give_answers(
    place: str,
    runs: tuple[str, ...],
    consumers: tuple[str, ...],
    queries: tuple[str, ...],
    subjects: tuple[str, ...],
    since: int | None,
    until: int | None,
    archives: tuple[Path, ...],
    sink: str,
    as_json: bool,
) -> None:
    """Give released answers again, exactly as they were, for as long as the ledger keeps them.

    No noise is drawn and nothing is charged. --run, --consumer, --query and --subject may each be
    given several times.

    \b
    Examples:
      tacit ledger answers spent.db --run taxi --to answers.csv
      tacit ledger answers spent.db --consumer city --from 2026-03-01 --until 2026-03-02
      tacit ledger answers spent.db --query jam --subject 4711 --to 4711.parquet
    """
    from tacit.cli.ledgers import run_answers
    from tacit.ledger.answers import Selection

    selection = Selection(runs, consumers, queries, subjects, since, until)
    run_answers(place, selection, archives, sink, as_json)


@ledger.command("export")
@click.argument("place", metavar="LEDGER")
@click.option(
    "--to",
    "target",
    metavar="FILE",
    required=True,
    help="Where charges go: .parquet, .csv, .jsonl or .arrow; - is JSON lines on standard output.",
)
@_SUBJECT
@_PRIVATE
def export_ledger(place: str, target: str, subject: str | None, private: str | None) -> None:
    """Write charges as rows: one for each window, subject and private pattern.

    \b
    Examples:
      tacit ledger export taxi.ledger --to charges.parquet
      tacit ledger export taxi.ledger --subject 4711 --to charges.csv
    """
    from tacit.cli.ledgers import run_export

    run_export(place, target, subject, private)


@ledger.command("verify")
@click.argument("place", metavar="LEDGER")
@click.option(
    "--anchor",
    "anchors",
    metavar="NUMBER:HASH",
    multiple=True,
    callback=_read_anchors,
    help="A release and the hash that verify printed for it once; may be given several times.",
)
@click.option(
    "--archive",
    "archives",
    metavar="FILE",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Check this archive too, and that it joins the ledger; may be given several times.",
)
@click.option("--full", is_flag=True, help="Check everything, also what was verified before.")
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
def verify_ledger(
    place: str, anchors: dict[int, str], archives: tuple[Path, ...], full: bool, as_json: bool
) -> None:
    """Check that a ledger is as it was written, and name the first link that is broken.

    The chain of releases and their charges, the answers that are kept, the registry of subjects,
    and that balances are the sum of charges. What was verified is remembered in the ledger: the
    next time only what is new is checked, and a random sample of the rest. Ends with 8 if anything
    was changed.

    \b
    Examples:
      tacit ledger verify taxi.ledger
      tacit ledger verify taxi.ledger --full --archive taxi.ledger.1-44640.archive
    """
    from tacit.cli.ledgers import run_verify

    run_verify(place, anchors, archives, full, as_json)


@ledger.command("archive")
@click.argument("place", metavar="LEDGER")
@click.option(
    "--before",
    metavar="TIME",
    required=True,
    callback=_read_moment,
    help="Archive what ended before this time; UTC unless it has a zone.",
)
@_file("-o", "--out", help="Where it goes; by default LEDGER.FIRST-LAST.archive.")
@click.option(
    "--undelivered",
    is_flag=True,
    help="Archive releases too that were not delivered everywhere: THEY WILL NOT BE DELIVERED.",
)
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
def archive_ledger(
    place: str, before: int, out: Path | None, undelivered: bool, as_json: bool
) -> None:
    """Move old releases to a file, so that a ledger does not grow for ever.

    Releases move whose windows, and the horizons of whose charges, ended before the given time, and
    whose answers were delivered. Balances and limits stay exactly as they are, and the chain goes
    on from there. A run may go on meanwhile. If the command is cut off, give it again.

    \b
    Examples:
      tacit ledger archive taxi.ledger --before 2026-01-01
      tacit ledger archive postgresql://tacit@db/tacit --before 2026-01-01 -o 2025.archive
    """
    from tacit.cli.ledgers import run_archive

    run_archive(place, before, out, undelivered, as_json)


_EPSILONS = Decimal("0.001"), Decimal(50)


def _read_epsilons(
    _context: click.Context, _param: click.Parameter, given: tuple[str, ...]
) -> tuple[Fraction, ...]:
    """All epsilons that were given, one by one or with commas between them, each once."""
    return tuple(sorted({_epsilon(word.strip()) for text in given for word in text.split(",")}))


def _epsilon(word: str) -> Fraction:
    try:
        number = Decimal(word)
    except InvalidOperation:
        raise click.BadParameter(f"epsilon must be a number, such as 1.0; got {word!r}") from None
    if not number.is_finite() or number <= 0:
        raise click.BadParameter(
            f"epsilon must be a finite number greater than 0, such as 1.0; got {word}"
        )
    least, most = _EPSILONS
    if not least <= number <= most:
        raise click.BadParameter(f"epsilon must be between {least} and {most} here; got {word}")
    return Fraction(number)


def _experiment(usual: int, few: str = "") -> Callable[[Any], Any]:
    """The options that all experiments have."""
    options = (
        click.option("--datasets", metavar="NUMBER", type=click.IntRange(1, 100_000),
                     help=f"How many data sets; {usual} if not told{few}."),
        click.option("--seed", metavar="NUMBER", type=click.IntRange(0, 1_000_000_000), default=0,
                     show_default=True, help="Another seed gives other data sets and noise."),
        click.option("--epsilon", "epsilons", metavar="NUMBER,...", multiple=True,
                     callback=_read_epsilons,
                     help="Where to look, for one subject, one private pattern and one window."),
        click.option("--out", metavar="DIRECTORY",
                     type=click.Path(path_type=Path, file_okay=False),
                     help="Where the table, the figure and a report go; a run that was broken off"
                     " goes on from there."),
        click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON."),
    )  # fmt: skip

    def wrap(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return wrap


@main.group()
def reproduce() -> None:
    """Repeat the paper's experiments, with every mechanism and baseline.

    The mean error of each against epsilon, with a band of 95 % confidence, over data sets that
    all of them share. Uses all cores. The noise can be made again by the seed: nothing here is
    meant to be private.

    \b
    Examples:
      tacit reproduce synthetic
      tacit reproduce synthetic --datasets 1000 --out figures
      tacit reproduce taxi --data t-drive/ --epsilon 0.5,1,2
    """


@reproduce.command()
@_experiment(12, ", 10 with --vary")
@click.option(
    "--vary",
    type=click.Choice(["queries", "private", "overlap", "length", "alpha", "history"]),
    help="Vary this, at few epsilons; history plans from a past that is over.",
)
def synthetic(
    datasets: int | None,
    seed: int,
    epsilons: tuple[Fraction, ...],
    out: Path | None,
    as_json: bool,
    vary: str | None,
) -> None:
    """Algorithm 2: events that occur independently, and patterns of three.

    \b
    Examples:
      tacit reproduce synthetic --datasets 1000 --out synthetic
      tacit reproduce synthetic --vary overlap --epsilon 2 --out overlap
    """
    from tacit.cli.reproducing import reproduce_synthetic

    reproduce_synthetic(epsilons, vary, seed, datasets or (10 if vary else 12), out, as_json)


@reproduce.command()
@_experiment(10)
@click.option(
    "--data",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="T-Drive: the folder of its text files, or Parquet; without it trips are generated.",
)
@click.option("--heard", is_flag=True, help="Leave out windows in which a taxi is silent.")
def taxi(
    datasets: int | None,
    seed: int,
    epsilons: tuple[Fraction, ...],
    out: Path | None,
    as_json: bool,
    data: Path | None,
    heard: bool,
) -> None:
    """Taxis on a grid: some cells are private, some are asked for.

    \b
    Examples:
      tacit reproduce taxi
      tacit reproduce taxi --data t-drive/ --out taxi
    """
    from tacit.cli.reproducing import reproduce_taxi

    reproduce_taxi(epsilons, data, heard, seed, datasets or 10, out, as_json)


@reproduce.command()
@_experiment(8)
def home(
    datasets: int | None,
    seed: int,
    epsilons: tuple[Fraction, ...],
    out: Path | None,
    as_json: bool,
) -> None:
    """Smart homes through the engine, with ordered patterns; the three mechanisms alone.

    \b
    Example:
      tacit reproduce home --out home
    """
    from tacit.cli.reproducing import reproduce_home

    reproduce_home(epsilons, seed, datasets or 8, out, as_json)
