"""`tacit run`: sources in, protected answers out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import click

from tacit.cli.detecting import opened, spare, write_answers
from tacit.cli.operating import Operating
from tacit.cli.paths import allowed_paths
from tacit.cli.reporting import Summary, judge_refusals, refusal_warnings, watching
from tacit.cli.warming import warm_up
from tacit.connectors.deadletters import DeadLetters
from tacit.counting import count
from tacit.engines.local import protected
from tacit.engines.refusals import Refusals
from tacit.engines.setup import LedgerOptions, chosen_plan, letters_beside, with_registry
from tacit.engines.terms import Terms
from tacit.engines.warming import run_features
from tacit.planning.plan import Plan, unit
from tacit.privacy.exponentials import written
from tacit.privacy.noise import Noise
from tacit.privacy.randomness import SeededSource
from tacit.spec.reading import load

AGAIN: Final = "A run over the same windows again draws new noise and spends that epsilon again."
SEEDED: Final = (
    "NOT PRIVATE: the noise came from a seed. Who knows the seed knows the truth; never give these"
    " answers to consumers."
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
    options: LedgerOptions,
    operating: Operating,
    allowed: float | None = None,
) -> None:
    """Run, and report to the operator; fail if more than the `allowed` share was refused."""
    allow_paths = allowed_paths()

    def read() -> Terms:
        declared = load(spec_file, allow_paths)
        plan = chosen_plan(declared, plan_file, mechanism)
        return Terms(with_registry(declared, subjects, learn), plan)

    terms = read()
    spec, plan = terms.spec, terms.plan
    inputs = opened(spec, sources, follow=options.follow)
    options.check(spec, inputs)
    letters = letters_beside(sink, letters)
    spare([sink, letters, options.place], [spec_file, plan_file, subjects, *sources])
    noise = Noise() if seed is None else Noise(SeededSource(seed))
    ledger = options.place is not None
    warm_up(run_features("run", spec, inputs, plan.mechanism, ledger=ledger))
    if options.place is not None:
        from tacit.cli.releasing import run_durably

        told: Told
        told, refusals = run_durably(
            terms, read, inputs, plan_file, sink, letters, noise, options, operating
        )
        _report(told, refusals, allowed, as_json)
        return
    with (
        watching([input_.source for input_ in inputs]) as watch,
        DeadLetters(letters) as dead_letters,
    ):
        run = protected(spec, inputs, plan, noise=noise, dead_letters=dead_letters, progress=watch)
        summary = write_answers(run, sink, protected=noise.private)
    told = Told(plan, plan_file, summary, run.engine.warnings)
    _report(told, run.refusals, allowed, as_json)


def _report(told: Told, refusals: Refusals, allowed: float | None, as_json: bool) -> None:
    """Report to standard error: counts of tuples never go where answers may go.

    They depend on private events. In JSON the warnings are a part of the report.
    """
    if not as_json:
        click.echo(told, err=True)
        judge_refusals(refusals, allowed)
        return
    report = told.as_dict()
    report["warnings"] += refusal_warnings(refusals)
    click.echo(json.dumps(report, indent=2), err=True)
    if allowed is not None:
        refusals.check(allowed)


@dataclass(frozen=True)
class Told:
    """What the operator is told of a protected run."""

    plan: Plan
    plan_file: Path | None
    summary: Summary
    warnings: Sequence[str]
    """What to look at in the registry."""

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
            "warnings": list(self.warnings),
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
        lines += [f"For the operator alone: {self.summary}"]
        return "\n".join([*lines, *(f"Warning: {message}." for message in self.warnings)])

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
