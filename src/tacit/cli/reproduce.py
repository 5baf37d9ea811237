"""`tacit reproduce`: the paper's experiments, with every mechanism and baseline."""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final

import click

from tacit.cli import options
from tacit.cli.progress import show_data_sets, show_spinner
from tacit.errors import SinkError
from tacit.quantities import count

if TYPE_CHECKING:
    from tacit.evaluation.experiments import Experiment, ExperimentOutcome

_EPSILONS: Final = Decimal("0.001"), Decimal(50)
"""The range of `--epsilon`."""


def _read_epsilons(
    _context: click.Context, _param: click.Parameter, given: tuple[str, ...]
) -> tuple[Fraction, ...]:
    """Read epsilons, given one by one or separated by commas; duplicates are dropped."""
    words = (word.strip() for text in given for word in text.split(","))
    return tuple(sorted({_read_epsilon(word) for word in words}))


def _read_epsilon(word: str) -> Fraction:
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


def _experiment(default: str) -> options.Decorator:
    """Define the options that all experiments have; `default` is that of `--datasets`."""
    shared = (
        click.option("--datasets", metavar="NUMBER", type=click.IntRange(1, 100_000),
                     help=f"Number of data sets; by default {default}."),
        click.option("--seed", metavar="NUMBER", type=click.IntRange(0, 1_000_000_000), default=0,
                     show_default=True, help="Seed of the data sets and of the noise."),
        click.option("--epsilon", "epsilons", metavar="NUMBER,...", multiple=True,
                     callback=_read_epsilons,
                     help="Values of epsilon, for one subject, one private pattern and one window."
                     " Repeatable."),
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
    """


@reproduce.command()
@_experiment("12, or 10 with --vary")
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
) -> None:
    """Algorithm 2: independent events, and patterns of three of them.

    \b
    Examples:
      tacit reproduce synthetic --datasets 1000 --out synthetic
      tacit reproduce synthetic --vary overlap --epsilon 2 --out overlap
    """
    reproduce_synthetic(epsilons, vary, seed, datasets or (10 if vary else 12), out, as_json)


@reproduce.command()
@_experiment("10")
@click.option(
    "--data",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="T-Drive, as the folder of its text files or as Parquet; by default trips are generated.",
)
@click.option("--heard", is_flag=True, help="Leave out windows in which a taxi sent no report.")
def taxi(
    datasets: int | None,
    seed: int,
    epsilons: tuple[Fraction, ...],
    out: Path | None,
    as_json: bool,
    data: Path | None,
    heard: bool,
) -> None:
    """Taxis on a grid: some cells are private, some are queried.

    \b
    Examples:
      tacit reproduce taxi
      tacit reproduce taxi --data t-drive/ --out taxi
    """
    reproduce_taxi(epsilons, data, heard, seed, datasets or 10, out, as_json)


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


def reproduce_synthetic(
    epsilons: tuple[Fraction, ...], vary: str | None, seed: int, datasets: int,
    out: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Run the experiment on data of Algorithm 2, or a variation of it."""
    from tacit.evaluation.experiments import EPSILONS, VARIED_EPSILONS, Synthetic

    experiment = Synthetic(epsilons or (EPSILONS if vary is None else VARIED_EPSILONS), seed, vary)
    _perform(experiment, datasets, out, as_json, [] if vary is None else ["--vary", vary])


def reproduce_taxi(
    epsilons: tuple[Fraction, ...], data: Path | None, heard: bool, seed: int, datasets: int,
    out: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Run the experiment on T-Drive if `data` is given, else on generated trips."""
    from tacit.evaluation.experiments import EPSILONS, Taxi
    from tacit.evaluation.tdrive import read_tdrive

    flags = ["--heard"] if heard else []
    reports = None
    if data is None:
        click.echo("No --data given: using generated trips, not T-Drive.", err=True)
    else:
        with show_spinner("Reading T-Drive ..."):
            found = read_tdrive(data)
        click.echo(f"T-Drive: {found}", err=True)
        reports = found.reports
        flags += ["--data", "T-DRIVE"]
    _perform(Taxi(epsilons or EPSILONS, seed, reports, heard), datasets, out, as_json, flags)


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
    from tacit.insight.curve import check_picture

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
        click.echo(f"Written to {out}: report.md, figure.svg, figure.png, table.csv.", err=as_json)


def _format_command(outcome: ExperimentOutcome, flags: list[str]) -> str:
    """Format the command that gives the same results, without paths of this machine."""
    from tacit.privacy.exponentials import format_epsilon

    experiment = outcome.experiment
    epsilons = ",".join(format_epsilon(epsilon) for epsilon in experiment.epsilons)
    words = ["tacit", "reproduce", experiment.name, *flags, "--datasets", str(outcome.datasets)]
    return " ".join([*words, "--seed", str(experiment.seed), "--epsilon", epsilons])


def _write_files(outcome: ExperimentOutcome, out: Path, command: str) -> None:
    from tacit.evaluation.figures import save
    from tacit.evaluation.reports import format_report, to_csv

    try:
        (out / "table.csv").write_text(to_csv(outcome), "utf-8")
        (out / "report.md").write_text(format_report(outcome, command), "utf-8")
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise SinkError(f"{out} cannot be written: {why}; choose another place") from error
    for suffix in (".svg", ".png"):
        save(outcome, out / f"figure{suffix}")


def _summarize(outcome: ExperimentOutcome) -> str:
    from tacit.evaluation.reports import CONVENTIONS, UNIT, make_ratios, make_table
    from tacit.insight.tabular import align

    varied = outcome.experiment.variation
    against = "epsilon" if varied is None else varied.label
    parts = [
        fill(outcome.experiment.about, 100),
        f"Mean MRE of Q over {count(outcome.datasets, 'data set')}, against {against}. {UNIT}",
        "\n".join(align(make_table(outcome))),
    ]
    if varied is None:
        parts.append(
            "Mean error of optimal (posterior) relative to the others, paired, 95 % intervals:"
        )
        parts.append("\n".join(align(make_ratios(outcome))))
    return "\n\n".join([*parts, fill(CONVENTIONS, 100)])
