"""`tacit reproduce`: the paper's experiments, with every mechanism and baseline."""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from tacit.cli import options
from tacit.cli.progress import show_data_sets, show_spinner
from tacit.errors import translate_write_errors
from tacit.quantities import count

if TYPE_CHECKING:
    import polars as pl

    from tacit.evaluation.experiments import Experiment, ExperimentOutcome
    from tacit.evaluation.tdrive import TaxiPart

_LEAST: Final = Decimal("0.001")
_MOST: Final = Decimal(50)
"""The largest `--epsilon` for one window."""


def _read_epsilons(given: tuple[str, ...], most: Decimal) -> tuple[Fraction, ...]:
    """Read epsilons, given one by one or separated by commas; duplicates are dropped."""
    words = (word.strip() for text in given for word in text.split(","))
    return tuple(sorted({_read_epsilon(word, most) for word in words}))


def _read_epsilon(word: str, most: Decimal) -> Fraction:
    try:
        number = Decimal(word)
    except InvalidOperation:
        raise click.BadParameter(f"epsilon must be a number, such as 1.0; got {word!r}") from None
    if not number.is_finite() or number <= 0:
        raise click.BadParameter(
            f"epsilon must be a finite number greater than 0, such as 1.0; got {word}"
        )
    if not _LEAST <= number <= most:
        raise click.BadParameter(f"epsilon must be between {_LEAST} and {most} here; got {word}")
    return Fraction(number)


def _experiment(
    default: str, period: str = "one window", most: Decimal = _MOST
) -> options.Decorator:
    """Define the options that all experiments have; `default` is that of `--datasets`."""
    shared = (
        click.option("--datasets", metavar="NUMBER", type=click.IntRange(1, 100_000),
                     help=f"Number of data sets; by default {default}."),
        click.option("--seed", metavar="NUMBER", type=click.IntRange(0, 1_000_000_000), default=0,
                     show_default=True, help="Seed of the data sets and of the noise."),
        click.option("--epsilon", "epsilons", metavar="NUMBER,...", multiple=True,
                     callback=lambda _context, _param, given: _read_epsilons(given, most),
                     help="Values of epsilon, for one subject, one private pattern and"
                     f" {period}. Repeatable."),
        click.option("--out", metavar="DIRECTORY",
                     type=click.Path(path_type=Path, file_okay=False),
                     help="Where to write the table, the figure and a report. The same command"
                     " resumes an interrupted experiment from there."),
        options.as_json("Print the rows as JSON."),
    )  # fmt: skip

    def wrap(command: Any) -> Any:
        for option in reversed(shared):
            command = option(command)
        return command

    return wrap


@click.group()
def reproduce() -> None:
    """Repeat the paper's experiments.

    Shows the mean error of every mechanism and baseline against epsilon, with 95 % confidence
    intervals. All methods use the same data sets. Uses all cores. The noise is seeded, so nothing
    here is private.

    \b
    Examples:
      tacit reproduce synthetic
      tacit reproduce synthetic --datasets 1000 --out figures
      tacit reproduce taxi --data t-drive/ --epsilon 0.5,1,2
      tacit reproduce day
    """


_compare = click.option(
    "--compare",
    type=click.Choice(["main", "fair", "ablation"]),
    default="main",
    show_default=True,
    help="Which methods: the baselines as published; variants that grant them what Tacit has;"
    " or what each part of Tacit adds.",
)
_data = click.option(
    "--data",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="T-Drive, as the folder of its text files or as Parquet; by default trips are generated.",
)
_taxis = click.option(
    "--taxis",
    type=click.Choice(["all", "tuning", "test"]),
    default="all",
    show_default=True,
    help="Which taxis of T-Drive: those on which parameters were tuned, the others, or all.",
)


_method = options.file(
    "--method",
    "own",
    metavar="FILE.py",
    help="A Python file with methods of your own, in a list METHODS; it is run.",
)


@reproduce.command()
@_experiment("12, or 10 with --vary")
@_compare
@_method
@click.option(
    "--vary",
    type=click.Choice(["queries", "private", "overlap", "length", "alpha", "history"]),
    help="Vary this parameter, at a few epsilons; history: plan from outdated history.",
)
def synthetic(
    datasets: int | None,
    seed: int,
    epsilons: tuple[Fraction, ...],
    out: Path | None,
    as_json: bool,
    vary: str | None,
    compare: str,
    own: Path | None,
) -> None:
    """Algorithm 2: independent events, and patterns of three of them.

    \b
    Examples:
      tacit reproduce synthetic --datasets 1000 --out synthetic
      tacit reproduce synthetic --vary overlap --epsilon 2 --out overlap
      tacit reproduce synthetic --method mine.py --epsilon 1,2
    """
    if vary and compare != "main":
        raise click.UsageError("--vary and --compare cannot be combined")
    number = datasets or (10 if vary else 12)
    reproduce_synthetic(epsilons, vary, compare, own, seed, number, out, as_json)


@reproduce.command()
@_experiment("10")
@_data
@_taxis
@_compare
@_method
@click.option("--heard", is_flag=True, help="Leave out windows in which a taxi sent no report.")
def taxi(
    datasets: int | None,
    seed: int,
    epsilons: tuple[Fraction, ...],
    out: Path | None,
    as_json: bool,
    data: Path | None,
    taxis: TaxiPart,
    compare: str,
    own: Path | None,
    heard: bool,
) -> None:
    """Taxis on a grid: some cells are private, some are queried.

    \b
    Examples:
      tacit reproduce taxi
      tacit reproduce taxi --data t-drive/ --out taxi
    """
    reproduce_taxi(epsilons, data, taxis, compare, own, heard, seed, datasets or 10, out, as_json)


@reproduce.command()
@_experiment("8")
def home(
    datasets: int | None,
    seed: int,
    epsilons: tuple[Fraction, ...],
    out: Path | None,
    as_json: bool,
) -> None:
    """Smart homes with ordered patterns, through the engine.

    Compares only the mechanisms: the baselines cannot handle ordered patterns.

    \b
    Example:
      tacit reproduce home --out home
    """
    reproduce_home(epsilons, seed, datasets or 8, out, as_json)


@reproduce.command()
@_experiment("6", "one day", Decimal(1000))
@_data
@_taxis
@click.option("--homes", is_flag=True, help="Use generated smart homes instead of taxis.")
def day(
    datasets: int | None,
    seed: int,
    epsilons: tuple[Fraction, ...],
    out: Path | None,
    as_json: bool,
    data: Path | None,
    taxis: TaxiPart,
    homes: bool,
) -> None:
    """Error against epsilon per day, for all mechanisms.

    Everyone has the same epsilon per day. The w-event baselines have w = a day of windows; ours
    divide a limit per day among windows.

    \b
    Examples:
      tacit reproduce day
      tacit reproduce day --data t-drive/ --taxis test --out day
      tacit reproduce day --homes
    """
    if homes and data is not None:
        raise click.UsageError("--homes and --data cannot be combined")
    reproduce_day(epsilons, data, taxis, homes, seed, datasets or 6, out, as_json)


@reproduce.command()
@click.option("--seed", metavar="NUMBER", type=click.IntRange(0, 1_000_000_000), default=0,
              show_default=True, help="Seed of the trips and of the noise.")  # fmt: skip
@click.option("--subjects", metavar="NUMBER,...", default="500,5000,50000", show_default=True,
              help="Numbers of generated taxis.")  # fmt: skip
@click.option("--repeats", metavar="NUMBER", type=click.IntRange(1, 10_000), default=20,
              show_default=True, help="How often noise is drawn.")  # fmt: skip
@options.file("--data", help="T-Drive as a Parquet file: compare on it too.")
@click.option("--out", metavar="FOLDER", type=click.Path(path_type=Path, file_okay=False),
              help="Write table.csv and the figure to this folder.")  # fmt: skip
@options.as_json("Print the rows as JSON on standard output.")
def counts(
    seed: int, subjects: str, repeats: int, data: Path | None, out: Path | None, as_json: bool
) -> None:
    """Error of counts over a day, against FAST, PeGaSus and RescueDP.

    Everyone has the same epsilon per day for every subject.

    \b
    Examples:
      tacit reproduce counts
      tacit reproduce counts --subjects 500,50000 --data tdrive.parquet --out counts
    """
    try:
        sizes = tuple(int(word) for word in subjects.split(","))
    except ValueError:
        sizes = (0,)
    if not all(1 <= size <= 100_000 for size in sizes):
        raise click.UsageError(
            f"--subjects: expected numbers from 1 to 100000, such as 500,5000; got {subjects}"
        )
    reproduce_counts(sizes, data, seed, repeats, out, as_json)


def reproduce_counts(
    subjects: tuple[int, ...],
    data: Path | None,
    seed: int,
    repeats: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Compare counts over a day, on generated trips and, if `data` is given, on T-Drive."""
    from tacit.evaluation.count_days import (
        compare_counts,
        draw_counts,
        generate_series,
        read_tdrive,
    )
    from tacit.insight.tabular import align
    from tacit.pictures import SUFFIXES, make_picture

    if out is not None:
        with translate_write_errors(out):
            out.mkdir(parents=True, exist_ok=True)
    with show_spinner("Counting ..."):
        # Three days are history, two are released.
        series = [one for size in subjects for one in generate_series(size, 3, 2, seed)]
        if data is not None:
            series.append(read_tdrive(data))
        frame = compare_counts(series, repeats=repeats, seed=seed)
    if out is not None:
        with translate_write_errors(out):
            frame.write_csv(out / "table.csv")
        for suffix in SUFFIXES:
            make_picture(lambda: draw_counts(frame), out / f"figure{suffix}")
    if as_json:
        click.echo(json.dumps(frame.to_dicts(), indent=2))
        return
    rows = [tuple(map(str, row)) for row in frame.rows()]
    click.echo("\n".join(align([tuple(frame.columns), *rows])))
    if out is not None:
        click.echo(f"Written to {out}: table.csv, figure.svg, .png and .pdf.")


def reproduce_synthetic(
    epsilons: tuple[Fraction, ...], vary: str | None, compare: str, own: Path | None, seed: int,
    datasets: int, out: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Run the experiment on data of Algorithm 2, or a variation of it."""
    from tacit.evaluation.experiments import EPSILONS, VARIED_EPSILONS, Synthetic

    some = epsilons or (EPSILONS if vary is None else VARIED_EPSILONS)
    flags = [*([] if vary is None else ["--vary", vary]), *_flag("--compare", compare, "main")]
    flags += _name_own(own)
    _perform(Synthetic(some, seed, vary, compare, own), datasets, out, as_json, flags)


def reproduce_taxi(
    epsilons: tuple[Fraction, ...], data: Path | None, part: TaxiPart, compare: str,
    own: Path | None, heard: bool, seed: int, datasets: int, out: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Run the experiment on T-Drive if `data` is given, else on generated trips."""
    from tacit.evaluation.experiments import EPSILONS, Taxi

    reports, flags = _read_reports(data, part)
    flags += [*_flag("--compare", compare, "main"), *(["--heard"] if heard else [])]
    flags += _name_own(own)
    experiment = Taxi(
        epsilons or EPSILONS, seed, reports, heard, compare=compare, part=part, own=own
    )
    _perform(experiment, datasets, out, as_json, flags)


def reproduce_day(
    epsilons: tuple[Fraction, ...], data: Path | None, part: TaxiPart, homes: bool, seed: int,
    datasets: int, out: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Run the experiment over a day on T-Drive, generated trips or smart homes."""
    from tacit.evaluation.days import DAY_EPSILONS, DayExperiment

    some = epsilons or DAY_EPSILONS
    if homes:
        _perform(DayExperiment("homes", some, seed), datasets, out, as_json, ["--homes"])
        return
    reports, flags = _read_reports(data, part)
    source: Literal["t-drive", "trips"] = "trips" if reports is None else "t-drive"
    _perform(DayExperiment(source, some, seed, reports, part), datasets, out, as_json, flags)


def _read_reports(data: Path | None, part: TaxiPart) -> tuple[pl.DataFrame | None, list[str]]:
    """Read T-Drive, if it is given; also return the options of the command."""
    from tacit.evaluation.tdrive import read_tdrive

    if data is None:
        if part != "all":
            raise click.UsageError("--taxis needs --data: generated trips are not divided")
        click.echo("No --data given: using generated trips, not T-Drive.", err=True)
        return None, []
    with show_spinner("Reading T-Drive ..."):
        found = read_tdrive(data)
    click.echo(f"T-Drive: {found}", err=True)
    return found.reports, ["--data", "T-DRIVE", *_flag("--taxis", part, "all")]


def _name_own(own: Path | None) -> list[str]:
    """Return the option for a file of methods, without its folder."""
    return [] if own is None else ["--method", own.name]


def _flag(name: str, value: str, default: str) -> list[str]:
    return [] if value == default else [name, value]


def reproduce_home(
    epsilons: tuple[Fraction, ...], seed: int, datasets: int, out: Path | None, as_json: bool
) -> None:
    """Run the experiment on generated smart homes, through the engine."""
    from tacit.evaluation.experiments import EPSILONS, Home

    _perform(Home(epsilons or EPSILONS, seed), datasets, out, as_json, [])


def _perform(
    experiment: Experiment, datasets: int, out: Path | None, as_json: bool, flags: list[str]
) -> None:
    from tacit.evaluation.experiments import open_results, perform
    from tacit.pictures import check_picture

    if out is not None:
        check_picture(out / "figure.svg")
    kept = open_results(experiment, out, datasets)
    if kept.done and len(kept.done) < datasets:
        click.echo(f"{count(len(kept.done), 'data set')} of {datasets:,} already done.", err=True)
    with show_data_sets(experiment.name, datasets) as progress:
        outcome = perform(experiment, kept, datasets, progress=progress)
    if out is not None:
        _write_files(outcome, out, _format_command(outcome, flags))
    if as_json:
        click.echo(json.dumps(outcome.to_list(), indent=2))
    else:
        click.echo(_summarize(outcome))
    if out is not None:
        click.echo(
            f"Written to {out}: report.md, table.csv, figure.svg, .png and .pdf.", err=as_json
        )


def _format_command(outcome: ExperimentOutcome, flags: list[str]) -> str:
    """Format the command that gives the same results, without paths of this machine."""
    from tacit.privacy.exponentials import format_epsilon

    experiment = outcome.experiment
    epsilons = ",".join(format_epsilon(epsilon) for epsilon in experiment.epsilons)
    words = ["tacit", "reproduce", experiment.name, *flags, "--datasets", str(outcome.datasets)]
    return " ".join([*words, "--seed", str(experiment.seed), "--epsilon", epsilons])


def _write_files(outcome: ExperimentOutcome, out: Path, command: str) -> None:
    from tacit.evaluation.figures import plot
    from tacit.evaluation.reports import format_report, to_csv
    from tacit.pictures import SUFFIXES

    with translate_write_errors(out):
        (out / "table.csv").write_text(to_csv(outcome), "utf-8")
        (out / "report.md").write_text(format_report(outcome, command), "utf-8")
    for suffix in SUFFIXES:
        plot(outcome, out / f"figure{suffix}")


def _summarize(outcome: ExperimentOutcome) -> str:
    from tacit.evaluation.reports import (
        CONVENTIONS,
        find_optimal,
        format_unit,
        make_ratios,
        make_table,
    )
    from tacit.insight.tabular import align

    varied = outcome.experiment.variation
    against = "epsilon" if varied is None else varied.label
    parts = [
        fill(outcome.experiment.about, 100),
        f"Mean MRE of Q over {count(outcome.datasets, 'data set')}, against {against}."
        f" {format_unit(outcome)}",
        "\n".join(align(make_table(outcome))),
    ]
    if varied is None and len(make_ratios(outcome)) > 1:
        parts.append(
            f"Mean error of optimal ({find_optimal(outcome).decode}) relative to the others,"
            " paired, 95 % intervals:"
        )
        parts.append("\n".join(align(make_ratios(outcome))))
    return "\n\n".join([*parts, fill(CONVENTIONS, 100)])
