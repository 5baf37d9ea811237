"""`tacit plan`: make a plan from history."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from tacit.cli import options
from tacit.cli.progress import show_progress
from tacit.cli.run_summary import check_refusals
from tacit.cli.warm import compile_kernels
from tacit.errors import OptionError, PlanError, SourceError
from tacit.progress import scale_progress
from tacit.spec.mechanisms import MECHANISMS

if TYPE_CHECKING:
    from tacit.cli.plan_report import PlanReport
    from tacit.planning.limits import LimitPoint
    from tacit.planning.plan import Expected
    from tacit.privacy.statistics import Statistics
    from tacit.spec.specification import Specification

_MADE: Final = 0.99
"""The share of the work after which everything is computed, and has to be written."""
_PLANNING: Final = 0.1
"""The share of planning if a curve is drawn, for which the planner runs about forty times."""


@click.command()
@options.spec
@options.allow_path
@options.history()
@options.file("-o", "--out", metavar="PLAN", help="Where to write the plan, as JSON.")
@options.mechanism
@click.option(
    "--decode",
    type=click.Choice(["posterior", "literal"]),
    help="How noisy events become answers. Overrides the specification.",
)
@options.file(
    "--prior",
    help="Instead of history: a YAML or JSON file with the probability of event types in a window.",
)
@click.option(
    "--quality",
    metavar="Q",
    help="Find the least epsilon with which every query reaches this quality; 'declared' means the"
    " qualities that the queries declare.",
)
@click.option(
    "--least",
    type=click.Choice(["total", "largest", "limit"]),
    default="total",
    show_default=True,
    help="With --quality: what to make as small as possible: the sum of the private patterns'"
    " epsilons (total), the largest of them (largest), or the limits, all in proportion (limit).",
)
@click.option(
    "--curve",
    is_flag=True,
    help="Show quality against epsilon; if there are limits, also against epsilon per day.",
)
@click.option(
    "--objective",
    type=click.Choice(["micro", "macro"]),
    help="What to maximise: quality over all answers, or the mean of the queries' qualities."
    " Overrides the specification.",
)
@options.plot("Plot quality against epsilon, as .svg, .png or .pdf.")
@click.option(
    "--watch", is_flag=True, help="Plan again whenever the specification or the history changes."
)
@click.option(
    "--signal",
    "target",
    metavar="PID|FILE",
    help="After each plan, send SIGHUP to this process so that it reloads; FILE holds its pid.",
)
@options.fail_if_refused
@options.as_json()
def plan(spec: Path, watch: bool, target: str | None, as_json: bool, **values: Any) -> None:
    """Make a plan from history.

    A plan gives the best quality for the epsilon that the specification grants; --quality finds the
    least epsilon for a quality. Prints the precision, recall and quality to expect for every query.
    The plan and these figures are for operators and subjects, not for consumers.

    \b
    Examples:
      tacit plan taxi.yaml --history january.parquet -o plan.json
      tacit plan taxi.yaml --history january.parquet --quality 0.9
      tacit plan taxi.yaml --history january.parquet --quality 0.9 --least limit
      tacit plan taxi.yaml --history january.parquet --curve
      tacit plan home.yaml --history doors=doors.csv --history power=power.csv --plot curve.svg
      tacit plan taxi.yaml --history january.parquet -o plan.json --watch --signal taxi.pid
    """
    wanted = PlanOptions(**values)
    if watch:
        watch_and_plan(spec, wanted, as_json, target)
    elif target is not None:
        raise click.UsageError("--signal needs --watch")
    else:
        make_plan(spec, wanted, as_json)


@dataclass(frozen=True)
class PlanOptions:
    """What to plan from, what to plan for, and what to write."""

    history: tuple[str, ...]
    prior: Path | None
    mechanism: str | None
    decode: str | None
    quality: str | None
    least: Literal["total", "largest", "limit"]
    """What `quality` makes least."""
    objective: str | None
    curve: bool
    """Whether quality against epsilon is shown."""
    out: Path | None
    plot: Path | None
    allowed: float | None
    """The share of history that may be refused; None if any share may."""


def make_plan(spec_file: Path, wanted: PlanOptions, as_json: bool) -> None:
    """Plan, write the files, and print the report."""
    from tacit.cli.sources import check_targets
    from tacit.pictures import check_picture
    from tacit.planning.requirements import parse_required_quality
    from tacit.spec.yaml_reader import load

    spec = load(spec_file, options.allowed_paths())
    check_targets([wanted.out, wanted.plot], [spec_file, wanted.prior, *wanted.history])
    if wanted.prior is not None and wanted.history:
        raise OptionError("--history and --prior cannot be used together")
    if wanted.plot is not None:
        check_picture(wanted.plot)
    if wanted.quality is not None:
        parse_required_quality(spec, wanted.quality)
    if wanted.least == "limit":
        if wanted.quality is None:
            raise OptionError("--least limit needs --quality")
        if wanted.out is not None:
            raise OptionError(
                "--least limit makes no plan: change the specification's limits, and plan again"
            )
    if wanted.history:
        report = _plan_from_history(spec, _survey_history(spec, wanted), wanted)
    else:
        report = _plan_from_prior(spec, wanted)
    if wanted.out is not None and report.plan is not None:
        report.plan.save(wanted.out)
    if wanted.plot is not None and report.curve is not None:
        report.curve.plot(wanted.plot)
    click.echo(json.dumps(report.to_dict(), indent=2) if as_json else report)
    if not report.succeeded:
        sys.exit(1)


def watch_and_plan(spec_file: Path, wanted: PlanOptions, as_json: bool, target: str | None) -> None:
    """Plan now and after every change; then send a reload signal to the process `target`."""
    from tacit.cli.watch import ReloadSignal, read_stamps, watch_files

    if wanted.out is None:
        raise OptionError("--watch needs -o PLAN, the file to write plans to")
    watch_files(
        lambda: make_plan(spec_file, wanted, as_json),
        lambda: read_stamps(spec_file, wanted.history, wanted.prior),
        None if target is None else ReloadSignal(target),
    )


def _survey_history(spec: Specification, wanted: PlanOptions) -> list[Statistics]:
    from tacit.cli.sources import split_streams
    from tacit.engines.local import survey
    from tacit.engines.setup import RunOptions
    from tacit.engines.warmup import list_run_features

    if not spec.queries:
        raise PlanError("there are no queries to plan for: add some to the specification")
    inputs = RunOptions(spec, split_streams(wanted.history)).open_inputs(spec)
    literal = (wanted.decode or spec.decode) == "literal"
    compile_kernels(list_run_features("plan", spec, inputs, wanted.mechanism or spec.mechanism))
    with show_progress("Reading history ...") as progress:
        statistics = survey(
            spec,
            inputs,
            literal=literal,
            progress=progress,
            refusals=lambda refusals: check_refusals(refusals, wanted.allowed),
        )
    if not sum(part.windows for part in statistics):
        raise SourceError("the history has no usable tuple, so there is no window to plan from")
    return statistics


def _plan_from_history(
    spec: Specification, statistics: Sequence[Statistics], wanted: PlanOptions
) -> PlanReport:
    from tacit.cli.plan_report import PlanReport
    from tacit.insight.curve import compute_curve
    from tacit.planning import planner
    from tacit.planning.least_epsilon import find_least_epsilon
    from tacit.planning.limits import find_least_limit, predict_curve
    from tacit.planning.planner import list_limits
    from tacit.planning.requirements import parse_required_quality

    statistics = list(statistics)
    mechanism, decode = wanted.mechanism, wanted.decode
    compared: dict[str, Expected] = {}
    least = drawn = least_limit = None
    limits: list[LimitPoint] = []
    with show_progress("Planning ...") as progress:
        curves = wanted.curve or wanted.plot is not None
        # The plan is still to be written when it is made.
        planning = scale_progress(progress, 0, _PLANNING if curves else _MADE)
        if wanted.quality is not None and wanted.least == "limit":
            required = parse_required_quality(spec, wanted.quality)
            least_limit = find_least_limit(spec, statistics, required, planning)
            plan = None
        elif wanted.quality is not None:
            assert wanted.least != "limit"
            least = find_least_epsilon(
                spec,
                statistics,
                parse_required_quality(spec, wanted.quality),
                mechanism,
                decode,
                least=wanted.least,
                progress=planning,
            )
            plan = least.plan
        elif (mechanism or spec.mechanism) == "auto":
            plans = planner.compare_mechanisms(
                spec, statistics, decode, wanted.objective, progress=planning
            )
            found = {plan.mechanism: plan.expected for plan in plans if plan.expected}
            compared = {name: found[name] for name in MECHANISMS}
            plan = plans[0]
        else:
            plan = planner.make_plan(
                spec, statistics, mechanism, decode, objective=wanted.objective, progress=planning
            )
        if curves:
            drawing = scale_progress(progress, _PLANNING, 0.9)
            drawn = compute_curve(spec, statistics, decode, progress=drawing)
        if wanted.curve and list_limits(spec.private):
            limits = predict_curve(spec, statistics, progress=scale_progress(progress, 0.9, _MADE))
    expected = least.expected if least is not None else plan.expected if plan else None
    if least_limit is not None:
        expected = least_limit.point.expected
    windows = int(sum(part.windows for part in statistics))
    return PlanReport(
        spec, wanted, plan, expected, windows, compared, least, drawn, least_limit, tuple(limits)
    )


def _plan_from_prior(spec: Specification, wanted: PlanOptions) -> PlanReport:
    """Plan without history: from the given prior, or with uniform from nothing."""
    from tacit.cli.plan_report import PlanReport
    from tacit.planning.planner import plan_without_history
    from tacit.planning.requirements import read_prior

    for option, given in (("--quality", wanted.quality), ("--plot", wanted.plot)):
        if given is not None:
            raise PlanError(f"{option} needs history: give --history SOURCE")
    rates = None if wanted.prior is None else read_prior(wanted.prior, spec)
    plan = plan_without_history(spec, wanted.mechanism, wanted.decode, rates)
    return PlanReport(spec, wanted, plan, None, 0, {}, None, None)
