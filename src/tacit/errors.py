"""Everything that Tacit raises on purpose.

TacitError
├── SpecificationError      mistakes in a specification, all of them, each with its place
├── OptionError             options of a command, or arguments, that do not fit together
├── MissingExtraError       a package of an extra that is not installed
├── PatternError            a pattern that cannot be read or used
├── SourceError             input that cannot be read at all
├── SinkError               answers that cannot be written
│   ├── ClosedPipeError     the reader of the output has closed it
│   └── UnreachableError    a receiver that does not answer now; it is tried again
├── RefusedInputError       more of the input was refused than was allowed
├── SchemaError             a source lacks a column, or a column has an unfit type
├── PrivacyError            numbers that no channel can be made of
│   ├── AuditError          a channel that reveals more than it may: an internal error
│   └── RandomnessError     the source of randomness failed, so nothing was drawn
├── PlanError               a plan that is missing, damaged or for another specification
├── StateError              a snapshot that does not belong to this engine
├── EngineError             an engine that cannot be started, reached or carry on
├── ServiceError            a service that does not answer, or refuses a request
└── LedgerError             a ledger that cannot be used
    ├── LedgerLostError     the database does not answer now; it is tried again
    ├── OutdatedLedgerError an older version, which the next run brings up to date
    ├── FencedError         another engine has taken over this run
    └── StaleError          others have charged in between; what was drawn must be drawn again

A message says what was expected, what was given, and what to do. It never contains the
contents of an event, since messages reach logs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from typing import Any


class TacitError(Exception):
    """The base class of all errors. Errors can be passed between processes."""

    def __reduce__(self) -> tuple[Any, ...]:
        # By default an error is made again from its message, which is not what `__init__` takes.
        return _restore, (type(self), self.args, self.__dict__)


def _restore(
    kind: type[TacitError], arguments: tuple[Any, ...], attributes: Mapping[str, Any]
) -> TacitError:
    """Return an error that comes from another process."""
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(attributes)
    return error


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake in a specification: where it is, what is wrong, and what to do."""

    message: str
    file: str | None = None
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part)
        return f"{place}: {self.message}" if place else self.message


class SpecificationError(TacitError):
    """A specification with mistakes; `mistakes` lists every one of them."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(str(mistake) for mistake in self.mistakes))


class OptionError(TacitError):
    """Options of a command, or arguments of a function, that do not fit together."""


class MissingExtraError(TacitError):
    """A package is not installed that belongs to an extra, such as tacit[kafka]."""


class PatternError(TacitError):
    """A pattern that cannot be read or used; `line` and `column` count from 1 in its text.

    `pattern` is the pattern's name, if it has one; `word` is the name in it that is wrong.
    """

    def __init__(
        self,
        message: str,
        line: int | None = None,
        column: int | None = None,
        *,
        pattern: str | None = None,
        word: str | None = None,
    ) -> None:
        self.message = message
        self.line = line
        self.column = column
        self.pattern = pattern
        self.word = word
        place = f"line {line}, column {column}: " if line is not None else ""
        super().__init__(place + message)


class SourceError(TacitError):
    """Input that cannot be read at all."""


class RefusedInputError(TacitError):
    """More of the input was refused than the operator allows."""


class RefusedInputWarning(UserWarning):
    """Most of the input was refused."""


class SinkError(TacitError):
    """Answers that cannot be written."""


class ClosedPipeError(SinkError):
    """The reader of the output has closed it: stop without an error message."""


class UnreachableError(SinkError):
    """A receiver does not answer now; the delivery is retried."""


class SchemaError(TacitError):
    """A source lacks a column that the specification names, or its type is unsuitable."""


class PrivacyError(TacitError):
    """Invalid numbers for a channel, or rows that it does not have."""


class AuditError(PrivacyError):
    """A channel exceeds its epsilon: an internal error; the channel is never used.

    `asked` is the allowed epsilon of neighbours, `true` their epsilon in `column` (None:
    infinite), where row `high` is more likely than row `low`.
    """

    def __init__(
        self, *, asked: Fraction, true: Fraction | None, high: int, low: int, column: int
    ) -> None:
        self.asked = asked
        self.true = true
        self.high = high
        self.low = low
        self.column = column
        found = "no epsilon at all" if true is None else f"epsilon {float(true):.12g}"
        super().__init__(
            f"a channel must keep rows {high} and {low} within epsilon {float(asked):.12g}, but"
            f" output {column} keeps them within {found}. It is not used; this is a mistake in"
            " how it was made, or the file that it was read from was changed."
        )


class RandomnessError(PrivacyError):
    """The source of randomness failed, so nothing was drawn and nothing may be released."""


class PlanError(TacitError):
    """A plan that is missing, damaged or made for another specification."""


class StateError(TacitError):
    """A snapshot that does not belong to this specification, or is damaged."""


class ServiceError(TacitError):
    """A service does not answer, or refuses a request; `status` is that of its response."""

    def __init__(self, message: str, status: int | None = None) -> None:
        self.status = status
        super().__init__(message)


class EngineError(TacitError):
    """An engine cannot start, be reached or continue; the message says what to install."""


class LedgerError(TacitError):
    """A ledger that cannot be used: it is damaged, of another version, or cannot be opened."""


class LedgerLostError(LedgerError):
    """The ledger's database does not answer now; the write is retried."""


class OutdatedLedgerError(LedgerError):
    """A ledger of an older version, which was opened for reading alone."""


class FencedError(LedgerError):
    """Another engine has taken over this run, so this one must not release anything more."""


class StaleError(LedgerError):
    """Other runs have charged the same accounts meanwhile, so noise is drawn again."""


@contextmanager
def translate_write_errors(place: object) -> Iterator[None]:
    """Turn a failure to write a file or folder into a SinkError with the reason."""
    try:
        yield
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise SinkError(f"{place} cannot be written: {why}; choose another place") from error


def nearest(name: str, known: Sequence[str]) -> str:
    """Return a hint such as ` Did you mean 'lateness'?`, or nothing if no name is close.

    >>> nearest("latenes", ["size", "lateness"])
    " Did you mean 'lateness'?"
    """
    close = get_close_matches(name, known, n=1, cutoff=0.6)
    return f" Did you mean '{close[0]}'?" if close else ""
