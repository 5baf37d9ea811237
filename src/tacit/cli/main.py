"""The command line: `tacit COMMAND`.

Commands import what they need when they run, so that `tacit --help` stays quick.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from tacit.cli.endings import EXIT_CODES, ending

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class _Group(click.Group):
    def invoke(self, context: click.Context) -> Any:
        with ending():
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
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
def validate(spec: Path, as_json: bool) -> None:
    """Check a specification and report every mistake in it.

    \b
    Example:
      tacit validate examples/taxi.yaml
    """
    from tacit.errors import SpecificationError
    from tacit.spec.reading import load

    try:
        checked = load(spec)
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
        report = {"valid": True, "mistakes": [], "fingerprint": checked.fingerprint}
        click.echo(json.dumps(report, indent=2))
    else:
        click.echo(f"{spec} is right: {checked}")


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
_LEARN = click.option(
    "--learn",
    metavar="DURATION",
    help="Learn the subjects from this stretch of the stream; instead of the specification's.",
)
_MECHANISM = click.option(
    "--mechanism",
    type=click.Choice(["uniform", "adaptive", "optimal", "auto"]),
    help="What makes answers private; instead of the specification's.",
)


@main.command()
@click.argument("spec", type=click.Path(path_type=Path))
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@_SINK
@_DEAD_LETTERS
@_SUBJECTS
@_LEARN
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def detect(
    spec: Path,
    sources: tuple[str, ...],
    sink: str,
    dead_letters: Path | None,
    subjects: Path | None,
    learn: str | None,
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

    run_detection(spec, sources, sink, dead_letters, subjects, learn, as_json)


@main.command()
@click.argument("spec", type=click.Path(path_type=Path))
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
    """
    from tacit.cli.outcomes import Wish
    from tacit.cli.planning import run_planning

    run_planning(spec, history, prior, Wish(mechanism, decode, quality, out, plot), as_json)


@main.command()
@click.argument("spec", type=click.Path(path_type=Path))
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@_file("--plan", "plan_file", metavar="PLAN", help="A plan for this specification, by tacit plan.")
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
    as_json: bool,
) -> None:
    """Answer queries, protected as the specification says, each answer with its confidence.

    A SOURCE is what it is for detect. Every mechanism but uniform needs a plan. A run over the
    same windows again draws new noise and spends epsilon again. The summary on standard error is
    for the operator alone.

    \b
    Examples:
      tacit run taxi.yaml february.parquet --plan plan.json --to answers.parquet
      tacit run taxi.yaml february.parquet --mechanism uniform --to answers.csv
      zcat february.jsonl.gz | tacit run taxi.yaml - --plan plan.json > answers.jsonl
    """
    from tacit.cli.running import run_protected

    run_protected(
        spec, sources, plan_file, sink, mechanism, dead_letters, subjects, learn, seed, as_json
    )


@main.command()
@click.argument("plan_file", metavar="PLAN", type=click.Path(path_type=Path))
@_file(
    "--spec",
    metavar="SPEC",
    help="The specification it must be for; by default the one that is written in the plan.",
)
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
