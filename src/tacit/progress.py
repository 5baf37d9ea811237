"""Report how far a long call is: the finished share of its work, and what it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

ProgressCallback: TypeAlias = Callable[[float, str], None]
"""Called with the finished share of the work, from 0 to 1, and what is being done.

1 means that everything is done and written. Calls come from the thread that does the work. Like
every count of tuples, the share of a run is for the operator alone.
"""


def ignore_progress(fraction: float, what: str) -> None:
    """Do nothing."""


def scale_progress(progress: ProgressCallback, begin: float, end: float) -> ProgressCallback:
    """Return a callback for one part of the work, which lasts from `begin` to `end` of the whole.

    >>> scale_progress(print, 0.5, 1)(0.5, "planning")
    0.75 planning
    """
    return lambda fraction, what: progress(begin + (end - begin) * fraction, what)


def split_progress(progress: ProgressCallback, parts: int) -> list[ProgressCallback]:
    """Return a callback for each of several equal parts of the work."""
    return [scale_progress(progress, part / parts, (part + 1) / parts) for part in range(parts)]
