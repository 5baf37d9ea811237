"""How a command ends: its exit code, and one clear message where something went wrong."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from tacit.errors import (
    AuditError,
    ClosedPipeError,
    EngineError,
    FencedError,
    LedgerError,
    PlanError,
    SchemaError,
    SinkError,
    SourceError,
    SpecificationError,
    TacitError,
)
from tacit.masking import scrub

CODES: tuple[tuple[type[TacitError], int], ...] = (
    (SpecificationError, 3),
    (SourceError, 4),
    (SchemaError, 4),
    (SinkError, 5),
    (PlanError, 6),
    (AuditError, 7),
    (FencedError, 9),
    (LedgerError, 8),
    (EngineError, 10),
    (TacitError, 1),
)
EXIT_CODES = """\b
Exit codes:
  0    done
  1    failed for another reason
  2    wrong usage of the command line
  3    mistakes in the specification
  4    input that cannot be read, or lacks what the specification names
  5    answers that cannot be written
  6    no plan, or a plan that does not fit
  7    something gives away more than it may
  8    a ledger that cannot be used, or was changed
  9    another engine has taken over the run
  10   an engine that cannot be started, reached or carry on
  130  interrupted
  141  the reader of standard output went away"""


@contextmanager
def ending(arguments: Sequence[str] = ()) -> Iterator[None]:
    """Turn errors into a message on standard error and an exit code.

    No message repeats a secret that stands in the command's arguments.
    """
    try:
        yield
    except (ClosedPipeError, BrokenPipeError):
        # Python would complain of the same pipe again when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except TacitError as error:
        lead = "" if isinstance(error, SpecificationError) else "tacit: "
        for line in scrub(str(error), *arguments).splitlines():
            click.echo(lead + line, err=True)
        sys.exit(next(code for kind, code in CODES if isinstance(error, kind)))
    except click.ClickException as error:
        vars(error)["message"] = scrub(error.message, *arguments)
        raise
    except KeyboardInterrupt:
        click.echo("tacit: interrupted", err=True)
        sys.exit(130)
