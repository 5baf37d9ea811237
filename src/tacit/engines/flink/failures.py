"""What went wrong in a job, read from the stack traces that Flink keeps of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_OURS: Final = re.compile(r"^tacit\.errors\.\w+: (?P<message>.+)$", re.MULTILINE)
_NO_MODULE: Final = re.compile(r"^ModuleNotFoundError: No module named '(?P<name>[\w.]+)'", re.M)
_NO_PROGRAM: Final = re.compile(r'Cannot run program "(?P<name>[^"]*python[^"]*)"')
_PLACE: Final = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)', re.MULTILINE)
_PYTHON: Final = re.compile(r"^(?P<kind>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit))\b")
_JAVA: Final = re.compile(r"^(?:Caused by: )?(?P<text>[\w.$]+(?:Exception|Error)(?:: .*)?)$", re.M)


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure of a job: when, in seconds since 1970, and why.

    Tacit's own errors and Flink's are quoted, and what a machine lacks is named. Of others in
    Python only the kind and the place are told, since their words may quote data.
    """

    when: float
    reason: str

    @classmethod
    def read(cls, when: float, trace: str) -> Failure:
        """The failure that a stack trace tells of."""
        return cls(when, _ours(trace) or _absent(trace) or _python(trace) or _java(trace))


def _ours(trace: str) -> str | None:
    found = list(_OURS.finditer(trace))
    return found[-1]["message"] if found else None


def _absent(trace: str) -> str | None:
    """What a TaskManager's machine lacks."""
    if found := _NO_MODULE.search(trace):
        lack = f"has no module {found['name']}"
    elif found := _NO_PROGRAM.search(trace):
        lack = f"is not at {found['name']}"
    else:
        return None
    return f"Python {lack} there: install tacit[flink] on every machine, and name its interpreter"


def _python(trace: str) -> str | None:
    places = list(_PLACE.finditer(trace))
    if not places:
        return None
    after = trace[places[-1].end() :].splitlines()
    kinds = (found["kind"] for line in after if (found := _PYTHON.match(line)))
    return f"{next(kinds, 'an error')} at {places[-1]['file']}:{places[-1]['line']}"


def _java(trace: str) -> str:
    found = [match["text"] for match in _JAVA.finditer(trace)]
    return found[-1] if found else trace.strip().partition("\n")[0]
