"""`tacit plan`: history in, a plan and what to expect of it out."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from tacit.cli.detecting import opened, spare
from tacit.cli.outcomes import Outcome, Wish
from tacit.cli.paths import allowed_paths
from tacit.cli.reporting import judge_refusals, watching, working
from tacit.cli.warming import warm_up
from tacit.cli.watching import Call, stamps, watch
from tacit.engines.local import survey
from tacit.engines.warming import run_features
from tacit.errors import OptionError, PlanError, SourceError
from tacit.insight.curve import check_picture, curve
from tacit.planning.plan import Expected
from tacit.planning.planner import (
    MECHANISMS,
    least_epsilon,
    make_plan,
    plan_without_history,
)
from tacit.planning.requirements import read_prior, required_qualities
from tacit.planning.survey import Statistics
from tacit.spec.reading import load
from tacit.spec.specification import Specification


def run_planning(
    spec_file: Path, history: tuple[str, ...], prior: Path | None, wish: Wish, as_json: bool
) -> None:
    """Plan, write what is to be written, and say what to expect."""
    spec = load(spec_file, allowed_paths())
    spare([wish.out, wish.plot], [spec_file, prior, *history])
    if prior is not None and history:
        raise OptionError("--history and --prior exclude each other")
    if wish.plot is not None:
        check_picture(wish.plot)
    if wish.quality is not None:
        required_qualities(spec, wish.quality)
    if history:
        outcome = _from_history(spec, _surveyed(spec, history, wish), wish)
    else:
        outcome = _by_hand(spec, prior, wish)
    if wish.out is not None and outcome.plan is not None:
        outcome.plan.save(wish.out)
    if wish.plot is not None and outcome.curve is not None:
        outcome.curve.save(wish.plot)
    click.echo(json.dumps(outcome.as_dict(), indent=2) if as_json else outcome)
    if not outcome.succeeded:
        sys.exit(1)


def watch_planning(
    spec_file: Path,
    history: tuple[str, ...],
    prior: Path | None,
    wish: Wish,
    as_json: bool,
    target: str | None,
) -> None:
    """Plan now and whenever something changes; tell the run in the process `target`."""
    if wish.out is None:
        raise OptionError("--watch needs -o PLAN: a place where new plans go")
    watch(
        lambda: run_planning(spec_file, history, prior, wish, as_json),
        lambda: stamps(spec_file, history, prior),
        None if target is None else Call(target),
    )


def _surveyed(spec: Specification, history: Sequence[str], wish: Wish) -> list[Statistics]:
    if not spec.queries:
        raise PlanError("there are no queries to plan for: add some to the specification")
    inputs = opened(spec, history)
    literal = (wish.decode or spec.decode) == "literal"
    warm_up(run_features("plan", spec, inputs, wish.mechanism or spec.mechanism))
    with watching([input_.source for input_ in inputs]) as watch:
        statistics = survey(
            spec,
            inputs,
            literal=literal,
            progress=watch,
            refusals=lambda refusals: judge_refusals(refusals, wish.allowed),
        )
    if not sum(part.windows for part in statistics):
        raise SourceError("the history has no tuple that could be used, and so no window")
    return statistics


def _from_history(spec: Specification, statistics: list[Statistics], wish: Wish) -> Outcome:
    compared: dict[str, Expected] = {}
    least = drawn = None
    with working("Planning ...") as say:
        if wish.quality is not None:
            least = least_epsilon(
                spec,
                statistics,
                required_qualities(spec, wish.quality),
                wish.mechanism,
                wish.decode,
                progress=lambda step: say(f"Looking for the least epsilon, step {step} ..."),
            )
            plan = least.plan
        elif (wish.mechanism or spec.mechanism) == "auto":
            plans = [make_plan(spec, statistics, name, wish.decode) for name in MECHANISMS]
            compared = {plan.mechanism: plan.expected for plan in plans if plan.expected}
            plan = max(plans, key=lambda plan: plan.expected.quality if plan.expected else 0.0)
        else:
            plan = make_plan(spec, statistics, wish.mechanism, wish.decode)
        if wish.plot is not None:
            drawn = curve(
                spec,
                statistics,
                wish.decode,
                progress=lambda done, all_: say(f"Drawing the curve, {done} of {all_} points ..."),
            )
    expected = least.expected if least is not None else plan.expected if plan else None
    windows = int(sum(part.windows for part in statistics))
    return Outcome(spec, wish, plan, expected, windows, compared, least, drawn)


def _by_hand(spec: Specification, prior: Path | None, wish: Wish) -> Outcome:
    """A plan from a prior, or from nothing."""
    for option, given in (("--quality", wish.quality), ("--plot", wish.plot)):
        if given is not None:
            raise PlanError(f"{option} needs to know what quality to expect: give --history SOURCE")
    rates = None if prior is None else read_prior(prior, spec)
    plan = plan_without_history(spec, wish.mechanism, wish.decode, rates)
    return Outcome(spec, wish, plan, None, 0, {}, None, None)
