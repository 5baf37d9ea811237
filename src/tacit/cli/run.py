"""`tacit run`: protected answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tacit.cli import options
from tacit.cli.progress import show_progress
from tacit.cli.run_summary import (
    AnswerCounts,
    RunSummary,
    check_refusals,
    check_times,
    list_refusal_warnings,
    list_time_warnings,
)
from tacit.cli.warm import compile_kernels
from tacit.progress import ignore_progress

if TYPE_CHECKING:
    from tacit.cli.monitoring import MonitoringOptions
    from tacit.cli.run_report import RunReport
    from tacit.engines.setup import RunOptions
    from tacit.pipeline.reader import Input
    from tacit.pipeline.refusals import Refusals
    from tacit.pipeline.versions import SpecVersion


@click.command()
@options.spec
@options.allow_path
@options.sources
@options.plan
@options.sink
@options.counts_to
@options.mechanism
@options.dead_letters
@options.subjects
@options.learn
@options.threads
@options.seed
@options.ledger(
    "Charge epsilon to this ledger and save checkpoints there: a file, or postgresql://..."
)
@options.no_ledger
@options.name("Name of the run in the ledger; by default the name of the specification's file.")
@options.follow("Keep reading files as they grow, and folders as files are added, until stopped.")
@options.retain
@options.metrics("Serve metrics for Prometheus; without HOST only to this machine.")
@options.log
@options.log_level("info for live sources, else warning")
@options.pid_file("the run lasts")
@options.fail_if_refused
@options.as_json("Print the summary as JSON.")
@options.as_run
def run(
    given: RunOptions,
    metrics: str | None,
    log: str,
    log_level: str | None,
    pid_file: Path | None,
    allowed: float | None,
    as_json: bool,
) -> None:
    """Answer queries, protected as the specification declares.

    Each answer has a confidence. A SOURCE is the same as for detect. Every mechanism except uniform
    needs a plan. The summary on standard error is for the operator only.

    With a ledger, every window is released and charged once. A run that was stopped or killed
    resumes where it was and delivers outstanding answers again, with the same ids. SIGTERM stops it
    cleanly. SIGHUP reloads the specification and the plan, which take effect from the next window.
    Without a ledger, another run over the same windows draws new noise and spends epsilon again.

    \b
    Examples:
      tacit run taxi.yaml february.parquet --plan plan.json --ledger spent.db --to answers.jsonl
      tacit run taxi.yaml february.parquet --mechanism uniform --no-ledger --to answers.csv
      zcat february.jsonl.gz | tacit run taxi.yaml - --plan plan.json > answers.jsonl
    """
    from tacit.cli.monitoring import MonitoringOptions
    from tacit.engines.warmup import list_run_features

    place = given.ledger_place
    monitoring = MonitoringOptions.parse(metrics, log, log_level, pid_file, place)
    version = given.read()
    inputs = given.prepare(version.spec)
    mechanism = version.plan.mechanism
    charged = place is not None
    if charged:
        import tacit.ledger.alchemy  # noqa: F401 - it raises before the work if it is missing
    compile_kernels(
        list_run_features(
            "run", version.spec, inputs, mechanism, ledger=charged, target=given.target
        )
    )
    if place is None:
        report, refusals = run_without_ledger(given, version, inputs)
    else:
        report, refusals = run_with_ledger(given, version, inputs, monitoring)
    _print_report(report, refusals, allowed, as_json)


def run_without_ledger(
    given: RunOptions, version: SpecVersion, inputs: Sequence[Input]
) -> tuple[RunReport, Refusals]:
    """Run to the end of the input; nothing is charged."""
    from tacit.cli.run_report import RunReport
    from tacit.cli.sources import write_answers
    from tacit.pipeline.deadletters import DeadLetters
    from tacit.pipeline.run import Run

    noise = given.noise()
    with (
        show_progress("Reading ...") as progress,
        DeadLetters(given.letters) as letters,
    ):
        run = Run(
            version.spec,
            inputs,
            plan=version.plan,
            noise=noise,
            dead_letters=letters,
            progress=progress,
            workers=given.workers,
        )
        target = given.target or "-"
        summary = write_answers(run, target, given.counts_target, protected=noise.private)
    return RunReport(version.plan, given.plan, summary, run.engine.warnings), run.refusals


def run_with_ledger(
    given: RunOptions,
    version: SpecVersion,
    inputs: Sequence[Input],
    monitoring: MonitoringOptions,
) -> tuple[RunReport, Refusals]:
    """Run until the input ends or a signal stops it."""
    from tacit.cli.run_report import LedgerRunReport
    from tacit.engines.ledger_run import open_prepared

    counts = AnswerCounts()
    live = any(input_.source.live for input_ in inputs)
    with (
        monitoring.logging(live=live),
        monitoring.handle_signals() as signals,
        nullcontext(ignore_progress) if live else show_progress("Reading ...") as progress,
        open_prepared(given, version, inputs, given.target or "-", progress) as run,
    ):
        signals.connect(run.stop, run.reload)
        with monitoring.show_status(run.status, live=live):
            for answers in run:
                counts.add(answers)
        summary = RunSummary.of(run, counts, protected=given.seed is None)
    current = run.engine.windows.version
    report = LedgerRunReport(
        version.plan if current is None else current.plan,
        given.plan,
        summary,
        run.engine.warnings,
        run.outcome,
        run.ledger_name,
        given.run_name,
    )
    return report, run.refusals


def _print_report(
    report: RunReport, refusals: Refusals, allowed: float | None, as_json: bool
) -> None:
    """Print to standard error: the counts of tuples must not go where answers may go.

    They depend on private events. In JSON the warnings are part of the report.
    """
    if not as_json:
        click.echo(report, err=True)
        check_refusals(refusals, allowed)
        check_times(report.summary)
        return
    fields = report.to_dict()
    fields["warnings"] += list_refusal_warnings(refusals) + list_time_warnings(report.summary)
    click.echo(json.dumps(fields, indent=2), err=True)
    if allowed is not None:
        refusals.check(allowed)
