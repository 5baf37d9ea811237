"""The log on standard error: text lines or JSON lines.

Tacit's own messages contain no event content, no tuple counts, and no subject names except those
that private patterns name or that look like them. Messages of other libraries may quote data: the
log names only the library. For exceptions of other libraries it has only the class and where the
exception was raised.
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

_TACIT: Final = "tacit"
_MAX_FRAMES: Final = 12
"""How many stack frames of an exception are logged."""
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes of every record; all others are fields that the caller added."""


@contextmanager
def log_to_stderr(form: str = "text", level: str = "info") -> Iterator[None]:
    """Log Tacit's messages from this level on, and that libraries logged warnings."""
    formatter = JsonFormatter() if form == "json" else TextFormatter()
    handler = _StderrHandler()
    handler.setFormatter(formatter)
    ours, root = logging.getLogger(_TACIT), logging.getLogger()
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


class _StderrHandler(logging.Handler):
    """Writes to the current sys.stderr, which a status line may have replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record as one line."""
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except (OSError, ValueError):
            pass  # a closed log must not stop a run


class TextFormatter(logging.Formatter):
    """Formats `2026-03-01T08:00:00Z info: released 2 windows`, then named fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as text."""
        fields = extract_fields(record)
        lead = f"{fields.pop('time')} {fields.pop('level')}: {fields.pop('message')}"
        fields.pop("logger")
        rest = " ".join(
            f"{name}={json.dumps(value, default=str)}" for name, value in fields.items()
        )
        return _one_line(f"{lead} ({rest})" if rest else lead)


class JsonFormatter(logging.Formatter):
    """Formats one object per line: time, level, logger, message, then named fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as JSON."""
        return json.dumps(extract_fields(record), default=str)


def extract_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of a record that may be logged."""
    ours = record.name.split(".")[0] == _TACIT
    moment = datetime.fromtimestamp(record.created, UTC)
    fields: dict[str, Any] = {
        "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": record.getMessage() if ours else _FOREIGN.format(record.name),
    }
    if ours:
        given = (name for name in vars(record) if name not in _STANDARD)
        fields |= {name: getattr(record, name) for name in given if name not in fields}
    if record.exc_info and record.exc_info[1] is not None:
        fields["error"] = describe_error(record.exc_info[1])
    return fields


def describe_error(error: BaseException) -> str:
    """Describe an exception; the message only for Tacit's own, which never quote events."""
    if isinstance(error, TacitError) or error.__traceback__ is None:
        return str(error) if isinstance(error, TacitError) else type(error).__name__
    frames = reversed(traceback.extract_tb(error.__traceback__))
    places = [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
    return ", from ".join([f"{type(error).__name__} at {places[0]}", *places[1:_MAX_FRAMES]])


_FOREIGN: Final = "{} logged a message, left out because it may quote data"


def _one_line(text: str) -> str:
    return " | ".join(line.strip() for line in text.splitlines())
