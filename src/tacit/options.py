"""How messages name an option: as a flag on the command line, as an argument in Python.

The same errors reach both kinds of users, so a message never writes `--ledger` or `ledger=` itself
but `option("ledger")`.
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
}
"""Arguments that are not called as the flag is."""

_flags = False


def option(name: str, value: str = "") -> str:
    """An option as its user writes it; on the command line with the word for its value.

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
    """A hint to do something: a command line, or a call.

    >>> command("tacit plan SPEC --history SOURCE -o PLAN", "tacit.plan(spec, history)")
    'tacit.plan(spec, history)'
    """
    return line if _flags else call


@contextmanager
def command_line() -> Iterator[None]:
    """While a command runs, messages name flags, in whatever thread they are made."""
    global _flags
    before, _flags = _flags, True
    try:
        yield
    finally:
        _flags = before
