"""Exit codes, and the error message that goes with each."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import click

from tacit.errors import (
    AuditError,
    ClosedPipeError,
    EngineError,
    FencedError,
    LedgerError,
    MissingExtraError,
    OptionError,
    PlanError,
    RefusedInputError,
    SchemaError,
    SinkError,
    SourceError,
    SpecificationError,
    TacitError,
)
from tacit.masking import scrub
from tacit.options import command_line

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
    (RefusedInputError, 11),
    (MissingExtraError, 12),
    (TacitError, 1),
)
EXIT_CODES = """\b
Exit codes:
  0    success
  1    another error
  2    wrong usage of the command line
  3    mistakes in the specification
  4    the input cannot be read, or lacks something that the specification names
  5    the output cannot be written
  6    there is no plan, or it does not fit
  7    something exceeds its epsilon
  8    the ledger cannot be used, or was changed
  9    another engine has taken over the run
  10   the engine cannot be started or reached, or has failed
  11   more of the input was refused than --fail-if-refused allows
  12   an extra is not installed that the command needs
  130  interrupted
  141  the reader closed standard output"""


@contextmanager
def exit_on_error(arguments: Sequence[str] = ()) -> Iterator[None]:
    """Turn expected errors into a message and an exit code.

    Only a bug in Tacit shows a traceback. Secrets in the command's arguments are removed from
    messages.
    """
    try:
        with command_line():
            yield
            _flush()
    except (ClosedPipeError, BrokenPipeError):
        _exit(141)
    except OptionError as error:
        raise click.UsageError(scrub(str(error), *arguments)) from error
    except TacitError as error:
        lead = "" if isinstance(error, SpecificationError) else "tacit: "
        code = next(code for kind, code in CODES if isinstance(error, kind))
        _exit(code, *(lead + line for line in scrub(str(error), *arguments).splitlines()))
    except click.ClickException as error:
        vars(error)["message"] = scrub(error.message, *arguments)
        raise
    except KeyboardInterrupt:
        _exit(130, "tacit: interrupted")
    except UnicodeEncodeError as error:
        _exit(5, f"tacit: the output cannot be written as {error.encoding}; set PYTHONUTF8=1")
    except MemoryError:
        _exit(
            1,
            "tacit: not enough memory; free some, or use fewer subjects, fewer queries or shorter"
            " windows",
        )
    except OSError as error:
        code, why = _describe_os_error(error)
        _exit(code, f"tacit: {scrub(why, *arguments)}")


def _describe_os_error(error: OSError) -> tuple[int, str]:
    """Return the exit code and the message for an error of the operating system."""
    why = os.strerror(error.errno) if error.errno else type(error).__name__
    if error.filename is not None:
        return 1, f"{os.fsdecode(error.filename)}: {why}; check the path and its permissions"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return 5, "the output cannot be written: the disk is full; free some space"
    return 1, f"the operating system reported an error: {why}"


def _exit(code: int, *lines: str) -> NoReturn:
    """Print the message, if standard error can be written, and exit."""
    with suppress(OSError, ValueError):
        for line in lines:
            click.echo(line, err=True)
    try:
        _flush()
    except (OSError, ValueError):
        # Otherwise Python fails again when it flushes standard output at exit.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _flush() -> None:
    output: Any = sys.stdout  # None where the command was started without one
    if output is not None:
        output.flush()
