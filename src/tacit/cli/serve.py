"""`tacit serve`: a protected run with HTTP in front."""

from __future__ import annotations

import gc
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tacit.cli import options
from tacit.cli.run_summary import AnswerCounts, RunSummary
from tacit.cli.warm import compile_kernels
from tacit.errors import MissingExtraError

if TYPE_CHECKING:
    from tacit.cli.monitoring import MonitoringOptions
    from tacit.cli.run_report import LedgerRunReport
    from tacit.engines.setup import RunOptions
    from tacit.pipeline.run import Run
    from tacit.service.server import ServerOptions
    from tacit.service.serving import Service, SetupOptions

MISSING = "tacit serve needs the extra tacit[service]: pip install 'tacit[service]'"
OPENID_MISSING = "--openid needs the extra tacit[openid]: pip install 'tacit[openid]'"


@click.command()
@click.argument("spec", type=click.Path(path_type=Path), required=False)
@options.allow_path
@options.optional_sources
@click.option("--host", metavar="HOST", default="127.0.0.1", show_default=True,
              help="The address to listen at; 0.0.0.0 means all.")  # fmt: skip
@click.option("--port", type=click.IntRange(0, 65535), metavar="PORT", default=8080,
              show_default=True, help="The port to listen at; 0 takes a free one.")  # fmt: skip
@options.file("--tls-certificate", help="Serve HTTPS with this certificate, in PEM format.")
@options.file("--tls-key", help="The key of the certificate.")
@options.file("--openid", help="Let people log in with OpenID Connect, with these settings (YAML).")
@options.plan
@options.history("History to plan proposals from, as for tacit plan. Repeatable.")
@options.file("--catalogue", help="What subjects may choose: patterns with bounds, as YAML.")
@click.option("--to", "sink", metavar="SINK", help="Also write answers here, as tacit run does.")
@options.mechanism
@options.dead_letters
@options.subjects
@options.learn
@options.seed
@options.ledger(
    "Charge epsilon to this ledger and serve answers from it: a file, or postgresql://..."
)
@options.name("Name of the run in the ledger; by default the name of the specification's file.")
@options.follow("Keep reading files as they grow, and folders as files are added, until stopped.")
@options.retain
@options.log
@options.log_level("info")
@options.pid_file("the service runs")
@click.option("--demo", is_flag=True,
              help="Serve generated taxis, live; prints links to log in.")  # fmt: skip
@options.as_json("Print the summary as JSON.")
@options.as_run
def serve(
    given: RunOptions,
    demo: bool,
    host: str,
    port: int,
    tls_certificate: Path | None,
    tls_key: Path | None,
    openid: Path | None,
    history: tuple[str, ...],
    catalogue: Path | None,
    log: str,
    log_level: str | None,
    pid_file: Path | None,
    as_json: bool,
) -> None:
    """Run, and serve answers over HTTP until stopped.

    The run is that of tacit run with a ledger. Sources send tuples, and consumers, subjects and
    operators read what they may see, under /v1 and with tokens that tacit token creates. A stream
    without a SOURCE is read from HTTP; stream=http adds HTTP to other sources. SIGTERM stops the
    service cleanly, and SIGHUP reloads the specification and the plan.

    Consumers propose queries, subjects choose what is private within the bounds of --catalogue, and
    operators approve; plans for that are made from --history, in the background.

    \b
    Examples:
      tacit serve --demo
      tacit token create taxi.ledger --role operator --name ann
      tacit serve taxi.yaml --plan plan.json --ledger taxi.ledger
      tacit serve taxi.yaml trips.parquet --plan plan.json --ledger taxi.ledger
      tacit serve taxi.yaml --plan plan.json --history january.parquet --ledger taxi.ledger
      tacit serve taxi.yaml mqtt://broker/taxis/+ --ledger postgresql://tacit@db/tacit --port 80
    """
    from tacit.cli.monitoring import MonitoringOptions
    from tacit.cli.sources import split_streams

    if (tls_certificate is None) != (tls_key is None):
        raise click.UsageError("--tls-certificate and --tls-key need each other")
    try:
        from tacit.service.server import ServerOptions
        from tacit.service.serving import SetupOptions
    except ModuleNotFoundError as error:
        raise MissingExtraError(MISSING) from error
    monitoring = MonitoringOptions.parse(None, log, log_level or "info", pid_file, "ledger")
    if openid is not None and find_spec("jwt") is None:
        raise MissingExtraError(OPENID_MISSING)
    where = ServerOptions(host, port, tls_certificate, tls_key, openid)
    if demo:
        if given.spec is not None or given.sources or given.ledger_place or history or catalogue:
            raise click.UsageError("--demo has its own specification, sources and ledger")
        _serve_demo(where, monitoring, as_json)
        return
    if given.spec is None or given.ledger_place is None:
        raise click.UsageError("tacit serve needs SPEC and --ledger, or --demo")
    setup = SetupOptions(split_streams(history), catalogue)
    with _open(given, where, monitoring, setup) as service:
        click.echo(f"Listening at {service.url}", err=True)
        run, counts = _answer(service, monitoring)
    _print_summary(service, run, counts, as_json)


def _serve_demo(where: ServerOptions, monitoring: MonitoringOptions, as_json: bool) -> None:
    """Prepare the demo in a temporary folder, print links, and serve."""
    from tacit.service.demo import DemoOptions, create_links, prepare_demo, send_trips

    options = DemoOptions()
    with tempfile.TemporaryDirectory(prefix="tacit-demo-") as folder:
        first = "the first time this takes about a minute"
        click.echo(f"Planning for {options.taxis} generated taxis; {first} ...", err=True)
        given, setup = prepare_demo(Path(folder), options)
        with _open(given, where, monitoring, setup) as service:
            click.echo(f"Listening at {service.url}. Log in as", err=True)
            for who, link in create_links(service.state.tokens, service.url).items():
                click.echo(f"  {who:<18} {link}", err=True)
            assert service.state.inbox is not None
            with send_trips(service.state.inbox, options):
                run, counts = _answer(service, monitoring)
        _print_summary(service, run, counts, as_json)


@contextmanager
def _open(
    given: RunOptions, where: ServerOptions, monitoring: MonitoringOptions, setup: SetupOptions
) -> Iterator[Service]:
    """Read the specification, open the sources, and listen."""
    from tacit.service.serving import open_inputs, open_service

    version = given.read()
    with (
        monitoring.logging(live=True),
        monitoring.handle_signals() as signals,
        open_inputs(given, version.spec) as opened,
        open_service(given, version, opened, where, setup) as service,
    ):
        signals.connect(service.stop, service.reload)
        yield service


def _answer(service: Service, monitoring: MonitoringOptions) -> tuple[Run, AnswerCounts]:
    """Run until a signal stops it."""
    from tacit.engines.warmup import list_run_features

    spec, mechanism = service.version.spec, service.version.plan.mechanism
    features = list_run_features("run", spec, service.inputs, mechanism, ledger=True)
    compile_kernels(features)
    counts = AnswerCounts()
    with (
        service.open_run() as run,
        monitoring.show_status(run.status, live=True),
        _freeze_objects(),
    ):
        service.answer(run, counts.add)
    return run, counts


@contextmanager
def _freeze_objects() -> Iterator[None]:
    """Leave out of garbage collections what is there now: all streams wait while they look at it.

    Most of it is code, which is never freed.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _print_summary(service: Service, run: Run, counts: AnswerCounts, as_json: bool) -> None:
    report = _make_report(service, run, counts)
    click.echo(json.dumps(report.to_dict(), indent=2) if as_json else report, err=True)


def _make_report(service: Service, run: Run, counts: AnswerCounts) -> LedgerRunReport:
    from tacit.cli.run_report import LedgerRunReport

    current, given = run.engine.windows.version, service.options
    return LedgerRunReport(
        service.version.plan if current is None else current.plan,
        given.plan,
        RunSummary.of(run, counts, protected=given.seed is None),
        run.engine.warnings,
        run.outcome,
        run.ledger_name,
        given.run_name,
    )
