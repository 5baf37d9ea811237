"""`tacit count`: how many subjects truly have a pattern, estimated from released answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tacit.cli import options
from tacit.cli.progress import show_progress
from tacit.cli.warm import compile_kernels

if TYPE_CHECKING:
    from tacit.answers.count_estimates import CountEstimates, Method
    from tacit.answers.count_sums import Per


@click.command()
@click.argument("answers")
@options.file(
    "--plan",
    "plan_file",
    metavar="PLAN",
    help="The plan that the run used.  [required]",
)
@options.file(
    "--spec",
    metavar="SPEC",
    help="The specification of the plan; needed for --history and --by.",
)
@options.allow_path
@options.history(
    "Past windows to measure a model on, for answers that do not identify counts: a SOURCE"
    " as for detect, STREAM=SOURCE for several streams. Repeatable."
)
@click.option(
    "--by",
    metavar="COLUMN",
    help="Count for each value of this column of the registry's file.",
)
@click.option(
    "--per",
    type=click.Choice(["window", "hour"]),
    default="window",
    show_default=True,
    help="The period of a count. That of an hour is the sum over its windows.",
)
@click.option(
    "--method",
    type=click.Choice(["auto", "unbiased", "model"]),
    default="auto",
    show_default=True,
    help="auto is unbiased where channels identify counts, and a model elsewhere.",
)
@click.option(
    "--level",
    metavar="SHARE",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.95,
    show_default=True,
    help="How often the intervals contain the true count.",
)
@options.file("--to", "target", help="Write the counts to this file: .parquet or .csv.")
@options.plot("Draw the counts, as .svg, .png or .pdf.")
@options.as_json()
def count(
    answers: str,
    plan_file: Path | None,
    spec: Path | None,
    history: tuple[str, ...],
    by: str | None,
    per: Per,
    method: Method,
    level: float,
    target: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Estimate how many subjects truly have each pattern.

    ANSWERS is a file of protected answers, or a ledger. Each estimate has an interval. An estimate
    is unbiased where the channels of the plan identify the count. Elsewhere it follows from a
    model that is measured on history; without history, the interval is as wide as it can be. It
    costs no epsilon: it is computed from what was released. For operators, since it needs the
    plan; the estimates may be given to consumers.

    \b
    Examples:
      tacit count answers.parquet --plan plan.json
      tacit count ledger.db --plan plan.json --per hour --plot counts.svg
      tacit count answers.parquet --plan plan.json --spec taxi.yaml --history january.parquet
    """
    from tacit.cli.sources import check_targets, split_streams
    from tacit.engines.setup import RunOptions
    from tacit.engines.warmup import list_run_features
    from tacit.insight.counts import estimate_counts
    from tacit.pictures import check_picture
    from tacit.planning.plan import Plan
    from tacit.spec.yaml_reader import load

    if plan_file is None:
        raise click.UsageError("Missing option '--plan': estimates need the plan of the run")
    if spec is None and (history or by is not None):
        raise click.UsageError(f"{'--history' if history else '--by'} needs --spec")
    check_targets([target, plot], [answers, plan_file, spec, *history])
    if plot is not None:
        check_picture(plot)
    if target is not None and target.suffix not in (".parquet", ".csv"):
        raise click.UsageError(f"--to: expected a file ending in .parquet or .csv; got {target}")
    loaded = None if spec is None else load(spec, options.allowed_paths())
    plan = Plan.load(plan_file, loaded)
    sources = []
    if history:
        assert loaded is not None, "it was asked for"
        sources = split_streams(history)
        inputs = RunOptions(loaded, sources, plan=plan).open_inputs(loaded)
        compile_kernels(list_run_features("run", loaded, inputs))
    with show_progress("Estimating ...") as progress:
        found = estimate_counts(
            answers,
            plan,
            *[one if stream is None else {stream: one} for stream, one in sources],
            spec=loaded,
            by=by,
            per=per,
            method=method,
            level=level,
            progress=progress,
        )
    if plot is not None:
        found.plot(plot)
    if target is not None:
        _write(found, target)
    if as_json:
        files = {"plot": None if plot is None else str(plot)}
        files["to"] = None if target is None else str(target)
        click.echo(json.dumps(found.to_dict() | files, indent=2))
        return
    if target is None:
        _print(found)
    for place, what in ((target, "Counts"), (plot, "Picture")):
        if place is not None:
            click.echo(f"{what} written to {place}.")


def _write(found: CountEstimates, target: Path) -> None:
    from tacit.connectors.appending_sink import translate_errors

    with translate_errors(str(target)):
        if target.suffix == ".csv":
            found.frame.write_csv(target, datetime_format="%Y-%m-%dT%H:%M:%SZ")
        else:
            found.frame.write_parquet(target)


def _print(found: CountEstimates) -> None:
    from tacit.insight.tabular import align

    rows = found.to_dict()["counts"]
    grouped = "group" in found.frame.columns
    head = ["window_start", "query", *(["group"] if grouped else [])]
    table = [(*head, "estimate", "low", "high", "method")]
    for row in rows:
        numbers = (f"{row[name]:.1f}" for name in ("estimate", "low", "high"))
        table.append((*(row[name] for name in head), *numbers, row["method"]))
    for line in align(table):
        click.echo(line)
