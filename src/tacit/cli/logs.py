"""What a run logs, on standard error: lines for people, or JSON lines for machines.

Messages are written by Tacit and hold no event content, no count of tuples, and no subject's name
but those that private patterns name or that look like them. Other libraries may quote data in
theirs: of these only who spoke is logged, and of an exception that is not Tacit's own only its
kind and where it was raised.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from tacit.errors import TacitError

LEVELS: Final = ("debug", "info", "warning", "error")
FORMATS: Final = ("text", "json")
_OURS: Final = "tacit"
_DEPTH: Final = 12
"""How many places of an exception's way are told."""
_PLAIN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every record has; anything else is a field that was given by name."""


@contextmanager
def logging_to_stderr(form: str = "text", level: str = "info") -> Iterator[None]:
    """Log what comes from Tacit from this level on, and warnings of libraries, without words."""
    formatter = JsonLines() if form == "json" else Lines()
    handler = _StandardError()
    handler.setFormatter(formatter)
    ours, root = logging.getLogger(_OURS), logging.getLogger()
    before = ours.level, ours.propagate
    ours.setLevel(level.upper())
    ours.propagate = False
    ours.addHandler(handler)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        ours.removeHandler(handler)
        ours.setLevel(before[0])
        ours.propagate = before[1]


class _StandardError(logging.Handler):
    """Writes where standard error is now: a live line there may have put itself in between."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record as one line."""
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except (OSError, ValueError):
            pass  # nobody reads the log any more; that is no reason to stop a run


class Lines(logging.Formatter):
    """`2026-03-01T08:00:00Z info: released 2 windows`, then fields by name."""

    def format(self, record: logging.LogRecord) -> str:
        """A line for people."""
        said = entry(record)
        lead = f"{said.pop('time')} {said.pop('level')}: {said.pop('message')}"
        said.pop("logger")
        rest = " ".join(f"{name}={json.dumps(value, default=str)}" for name, value in said.items())
        return _one_line(f"{lead} ({rest})" if rest else lead)


class JsonLines(logging.Formatter):
    """An object in each line: time, level, logger, message, then fields by name."""

    def format(self, record: logging.LogRecord) -> str:
        """A line for machines."""
        return json.dumps(entry(record), default=str)


def entry(record: logging.LogRecord) -> dict[str, Any]:
    """What is logged of a record."""
    ours = record.name.split(".")[0] == _OURS
    moment = datetime.fromtimestamp(record.created, UTC)
    said: dict[str, Any] = {
        "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": record.getMessage() if ours else _FOREIGN.format(record.name),
    }
    if ours:
        given = (name for name in vars(record) if name not in _PLAIN)
        said |= {name: getattr(record, name) for name in given if name not in said}
    if record.exc_info and record.exc_info[1] is not None:
        said["error"] = described(record.exc_info[1])
    return said


def described(error: BaseException) -> str:
    """An exception without what it may quote; Tacit's own never quote event contents."""
    if isinstance(error, TacitError) or error.__traceback__ is None:
        return str(error) if isinstance(error, TacitError) else type(error).__name__
    frames = reversed(traceback.extract_tb(error.__traceback__))
    places = [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
    return ", from ".join([f"{type(error).__name__} at {places[0]}", *places[1:_DEPTH]])


_FOREIGN: Final = "{} has logged something; its words may quote data and are left out"


def _one_line(text: str) -> str:
    return " | ".join(line.strip() for line in text.splitlines())
