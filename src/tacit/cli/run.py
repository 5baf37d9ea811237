"""`tacit run`: protected answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tacit.cli import options
from tacit.cli.progress import show_progress
from tacit.cli.report import AnswerCounts, RunSummary, check_refusals, list_refusal_warnings
from tacit.cli.warm import compile_kernels

if TYPE_CHECKING:
    from tacit.cli.monitoring import MonitoringOptions
    from tacit.cli.run_report import RunReport
    from tacit.engines.setup import LedgerOptions
    from tacit.pipeline.reader import Input
    from tacit.pipeline.refusals import Refusals
    from tacit.pipeline.versions import SpecVersion
    from tacit.privacy.noise import Noise


@click.command()
@options.spec
@options.allow_path
@options.sources
@options.plan
@options.sink
@options.mechanism
@options.dead_letters
@options.subjects
@options.learn
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    metavar="NUMBER",
    help="Seeded noise, for tests: the answers are NOT PRIVATE.",
)
@options.ledger(
    "Charge epsilon to this ledger and save checkpoints there: a file, or postgresql://..."
)
@click.option(
    "--no-ledger",
    is_flag=True,
    help="Run without a ledger although private patterns have limits: limits are NOT ENFORCED.",
)
@options.name("Name of the run in the ledger; by default the name of the specification's file.")
@options.follow("Keep reading files as they grow, and folders as files are added, until stopped.")
@click.option(
    "--retain",
    metavar="DURATION",
    default="7 d",
    show_default=True,
    help="How long the ledger keeps delivered answers.",
)
@click.option(
    "--metrics",
    metavar="[HOST:]PORT",
    help="Serve metrics for Prometheus; without HOST only to this machine.",
)
@options.log
@options.log_level("info for live sources, else warning")
@options.file("--pid-file", help="Write the process id to this file while the run lasts.")
@options.fail_if_refused
@options.as_json("Print the summary as JSON.")
def run(
    spec: Path,
    sources: tuple[str, ...],
    plan_file: Path | None,
    sink: str,
    mechanism: str | None,
    dead_letters: Path | None,
    subjects: Path | None,
    learn: str | None,
    seed: int | None,
    ledger_place: str | None,
    no_ledger: bool,
    name: str | None,
    follow: bool,
    retain: str,
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
    from tacit.cli.sources import check_targets, open_sources
    from tacit.engines.setup import LedgerOptions, choose_plan, letters_beside, replace_registry
    from tacit.engines.warmup import list_run_features
    from tacit.pipeline.versions import SpecVersion
    from tacit.privacy.noise import Noise
    from tacit.privacy.randomness import SeededSource
    from tacit.spec.yaml_reader import load

    if ledger_place is not None and no_ledger:
        raise click.UsageError("--ledger and --no-ledger cannot be used together")
    place = False if no_ledger else ledger_place
    ledger = LedgerOptions.of(spec.stem, place, name, follow, retain)
    monitoring = MonitoringOptions.parse(metrics, log, log_level, pid_file, ledger_place)
    allowed_paths = options.allowed_paths()

    def read() -> SpecVersion:
        declared = load(spec, allowed_paths)
        plan = choose_plan(declared, plan_file, mechanism)
        return SpecVersion(replace_registry(declared, subjects, learn), plan)

    version = read()
    inputs = open_sources(version.spec, sources, follow=follow)
    ledger.check(version.spec, inputs)
    letters = letters_beside(sink, dead_letters)
    check_targets([sink, letters, ledger.place], [spec, plan_file, subjects, *sources])
    noise = Noise() if seed is None else Noise(SeededSource(seed))
    charged = ledger.place is not None
    compile_kernels(
        list_run_features("run", version.spec, inputs, version.plan.mechanism, ledger=charged)
    )
    files = RunFiles(inputs, plan_file, sink, letters)
    if charged:
        report, refusals = run_with_ledger(version, read, files, noise, ledger, monitoring)
    else:
        report, refusals = run_without_ledger(version, files, noise)
    _print_report(report, refusals, allowed, as_json)


@dataclass(frozen=True)
class RunFiles:
    """What a run reads, and where it writes."""

    inputs: Sequence[Input]
    plan: Path | None
    sink: str
    dead_letters: Path | None


def run_without_ledger(
    version: SpecVersion, files: RunFiles, noise: Noise
) -> tuple[RunReport, Refusals]:
    """Run to the end of the input; nothing is charged."""
    from tacit.cli.run_report import RunReport
    from tacit.cli.sources import write_answers
    from tacit.pipeline.deadletters import DeadLetters
    from tacit.pipeline.run import Run

    with (
        show_progress([input_.source for input_ in files.inputs]) as progress,
        DeadLetters(files.dead_letters) as letters,
    ):
        run = Run(
            version.spec,
            files.inputs,
            plan=version.plan,
            noise=noise,
            dead_letters=letters,
            progress=progress,
        )
        summary = write_answers(run, files.sink, protected=noise.private)
    return RunReport(version.plan, files.plan, summary, run.engine.warnings), run.refusals


def run_with_ledger(
    version: SpecVersion,
    read: Callable[[], SpecVersion],
    files: RunFiles,
    noise: Noise,
    options: LedgerOptions,
    monitoring: MonitoringOptions,
) -> tuple[RunReport, Refusals]:
    """Run until the input ends or a signal stops it; `read` reads the specification again."""
    from tacit.cli.run_report import LedgerRunReport
    from tacit.connectors.openers import open_resumable_sink
    from tacit.ledger.ledger import Ledger
    from tacit.pipeline.deadletters import DeadLetters
    from tacit.pipeline.run import Run

    counts = AnswerCounts()
    sources = [input_.source for input_ in files.inputs]
    live = any(source.live for source in sources)
    with (
        monitoring.logging(live=live),
        monitoring.handle_signals() as signals,
        Ledger.open(options.place or "") as ledger,
        open_resumable_sink(files.sink) as target,
        DeadLetters(files.dead_letters, keep=True) as letters,
        show_progress([] if live else sources) as progress,
    ):
        run = Run(
            version.spec,
            files.inputs,
            plan=version.plan,
            ledger=ledger,
            sinks=[target],
            name=options.name,
            noise=noise,
            dead_letters=letters,
            progress=None if live else progress,
            retain=options.retain,
            reread=read,
        )
        signals.connect(run.stop, run.reload)
        with monitoring.show_status(run.status, live=live):
            for answers in run:
                counts.add(answers)
        summary = RunSummary.of(run, counts, protected=noise.private)
    current = run.engine.windows.version
    report = LedgerRunReport(
        version.plan if current is None else current.plan,
        files.plan,
        summary,
        run.engine.warnings,
        run.outcome,
        ledger.name,
        options.name,
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
        return
    fields = report.to_dict()
    fields["warnings"] += list_refusal_warnings(refusals)
    click.echo(json.dumps(fields, indent=2), err=True)
    if allowed is not None:
        refusals.check(allowed)
