"""`tacit leaks`: what public events and exact answers tell about private patterns."""

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
@options.history(
    f"{options.PAST_WINDOWS} Without it, only what follows from the specification is reported."
)
@click.option(
    "--rate",
    metavar="SHARE",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.05,
    show_default=True,
    help="The largest expected share of false findings.",
)
@click.option(
    "--least",
    metavar="FACTOR",
    type=click.FloatRange(1),
    default=1.0,
    show_default=True,
    help="Leave out findings that may move the odds by less than this factor.",
)
@click.option(
    "--costs",
    metavar="NUMBER",
    type=click.IntRange(0, 1000),
    default=10,
    show_default=True,
    help="For how many changes to compute what they cost; each needs a plan.",
)
@options.plot("Draw the findings, as .svg, .png or .pdf.")
@options.file(
    "--fix",
    metavar="FILE",
    help="Write the specification with all findings protected to this YAML file.",
)
@options.fail_if_refused
@options.as_json()
def leaks(
    spec: Path,
    history: tuple[str, ...],
    rate: float,
    least: float,
    costs: int,
    plot: Path | None,
    fix: Path | None,
    allowed: float | None,
    as_json: bool,
) -> None:
    """Find what public events tell about private patterns.

    Public events are used as they are. An event type, a pair of them, or the exact answer of a
    query may move the odds of a private pattern, in the same window or the one before or after.
    Reports by how much, with confidence bounds, and what protecting it would cost in quality. For
    operators and subjects, not for consumers.

    \b
    Examples:
      tacit leaks taxi.yaml
      tacit leaks taxi.yaml --history january.parquet --plot leaks.svg
      tacit leaks taxi.yaml --history january.parquet --least 2 --fix safer.yaml
    """
    from tacit.cli.sources import check_targets, split_streams
    from tacit.engines.setup import RunOptions
    from tacit.engines.warmup import list_run_features
    from tacit.insight.leaks import find_leaks
    from tacit.insight.leaks import leaks as find_static
    from tacit.pictures import check_picture
    from tacit.spec.yaml_reader import load

    loaded = load(spec, options.allowed_paths())
    check_targets([plot, fix], [spec, *history])
    if plot is not None:
        check_picture(plot)
    if not history:
        if plot is not None or fix is not None:
            raise click.UsageError("--plot and --fix need --history")
        report = find_static(loaded, rate=rate, least=least, costs=costs)
    else:
        given = RunOptions(loaded, split_streams(history))
        compile_kernels(list_run_features("plan", loaded, given.open_inputs(loaded)))
        with show_progress("Reading history ...") as progress:
            report = find_leaks(
                loaded,
                lambda: given.open_inputs(loaded),
                rate=rate,
                least=least,
                costs=costs,
                progress=progress,
                refusals=lambda refusals: check_refusals(refusals, allowed),
            )
    if plot is not None:
        report.plot(plot)
    if fix is not None and report.leaks:
        report.save_fix(fix)
    written = str(fix) if fix is not None and report.leaks else None
    if as_json:
        files = {"plot": None if plot is None else str(plot), "fix": written}
        click.echo(json.dumps(report.to_dict() | files, indent=2))
        return
    click.echo(report)
    if plot is not None:
        click.echo(f"Picture written to {plot}.")
    if written is not None:
        click.echo(f"Changed specification written to {written}.")
    elif fix is not None:
        click.echo(f"Nothing to fix: {fix} was not written.")
