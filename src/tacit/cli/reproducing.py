"""`tacit reproduce`: the paper's experiments, with every mechanism and baseline."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from textwrap import fill

import click

from tacit.cli.reporting import working
from tacit.counting import count
from tacit.errors import SinkError
from tacit.evaluation.experiments import (
    EPSILONS,
    VARIED_EPSILONS,
    Experiment,
    Home,
    Outcome,
    Synthetic,
    Taxi,
    kept_results,
    perform,
)
from tacit.evaluation.figures import save
from tacit.evaluation.reports import CONVENTIONS, UNIT, as_csv, ratios, report, table
from tacit.evaluation.tdrive import read_tdrive
from tacit.insight.curve import check_picture
from tacit.insight.tabular import aligned
from tacit.privacy.exponentials import written


def reproduce_synthetic(
    epsilons: tuple[Fraction, ...], vary: str | None, seed: int, datasets: int,
    out: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Algorithm 2 data, or a variation of it."""
    experiment = Synthetic(epsilons or (EPSILONS if vary is None else VARIED_EPSILONS), seed, vary)
    _reproduce(experiment, datasets, out, as_json, [] if vary is None else ["--vary", vary])


def reproduce_taxi(
    epsilons: tuple[Fraction, ...], data: Path | None, heard: bool, seed: int, datasets: int,
    out: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """T-Drive where it is given, else generated trips."""
    told = ["--heard"] if heard else []
    reports = None
    if data is None:
        click.echo("No --data is given: trips are generated, this is not T-Drive.", err=True)
    else:
        with working("Reading T-Drive ..."):
            found = read_tdrive(data)
        click.echo(f"T-Drive: {found}", err=True)
        reports = found.reports
        told += ["--data", "T-DRIVE"]
    _reproduce(Taxi(epsilons or EPSILONS, seed, reports, heard), datasets, out, as_json, told)


def reproduce_home(
    epsilons: tuple[Fraction, ...], seed: int, datasets: int, out: Path | None, as_json: bool
) -> None:
    """Generated smart homes through the engine."""
    _reproduce(Home(epsilons or EPSILONS, seed), datasets, out, as_json, [])


def _reproduce(
    experiment: Experiment, datasets: int, out: Path | None, as_json: bool, told: list[str]
) -> None:
    if out is not None:
        check_picture(out / "figure.svg")
    kept = kept_results(experiment, out, datasets)
    if kept.done and len(kept.done) < datasets:
        click.echo(f"{count(len(kept.done), 'data set')} of {datasets:,} done already.", err=True)
    with _counting(experiment.name, datasets) as progress:
        outcome = perform(experiment, kept, datasets, progress=progress)
    if out is not None:
        _write(outcome, out, _command(outcome, told))
    if as_json:
        click.echo(json.dumps(outcome.to_list(), indent=2))
    else:
        click.echo(_summary(outcome))
    if out is not None:
        click.echo(f"Written to {out}: report.md, figure.svg, figure.png, table.csv.", err=as_json)


def _command(outcome: Outcome, told: list[str]) -> str:
    """What to type to get the same again; no path of this machine is told."""
    experiment = outcome.experiment
    epsilons = ",".join(written(epsilon) for epsilon in experiment.epsilons)
    words = ["tacit", "reproduce", experiment.name, *told, "--datasets", str(outcome.datasets)]
    return " ".join([*words, "--seed", str(experiment.seed), "--epsilon", epsilons])


def _write(outcome: Outcome, out: Path, command: str) -> None:
    try:
        (out / "table.csv").write_text(as_csv(outcome), "utf-8")
        (out / "report.md").write_text(report(outcome, command), "utf-8")
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise SinkError(f"{out} cannot be written: {why}; choose another place") from error
    for suffix in (".svg", ".png"):
        save(outcome, out / f"figure{suffix}")


def _summary(outcome: Outcome) -> str:
    varied = outcome.experiment.variation
    against = "epsilon" if varied is None else varied.label
    parts = [
        fill(outcome.experiment.about, 100),
        f"Mean MRE of Q over {count(outcome.datasets, 'data set')}, against {against}. {UNIT}",
        "\n".join(aligned(table(outcome))),
    ]
    if varied is None:
        parts.append("Mean error of optimal (posterior) as a share of others', paired, 95 % bands:")
        parts.append("\n".join(aligned(ratios(outcome))))
    return "\n\n".join([*parts, fill(CONVENTIONS, 100)])


@contextmanager
def _counting(name: str, datasets: int) -> Iterator[Callable[[int], None] | None]:
    """A progress bar with the time left, on a terminal only."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Left

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("data sets"),
        Left(),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        task = progress.add_task(name, total=datasets)
        yield lambda done: progress.update(task, completed=done)
