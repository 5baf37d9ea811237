"""Name options in messages: as a flag on the command line, as an argument in Python.

The same errors reach both kinds of users, so a message uses `option("ledger")` in place of
`--ledger` or `ledger=`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_ARGUMENTS: Final = {
    "no-ledger": "ledger=False",
    "history": "history",
    "json": "to_dict()",
    "allow-path": "allow_paths=",
    "archive": "archives=",
    "undelivered": "undelivered=True",
    "quality": "quality= of tacit.least_epsilon",
    "least": "least= of tacit.least_epsilon",
}
"""Python arguments whose names differ from the flag."""

_flags = False


def option(name: str, value: str = "") -> str:
    """Return an option as its user writes it; on the command line with its value's placeholder.

    >>> option("dead-letters"), option("no-ledger")
    ('dead_letters=', 'ledger=False')
    >>> with command_line():
    ...     option("dead-letters", "FILE"), option("no-ledger")
    ('--dead-letters FILE', '--no-ledger')
    """
    if _flags:
        return f"--{name} {value}".rstrip()
    return _ARGUMENTS.get(name, f"{name.replace('-', '_')}=")


def command(line: str, call: str) -> str:
    """Return a hint to do something: a command line, or a call.

    >>> command("tacit plan SPEC --history SOURCE -o PLAN", "tacit.plan(spec, history)")
    'tacit.plan(spec, history)'
    """
    return line if _flags else call


@contextmanager
def command_line() -> Iterator[None]:
    """Make messages name flags while a command runs, in all threads."""
    global _flags
    before, _flags = _flags, True
    try:
        yield
    finally:
        _flags = before
