"""How a long run is monitored: log, metrics, signals, status line and pid file."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from tacit.cli.log import log_to_stderr
from tacit.cli.signals import SignalRelay, handle_signals
from tacit.cli.status_line import show_status
from tacit.engines.metrics import Metrics, MetricsAddress, require_metrics
from tacit.errors import TacitError, translate_write_errors
from tacit.pipeline.status import RunStatus

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True)
class MonitoringOptions:
    """Where a run logs and reports, and where its process id is written."""

    metrics: MetricsAddress | None = None
    log: str = "text"
    level: str | None = None
    """By default info for live sources, else warning."""
    pid_file: Path | None = None

    @classmethod
    def parse(
        cls,
        metrics: str | None,
        log: str,
        level: str | None,
        pid_file: Path | None,
        ledger: str | None,
    ) -> MonitoringOptions:
        """Read the options of a command line."""
        for option, given in (("--metrics", metrics), ("--pid-file", pid_file)):
            if given is not None and ledger is None:
                raise click.UsageError(f"{option} needs --ledger: it is for long runs")
        try:
            address = None if metrics is None else MetricsAddress.parse(metrics)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--metrics") from error
        if address is not None:
            require_metrics()
        return cls(address, log, level, pid_file)

    @contextmanager
    def logging(self, *, live: bool) -> Iterator[None]:
        """Log to standard error; an unexpected error is logged without its message, then exits."""
        with log_to_stderr(self.log, self.level or ("info" if live else "warning")):
            try:
                yield
            except (TacitError, click.ClickException, OSError):
                raise
            except Exception:
                _LOG.exception("unexpected error; please report this bug")
                sys.exit(1)

    @contextmanager
    def handle_signals(self) -> Iterator[SignalRelay]:
        """Handle signals; begin before the run exists, because its start may take long."""
        relay = SignalRelay()
        with handle_signals(relay.stop, relay.reload):
            yield relay

    @contextmanager
    def show_status(self, status: RunStatus, *, live: bool) -> Iterator[None]:
        """Serve metrics, write the pid file and show the status line during a run."""
        with ExitStack() as stack:
            if self.metrics is not None:
                stack.enter_context(Metrics(self.metrics, status.public, time.time()))
            if self.pid_file is not None:
                stack.enter_context(write_pid_file(self.pid_file))
            if live:
                stack.enter_context(show_status(status))
            yield


@contextmanager
def write_pid_file(path: Path) -> Iterator[None]:
    """Keep the process id in a file; remove the file at the end."""
    fresh = path.with_name(f".{path.name}-{os.getpid()}")
    with translate_write_errors(path):
        fresh.write_text(f"{os.getpid()}\n")
        os.replace(fresh, path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
