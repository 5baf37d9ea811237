"""How a long run is operated: its log, its metrics, its signals, its process number."""

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

from tacit.cli.logs import logging_to_stderr
from tacit.cli.signals import Calls, listening
from tacit.cli.statusline import shown
from tacit.engines.metrics import Address, Metrics
from tacit.engines.status import Status
from tacit.errors import SinkError, TacitError

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True)
class Operating:
    """What the operator wants to see and to touch."""

    metrics: Address | None = None
    log: str = "text"
    level: str | None = None
    """By default what happens, for a run without an end, and else what goes wrong."""
    pid_file: Path | None = None

    @classmethod
    def of(
        cls,
        metrics: str | None,
        log: str,
        level: str | None,
        pid_file: Path | None,
        ledger: str | None,
    ) -> Operating:
        """As the command line has it."""
        for option, given in (("--metrics", metrics), ("--pid-file", pid_file)):
            if given is not None and ledger is None:
                raise click.UsageError(f"{option} needs --ledger: it is for runs that last")
        try:
            address = None if metrics is None else Address.parse(metrics)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--metrics") from error
        return cls(address, log, level, pid_file)

    @contextmanager
    def logging(self, *, live: bool) -> Iterator[None]:
        """Log while something is done; what ends it by mistake is logged without its words."""
        with logging_to_stderr(self.log, self.level or ("info" if live else "warning")):
            try:
                yield
            except (TacitError, click.ClickException, OSError):
                raise
            except Exception:
                _LOG.exception("ended by a mistake in the program; please report it")
                sys.exit(1)

    @contextmanager
    def listening(self) -> Iterator[Calls]:
        """Listen to signals: from the beginning, as a start may take its time."""
        calls = Calls()
        with listening(calls.stop, calls.reload):
            yield calls

    @contextmanager
    def showing(self, status: Status, *, live: bool) -> Iterator[None]:
        """Show how a run goes, while it does."""
        with ExitStack() as stack:
            if self.metrics is not None:
                stack.enter_context(Metrics(self.metrics, status.public, time.time()))
            if self.pid_file is not None:
                stack.enter_context(numbered(self.pid_file))
            if live:
                stack.enter_context(shown(status))
            yield


@contextmanager
def numbered(path: Path) -> Iterator[None]:
    """Keep the number of this process in a file while something is done."""
    fresh = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        fresh.write_text(f"{os.getpid()}\n")
        os.replace(fresh, path)
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise SinkError(f"{path} cannot be written: {why}; choose another place") from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
