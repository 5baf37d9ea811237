"""`tacit attack`: how well an attacker guesses private patterns under a plan."""

from __future__ import annotations

import json
from pathlib import Path

import click

from tacit.cli import options
from tacit.cli.progress import show_progress
from tacit.cli.run_summary import check_refusals
from tacit.cli.warm import compile_kernels


@click.command()
@options.spec
@options.allow_path
@options.plan
@options.history(required=True)
@click.option(
    "--period",
    metavar="DURATION",
    default="1 d",
    show_default=True,
    help="The length of a day: answers of that long are used together.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    metavar="NUMBER",
    default=0,
    show_default=True,
    help="Seed of the simulated noise.",
)
@options.plot("Draw the attack, as .svg, .png or .pdf.")
@options.fail_if_refused
@options.as_json()
def attack(
    spec: Path,
    plan_file: Path | None,
    history: tuple[str, ...],
    period: str,
    seed: int,
    plot: Path | None,
    allowed: float | None,
    as_json: bool,
) -> None:
    """Simulate how well private patterns can be guessed under a plan.

    The attacker knows the plan, the prior, all public events, all other private patterns and
    every released answer, and guesses whether a private pattern occurred: in one window, and at
    least once in a day. Reports success beside the prior and beside the bounds that epsilon puts
    on any attacker. For operators and subjects, not for consumers.

    \b
    Example:
      tacit attack taxi.yaml --plan plan.json --history january.parquet --plot attack.svg
    """
    from tacit.cli.sources import check_targets, split_streams
    from tacit.engines.setup import RunOptions
    from tacit.engines.warmup import list_run_features
    from tacit.insight.attack import attack_plan
    from tacit.pictures import check_picture
    from tacit.spec.yaml_reader import load

    loaded = load(spec, options.allowed_paths())
    check_targets([plot], [spec, plan_file, *history])
    if plot is not None:
        check_picture(plot)
    given = RunOptions(loaded, split_streams(history), plan=plan_file)
    planned = given.read().plan
    inputs = given.open_inputs(loaded)
    compile_kernels(list_run_features("plan", loaded, inputs))
    with show_progress("Reading history ...") as progress:
        report = attack_plan(
            loaded,
            planned,
            inputs,
            period=period,
            seed=seed,
            progress=progress,
            refusals=lambda refusals: check_refusals(refusals, allowed),
        )
    if plot is not None:
        report.plot(plot)
    if as_json:
        files = {"plot": None if plot is None else str(plot)}
        click.echo(json.dumps(report.to_dict() | files, indent=2))
        return
    click.echo(report)
    if plot is not None:
        click.echo(f"Picture written to {plot}.")
