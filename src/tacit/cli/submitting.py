"""`tacit submit`: the same run on a distributed engine."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from tacit.cli.detecting import named, spare
from tacit.cli.operating import Operating
from tacit.cli.paths import allowed_paths
from tacit.counting import count
from tacit.durations import parse_duration
from tacit.engines.flink.run import Outcome
from tacit.engines.flink.submitting import Options, submitted
from tacit.engines.setup import chosen_plan, with_registry
from tacit.engines.terms import Terms
from tacit.planning.plan import Plan, unit
from tacit.spec.reading import load


@dataclass(frozen=True)
class Wanted:
    """What the command line says of where and how a job runs."""

    name: str | None
    folder: Path | None
    ledger: str | None = field(repr=False)
    parallelism: int
    cluster: str | None
    python: str | None
    shards: int
    follow: bool
    idle: str
    repeats: bool
    settings: tuple[str, ...] = field(repr=False)

    def options(self, spec: Path) -> Options:
        """The same, complete."""
        name = self.name or spec.stem
        if not name.strip():
            raise click.BadParameter("a job needs a name", param_hint="--name")
        try:
            idle = parse_duration(self.idle)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--idle") from error
        pairs = [setting.partition("=") for setting in self.settings]
        for key, sign, _ in pairs:
            if not sign or not key:
                raise click.BadParameter(f"expected KEY=VALUE, got '{key}'", param_hint="--set")
        return Options(
            name,
            self.folder or Path(f"{name}.job"),
            self.ledger,
            self.parallelism,
            self.cluster,
            self.python,
            self.shards,
            self.follow,
            idle,
            self.repeats,
            {key: value for key, _, value in pairs},
        )


def run_submission(
    spec_file: Path,
    sources: tuple[str, ...],
    plan_file: Path | None,
    sink: str,
    mechanism: str | None,
    subjects: Path | None,
    wanted: Wanted,
    operating: Operating,
    as_json: bool,
) -> None:
    """Run the job to its end or until told to stop, and say what came of it."""
    declared = load(spec_file, allowed_paths())
    plan = chosen_plan(declared, plan_file, mechanism)
    spec = with_registry(declared, subjects, None)
    options = wanted.options(spec_file)
    given = [named(text, spec) for text in sources]
    spare([sink, options.ledger], [spec_file, plan_file, subjects, *sources])
    with (
        operating.logging(live=True),
        operating.listening() as calls,
        submitted(Terms(spec, plan), given, [sink], options) as run,
    ):
        calls.answer(run.stop, _cannot_reload)
        outcome = run.run()
    told = Submitted(plan, options, outcome)
    click.echo(json.dumps(told.as_dict(), indent=2) if as_json else told, err=True)


def _cannot_reload() -> None:
    click.echo("tacit: a job on a cluster is not reloaded; stop it and begin another", err=True)


@dataclass(frozen=True)
class Submitted:
    """What the operator is told of a job."""

    plan: Plan
    options: Options
    outcome: Outcome

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "for": "the operator alone",
            "engine": "flink",
            "job": self.options.name,
            "folder": str(self.options.folder),
            "parallelism": self.options.parallelism,
            "mechanism": self.plan.mechanism,
            "unit": unit(self.plan.spec),
            "outcome": asdict(self.outcome),
        }

    def __str__(self) -> str:
        outcome, options = self.outcome, self.options
        begun = "went on" if outcome.resumed else "was begun"
        lines = [
            f"The job '{options.name}' {begun}: {count(outcome.windows, 'window')} released,"
            f" {count(outcome.answers, 'answer')}, protected with {self.plan.mechanism}."
        ]
        if not outcome.finished:
            lines.append(
                f"It was stopped; give the same command again to go on (from"
                f" {outcome.savepoint}), with another --parallelism if you like."
            )
        elif outcome.resumed and not outcome.windows:
            lines.append("All windows of this input had been released before; nothing is new.")
        if any((options.folder / "letters").glob("*.jsonl")):
            lines.append(f"Refused tuples are in {options.folder / 'letters'}.")
        return "\n".join(lines)
