"""`tacit run`: sources in, protected answers out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import click

from tacit.cli.detecting import letters_beside, opened, registered, spare, write_answers
from tacit.cli.operating import Operating
from tacit.cli.reporting import Summary, watching
from tacit.connectors.deadletters import DeadLetters
from tacit.counting import count
from tacit.durations import parse_duration
from tacit.engines.local import Detection, Input, protected
from tacit.engines.terms import Terms
from tacit.errors import PlanError
from tacit.patterns.tree import elements
from tacit.planning.plan import Plan, unit
from tacit.planning.planner import plan_without_history
from tacit.privacy.exponentials import written
from tacit.privacy.noise import Noise
from tacit.privacy.randomness import SeededSource
from tacit.spec.reading import load
from tacit.spec.specification import Specification

AGAIN: Final = "A run over the same windows again draws new noise and spends that epsilon again."
SEEDED: Final = (
    "NOT PRIVATE: the noise came from a seed. Who knows the seed knows the truth; never give these"
    " answers to consumers."
)


@dataclass(frozen=True)
class Keeping:
    """What is kept of a run for the next time."""

    place: str | None = field(repr=False)
    """The ledger; None where nothing is charged."""
    name: str
    """What the run is called there."""
    uncounted: bool = False
    """Whether it was said that nobody counts what is spent."""
    follow: bool = False
    retain: float | None = None
    """Seconds for which answers that have arrived are kept."""

    @classmethod
    def of(
        cls,
        spec: Path,
        place: str | None,
        uncounted: bool,
        name: str | None,
        follow: bool,
        retain: str,
    ) -> Keeping:
        """As the command line has it."""
        if place is not None and uncounted:
            raise click.UsageError("--ledger and --no-ledger exclude each other")
        if place is None and (name is not None or follow):
            raise click.UsageError(f"--{'follow' if follow else 'name'} needs --ledger")
        if name is not None and not name.strip():
            raise click.BadParameter("a run needs a name", param_hint="--name")
        try:
            kept = parse_duration(retain) / 1_000_000
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--retain") from error
        return cls(place, name or spec.stem, uncounted, follow, kept)

    def insist(self, spec: Specification, inputs: Sequence[Input]) -> None:
        """Refuse a run that needs a ledger and has none."""
        if self.place is not None or self.uncounted:
            return
        limited = next((one for one in spec.private if one.limit is not None), None)
        if limited is not None:
            raise click.UsageError(
                f"{limited.name} has a limit ({limited.limit}), which only a ledger can count:"
                " name one with --ledger, or say --no-ledger"
            )
        live = next((one.source for one in inputs if one.source.live), None)
        if live is not None:
            raise click.UsageError(
                f"{live.name} has no end, so answers can only be released from a ledger: name one"
                " with --ledger"
            )


def run_protected(
    spec_file: Path,
    sources: tuple[str, ...],
    plan_file: Path | None,
    sink: str,
    mechanism: str | None,
    letters: Path | None,
    subjects: Path | None,
    learn: str | None,
    seed: int | None,
    as_json: bool,
    keeping: Keeping,
    operating: Operating,
) -> None:
    """Run, and tell the operator what came of it."""

    def read() -> Terms:
        declared = load(spec_file)
        plan = chosen_plan(declared, plan_file, mechanism)
        return Terms(registered(declared, subjects, learn), plan)

    terms = read()
    spec, plan = terms.spec, terms.plan
    inputs = opened(spec, sources, follow=keeping.follow)
    keeping.insist(spec, inputs)
    letters = letters_beside(sink, letters)
    spare([sink, letters, keeping.place], [spec_file, plan_file, subjects, *sources])
    noise = Noise() if seed is None else Noise(SeededSource(seed))
    if keeping.place is not None:
        from tacit.cli.releasing import run_durably

        told: Told = run_durably(
            terms, read, inputs, plan_file, sink, letters, noise, keeping.place, keeping, operating
        )
        click.echo(json.dumps(told.as_dict(), indent=2) if as_json else told, err=True)
        return
    with (
        watching([input_.source for input_ in inputs]) as watch,
        DeadLetters(letters) as dead_letters,
    ):
        run = protected(spec, inputs, plan, noise=noise, dead_letters=dead_letters, progress=watch)
        summary = write_answers(run, sink, protected=noise.private)
    tell_strangers(run)
    told = Told(plan, plan_file, summary)
    # Counts of tuples depend on private events, so they never go where answers may go.
    click.echo(json.dumps(told.as_dict(), indent=2) if as_json else told, err=True)


def tell_strangers(run: Detection) -> None:
    """Say which subjects private patterns name that are not registered."""
    strangers = run.flow.policies.strangers(run.engine.subjects)
    if strangers:
        click.echo(
            f"tacit: {count(len(strangers), 'subject')} whom private patterns name "
            f"{'is' if len(strangers) == 1 else 'are'} not registered, such as "
            f"'{strangers[0]}'; see that the names are right.",
            err=True,
        )


def chosen_plan(spec: Specification, plan_file: Path | None, mechanism: str | None) -> Plan:
    """The plan in a file; or one that needs no history, if that will do."""
    if plan_file is None:
        private = {name for pattern in spec.private_patterns for name in elements(pattern)}
        asked = {name for pattern in spec.query_patterns.values() for name in elements(pattern)}
        # Where no query touches anything private, there is nothing to plan.
        return plan_without_history(spec, mechanism if private & asked else "uniform")
    plan = Plan.load(plan_file, spec)
    if mechanism not in (None, "auto", plan.mechanism):
        raise PlanError(
            f"{plan_file} is a plan for the mechanism {plan.mechanism}, not for {mechanism}: make"
            f" another with tacit plan --mechanism {mechanism}, or leave --mechanism out"
        )
    return plan


@dataclass(frozen=True)
class Told:
    """What the operator is told of a protected run."""

    plan: Plan
    plan_file: Path | None
    summary: Summary

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            **self.summary.as_dict(),
            "for": "the operator alone",
            "not_private": None if self.summary.protected else SEEDED,
            "mechanism": self.plan.mechanism,
            "decode": self.plan.decode,
            "plan": None if self.plan_file is None else str(self.plan_file),
            "spent": spent(self.plan),
            "unit": unit(self.plan.spec),
        }

    def __str__(self) -> str:
        source = "without a plan" if self.plan_file is None else f"by the plan {self.plan_file}"
        made = "protected with" if self.summary.protected else "with seeded noise by"
        lines = [f"Answers {made} {self.plan.mechanism}, {source}."]
        amounts = [
            f"{one['epsilon']} for {one['private']}{_whose(one['subjects'])}"
            for one in spent(self.plan)
        ]
        if amounts:
            told = f"Spent {unit(self.plan.spec)}: epsilon {', '.join(amounts)}."
            lines += [told, self._afterwards()]
        else:
            lines = ["Nothing is declared private: the answers are true."]
        if not self.summary.protected:
            lines.insert(0, SEEDED)
        return "\n".join([*lines, f"For the operator alone: {self.summary}"])

    def _afterwards(self) -> str:
        """What another run over the same windows does."""
        return AGAIN


def spent(plan: Plan) -> list[dict[str, Any]]:
    """What is spent for each declared private pattern."""
    return [
        {
            "private": private.name,
            "epsilon": written(Fraction(private.epsilon) * plan.share),
            "subjects": None if private.subjects is None else len(private.subjects),
        }
        for private in plan.spec.private
    ]


def _whose(subjects: int | None) -> str:
    return "" if subjects is None else f" of {count(subjects, 'subject')}"
