"""What a run reports: a progress bar on a terminal, and a summary at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

import click
import numpy as np

from tacit.counting import count
from tacit.engines.refusals import MOST, Refusals
from tacit.windows.clock import NEVER

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from tacit.answers.answers import Answers
    from tacit.connectors.sources import Source
    from tacit.engines.local import Detection

UNPROTECTED = "These answers are true and unprotected: they are for the operator alone."


class Watch(Protocol):
    """Is told how far a source has been read."""

    def __call__(self, source: Source, position: int) -> None:
        """So many rows or bytes of this source have been read."""


@dataclass
class Tally:
    """What comes out of a run, counted as it comes."""

    began: float = field(default_factory=time.monotonic)
    windows: int = 0
    answers: int = 0
    first: int | None = None
    last: int = 0
    detected: dict[str, int] = field(default_factory=dict)

    def add(self, part: Answers) -> None:
        """Count these answers too."""
        self.windows += part.windows
        self.answers += len(part)
        self.first = part.first * part.step if self.first is None else self.first
        self.last = (part.first + part.windows - 1) * part.step + part.size
        for query, found in zip(part.queries, part.counts().tolist(), strict=True):
            self.detected[query] = self.detected.get(query, 0) + found


@dataclass(frozen=True)
class Summary:
    """A run in numbers."""

    protected: bool
    windows: int
    first_window: str | None
    last_window_end: str | None
    subjects: int
    queries: int
    answers: int
    detected: dict[str, int]
    tuples: int
    taken: int
    refused: dict[str, int]
    dead_letters: str | None
    seconds: float
    tuples_per_second: float

    @classmethod
    def of(cls, run: Detection, tally: Tally, *, protected: bool = False) -> Summary:
        """The summary of a run that is over."""
        counts = run.engine.counts
        refused: dict[str, int] = {}
        for (_, reason), times in run.dead_letters.counts.items():
            refused[reason] = refused.get(reason, 0) + times
        seconds = max(time.monotonic() - tally.began, 1e-9)
        taken = int(counts[0])
        letters = run.dead_letters.path
        return cls(
            protected=protected,
            windows=tally.windows,
            first_window=None if tally.first is None else iso(tally.first),
            last_window_end=None if tally.first is None else iso(tally.last),
            subjects=int(np.count_nonzero(run.engine.shard.since < NEVER)),
            queries=len(run.flow.names),
            answers=tally.answers,
            detected={name: tally.detected.get(name, 0) for name in run.flow.names},
            tuples=taken + sum(refused.values()),
            taken=taken,
            refused=refused,
            dead_letters=str(letters) if letters is not None and refused else None,
            seconds=round(seconds, 3),
            tuples_per_second=round((taken + sum(refused.values())) / seconds),
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            f"{count(self.tuples, 'tuple')} in {self.seconds:.1f} s"
            f" ({self.tuples_per_second:,.0f} per second); {count(self.answers, 'answer')}:"
            f" {count(self.windows, 'window')} x {count(self.subjects, 'subject')} x"
            f" {count(self.queries, 'query', 'queries')}."
        ]
        lines += [f"  {times:>12,}  {reason}" for reason, times in sorted(self.refused.items())]
        if self.refused:
            where = self.dead_letters or "nowhere; name a file with --dead-letters to keep them"
            lost = count(sum(self.refused.values()), "tuple")
            lines.insert(1, f"Refused: {lost} (kept: {where}):")
        return "\n".join(lines)


def judge_refusals(refusals: Refusals, allowed: float | None) -> None:
    """Say it where most of the input was refused; fail where more was than is allowed."""
    if allowed is not None:
        refusals.check(allowed)
    for message in refusal_warnings(refusals):
        click.echo(f"tacit: warning: {message}", err=True)


def refusal_warnings(refusals: Refusals) -> list[str]:
    """A warning where most of the input was refused."""
    return [str(refusals)] if refusals.exceed(MOST) else []


def iso(microseconds: int) -> str:
    """A moment as ISO 8601 in UTC, or as microseconds where the calendar ends.

    >>> iso(1_201_910_400_000_000)
    '2008-02-02T00:00:00Z'
    """
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    except OverflowError:
        return f"{microseconds} us"
    return moment.isoformat().replace("+00:00", "Z")


@contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """Show on a terminal that work is being done; what it is may be told anew."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status(what) as status:
        yield status.update


@contextmanager
def watching(sources: list[Source]) -> Iterator[Watch | None]:
    """A progress bar with rate and time left, on a terminal only."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        yield _Bars(progress, sources)


class _Bars:
    """One bar for each source."""

    def __init__(self, progress: Progress, sources: list[Source]) -> None:
        self._progress = progress
        self._began = time.monotonic()
        self._tasks: dict[int, TaskID] = {
            id(source): progress.add_task(source.name, total=source.total, rate="")
            for source in sources
        }

    def __call__(self, source: Source, position: int) -> None:
        rate = position / max(time.monotonic() - self._began, 1e-9)
        amount = f"{rate:,.0f} rows/s" if source.unit == "rows" else f"{rate / 1e6:,.1f} MB/s"
        self._progress.update(self._tasks[id(source)], completed=position, rate=amount)
