"""`tacit submit`: the same run on Apache Flink."""

from __future__ import annotations

import json
import shlex
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tacit.cli import options
from tacit.cli.run_summary import check_refusals, list_refusal_warnings
from tacit.durations import parse_duration
from tacit.quantities import count

if TYPE_CHECKING:
    from tacit.engines.flink.run import FlinkRun, SubmitOutcome
    from tacit.engines.flink.submission import JobOptions
    from tacit.pipeline.versions import SpecVersion
    from tacit.planning.plan import Plan


def _number(flag: str, default: int, most: int, text: str) -> options.Decorator:
    """Define an option whose value is a number from 1 to `most`."""
    return click.option(
        flag,
        type=click.IntRange(min=1, max=most),
        default=default,
        show_default=True,
        metavar="NUMBER",
        help=text,
    )


@click.command()
@click.argument("spec", type=click.Path(path_type=Path), required=False)
@options.allow_path
@options.optional_sources
@options.plan
@click.option(
    "--to",
    "sink",
    metavar="SINK",
    help="Where to write answers: a folder such as answers/, a .jsonl or .csv file, or kafka://...",
)
@click.option(
    "--counts-to",
    metavar="SINK",
    help="Where to write counts, if queries count subjects: as for --to.",
)
@click.option(
    "--engine",
    type=click.Choice(["flink"]),
    default="flink",
    show_default=True,
    help="The engine that runs the job.",
)
@_number("--parallelism", 1, 32768, "Number of parallel tasks.")
@click.option(
    "--cluster",
    metavar="ADDRESS",
    help="REST address of a cluster: HOST:PORT, or a URL such as https://example.org/flink. By"
    " default Flink runs inside this command.",
)
@click.option(
    "--detach",
    is_flag=True,
    help="Return as soon as the job is started on the cluster; it continues by itself.",
)
@click.option(
    "--application",
    is_flag=True,
    help="This command is the program of a Flink application cluster, which has started it. Its"
    " own REST address is --cluster, by default localhost:8081.",
)
@click.option(
    "--attach",
    is_flag=True,
    help="Watch a job that is running on the cluster, by --name and --folder. Ctrl-C ends the"
    " watching, not the job.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Where the job keeps its files. Every machine must see it under the same path."
    " By default NAME.job.",
)
@options.ledger(
    "Charge epsilon to this ledger: a file, or postgresql://...; by default a file in the folder."
)
@options.name(
    "Name of the job and of its run in the ledger; by default the name of the specification's"
    " file.",
    metavar="NAME",
)
@options.mechanism
@options.subjects
@options.follow("Keep reading files and folders as they grow, until stopped.")
@click.option(
    "--idle",
    default="60 s",
    show_default=True,
    metavar="DURATION",
    help="A source without a tuple for this long no longer holds back the watermark.",
)
@_number("--shards", 16, 16384, "Number of groups of subjects; it cannot change later.")
@click.option(
    "--python",
    metavar="PROGRAM",
    help="Python with Tacit on the machines of the cluster; by default the path of this one.",
)
@click.option(
    "--repeats",
    is_flag=True,
    help="Accept a sink that may get the last release twice after a crash, with the same ids.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A Flink setting, such as execution.checkpointing.interval=5s. Repeatable.",
)
@options.metrics("Serve metrics of the job for Prometheus while this command watches it.")
@options.log
@options.log_level("info")
@options.fail_if_refused
@options.as_json("Print the summary as JSON.")
def submit(
    spec: Path | None,
    sources: tuple[str, ...],
    plan_file: Path | None,
    sink: str | None,
    engine: str,  # noqa: ARG001 - Flink is the only one
    attach: bool,
    mechanism: str | None,
    subjects: Path | None,
    metrics: str | None,
    log: str,
    log_level: str | None,
    allowed: float | None,
    as_json: bool,
    **job: Any,
) -> None:
    """Run on Apache Flink, on one machine or many.

    The answers are the same as those of tacit run. Each SOURCE is read separately, in its own
    order. Every window is released and charged once, even if processes are killed; give the same
    command again to resume. On a cluster the job continues without this command, which only watches
    it. SIGTERM or Ctrl-C stops the job with a savepoint, from which it resumes, also with another
    parallelism. Needs the extra tacit[flink] and Java 17 or 21.

    \b
    Examples:
      tacit submit taxi.yaml north.parquet south.parquet --plan plan.json --to answers/
      tacit submit taxi.yaml trips/ --plan plan.json --to answers/ --cluster flink:8081 \\
          --parallelism 8 --folder /mnt/shared/taxi.job --ledger postgresql://ledger/tacit --detach
      tacit submit --attach --name taxi --cluster flink:8081 --folder /mnt/shared/taxi.job
    """
    from tacit.engines.flink.gateway import skip_beam, start_gateway
    from tacit.engines.flink.java import require_flink

    require_flink()  # before anything else that needs an extra
    if not attach and spec is not None and sources and sink is not None:
        start_gateway()  # before slow imports
        skip_beam()
    from tacit.cli.monitoring import MonitoringOptions
    from tacit.cli.sources import check_targets, split_streams
    from tacit.engines.flink.submission import open_submission, serve_metrics

    monitoring = MonitoringOptions.parse(metrics, log, log_level, None, "in the folder")
    with (
        monitoring.logging(live=True),
        monitoring.handle_signals() as signals,
        ExitStack() as stack,
    ):
        if attach:
            job_options = _resolve_options(spec, **job)
            run = _attach(job_options)
        else:
            if spec is None or not sources or sink is None:
                raise click.UsageError("give SPEC, SOURCE... and --to, or --attach")
            job_options = _resolve_options(spec, **job)
            version = _read_version(spec, plan_file, mechanism, subjects)
            check_targets(
                [sink, job_options.counts_to, job_options.ledger],
                [spec, plan_file, subjects, *sources],
            )
            opening = open_submission(version, split_streams(sources), [sink], job_options)
            run = stack.enter_context(opening)
        stack.enter_context(serve_metrics(run, metrics))
        signals.connect(run.stop, _refuse_reload)
        outcome = run.run()
    _print_report(JobReport(run.plan, job_options, outcome), allowed, as_json)


def _attach(wanted: JobOptions) -> FlinkRun:
    from tacit.engines.flink.submission import attach

    if wanted.cluster is None:
        raise click.UsageError("--attach needs --cluster: other jobs end with their command")
    return attach(wanted.name, wanted.folder, wanted.cluster)


def _read_version(
    spec: Path, plan_file: Path | None, mechanism: str | None, subjects: Path | None
) -> SpecVersion:
    from tacit.engines.setup import choose_plan, replace_registry
    from tacit.pipeline.versions import SpecVersion
    from tacit.spec.yaml_reader import load

    declared = load(spec, options.allowed_paths())
    plan = choose_plan(declared, plan_file, mechanism)
    return SpecVersion(replace_registry(declared, subjects, None), plan)


def _resolve_options(
    spec: Path | None,
    *,
    name: str | None,
    folder: Path | None,
    ledger_place: str | None,
    idle: str,
    settings: tuple[str, ...],
    **others: Any,
) -> JobOptions:
    """Check the options of a job and fill in the defaults."""
    from tacit.engines.flink.submission import JobOptions

    name = name or ("" if spec is None else spec.stem)
    if not name.strip():
        raise click.BadParameter("the name must not be empty", param_hint="--name")
    try:
        longest = parse_duration(idle)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--idle") from error
    pairs = [setting.partition("=") for setting in settings]
    for key, sign, _ in pairs:
        if not sign or not key:
            raise click.BadParameter(f"expected KEY=VALUE, got '{key}'", param_hint="--set")
    return JobOptions(
        name,
        folder or Path(f"{name}.job"),
        ledger_place,
        idle=longest,
        settings={key: value for key, _, value in pairs},
        **others,
    )


def _print_report(report: JobReport, allowed: float | None, as_json: bool) -> None:
    """Print to standard error, for the operator; counts of tuples depend on private events."""
    refusals = report.outcome.refusals
    if not as_json:
        click.echo(report, err=True)
        check_refusals(refusals, allowed)
        return
    click.echo(json.dumps(report.to_dict(), indent=2), err=True)
    if allowed is not None:
        refusals.check(allowed)


def _refuse_reload() -> None:
    click.echo("tacit: a Flink job cannot reload; stop it and start a new one", err=True)


@dataclass(frozen=True)
class JobReport:
    """The report on a job."""

    plan: Plan
    options: JobOptions
    outcome: SubmitOutcome

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        from tacit.planning.plan import describe_unit

        return {
            "for": "the operator alone",
            "engine": "flink",
            "job": self.options.name,
            "folder": str(self.options.folder),
            "parallelism": self.options.parallelism,
            "mechanism": self.plan.mechanism,
            "unit": describe_unit(self.plan.spec),
            "outcome": asdict(self.outcome),
            "warnings": list_refusal_warnings(self.outcome.refusals),
        }

    def __str__(self) -> str:
        outcome, options = self.outcome, self.options
        started = "resumed" if outcome.resumed else "started"
        lines = [
            f"The job '{options.name}' {started}: {count(outcome.windows, 'window')} released,"
            f" {count(outcome.answers, 'answer')}, protected with {self.plan.mechanism}."
        ]
        if outcome.running:
            lines.append(
                "It continues by itself. To watch it: tacit submit --attach --name"
                f" {shlex.quote(options.name)} --folder {shlex.quote(str(options.folder))}"
                f" --cluster {shlex.quote(str(options.address))}"
            )
        elif not outcome.finished:
            state = f" from {outcome.savepoint}" if outcome.savepoint else ""
            lines.append(
                f"It was stopped. Give the same command again to resume{state}; you can change"
                " --parallelism."
            )
        elif outcome.resumed and not outcome.windows:
            lines.append("All windows of this input were already released.")
        refusals = outcome.refusals
        if refusals.refused:
            lost, whole = count(refusals.refused, "tuple"), refusals.taken + refusals.refused
            lines.append(f"Refused: {lost} of {whole:,} (saved in {options.folder / 'letters'}):")
            lines += [f"  {n:>12,}  {reason}" for reason, n in sorted(refusals.reasons.items())]
        return "\n".join(lines)
