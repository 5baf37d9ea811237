"""Read the cause of a job's failure from Flink's stack traces."""

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

    Errors of Tacit and Flink are quoted, and a missing module or program is named. Other Python
    errors are reduced to their type and line, since their messages may contain data.
    """

    when: float
    reason: str

    @classmethod
    def parse(cls, when: float, trace: str) -> Failure:
        """Parse a stack trace."""
        return cls(
            when,
            _find_own_error(trace)
            or _find_missing(trace)
            or _find_python_error(trace)
            or _find_java_error(trace),
        )


def _find_own_error(trace: str) -> str | None:
    found = list(_OURS.finditer(trace))
    return found[-1]["message"] if found else None


def _find_missing(trace: str) -> str | None:
    """Return what a TaskManager's machine lacks, if that is the cause."""
    if found := _NO_MODULE.search(trace):
        lack = f"has no module {found['name']}"
    elif found := _NO_PROGRAM.search(trace):
        lack = f"is not at {found['name']}"
    else:
        return None
    return f"Python {lack} there: install tacit[flink] on every machine, and set its interpreter"


def _find_python_error(trace: str) -> str | None:
    places = list(_PLACE.finditer(trace))
    if not places:
        return None
    after = trace[places[-1].end() :].splitlines()
    kinds = (found["kind"] for line in after if (found := _PYTHON.match(line)))
    return f"{next(kinds, 'an error')} at {places[-1]['file']}:{places[-1]['line']}"


def _find_java_error(trace: str) -> str:
    found = [match["text"] for match in _JAVA.finditer(trace)]
    return found[-1] if found else trace.strip().partition("\n")[0]
