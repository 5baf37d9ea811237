"""The summary of a run, and warnings about refused tuples."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import click

from tacit.pipeline.times import format_time
from tacit.quantities import count

if TYPE_CHECKING:
    from tacit.answers.answers import Answers
    from tacit.pipeline.refusals import Refusals
    from tacit.pipeline.run import Run


@dataclass
class AnswerCounts:
    """Counts the answers of a run as they come."""

    began: float = field(default_factory=time.monotonic)
    windows: int = 0
    answers: int = 0
    first: int | None = None
    last: int = 0
    detected: dict[str, int] = field(default_factory=dict)

    def add(self, part: Answers) -> None:
        """Count more answers."""
        self.windows += part.windows
        self.answers += len(part)
        self.first = part.first * part.step if self.first is None else self.first
        self.last = (part.first + part.windows - 1) * part.step + part.size
        for query, found in zip(part.queries, part.counts().tolist(), strict=True):
            self.detected[query] = self.detected.get(query, 0) + found


@dataclass(frozen=True)
class RunSummary:
    """The numbers of a finished run."""

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
    def of(cls, run: Run, counted: AnswerCounts, *, protected: bool = False) -> RunSummary:
        """Summarize a finished run."""
        import numpy as np

        from tacit.windows.clock import NEVER

        refused: dict[str, int] = {}
        for (_, reason), times in run.dead_letters.counts.items():
            refused[reason] = refused.get(reason, 0) + times
        seconds = max(time.monotonic() - counted.began, 1e-9)
        taken = run.refusals.taken
        letters = run.dead_letters.path
        return cls(
            protected=protected,
            windows=counted.windows,
            first_window=None if counted.first is None else format_time(counted.first),
            last_window_end=None if counted.first is None else format_time(counted.last),
            subjects=int(np.count_nonzero(run.engine.window_state.since < NEVER)),
            queries=len(run.compiled.names),
            answers=counted.answers,
            detected={name: counted.detected.get(name, 0) for name in run.compiled.names},
            tuples=taken + sum(refused.values()),
            taken=taken,
            refused=refused,
            dead_letters=str(letters) if letters is not None and refused else None,
            seconds=round(seconds, 3),
            tuples_per_second=round((taken + sum(refused.values())) / seconds),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return asdict(self)

    def _format_answers(self) -> str:
        if not self.windows:
            return "no window closed, so there is no new answer"
        return (
            f"{count(self.answers, 'answer')}: {count(self.windows, 'window')} x"
            f" {count(self.subjects, 'subject')} x {count(self.queries, 'query', 'queries')}"
        )

    def __str__(self) -> str:
        lines = [
            f"{count(self.tuples, 'tuple')} in {self.seconds:.1f} s"
            f" ({self.tuples_per_second:,.0f} per second); {self._format_answers()}."
        ]
        lines += [f"  {times:>12,}  {reason}" for reason, times in sorted(self.refused.items())]
        if self.refused:
            saved = f"saved in {self.dead_letters}"
            if self.dead_letters is None:
                saved = "not saved; use --dead-letters FILE to save them"
            refused = count(sum(self.refused.values()), "tuple")
            lines.insert(1, f"Refused: {refused} ({saved}):")
        return "\n".join(lines)


def check_refusals(refusals: Refusals, allowed: float | None) -> None:
    """Warn if most of the input was refused; raise if more was refused than is allowed."""
    if allowed is not None:
        refusals.check(allowed)
    for message in list_refusal_warnings(refusals):
        click.echo(f"tacit: warning: {message}", err=True)


def list_time_warnings(summary: RunSummary) -> list[str]:
    """Return a warning if the first window is in 1970: other numbers were read as times."""
    if summary.first_window is None or not summary.first_window.startswith("1970-"):
        return []
    return [
        "the first window is in 1970. Numbers are read as seconds or milliseconds since 1970; if"
        " they are something else, set 'unit' of the stream, or a 'format' such as '%Y%m%d' for"
        " numbers that are written dates"
    ]


def check_times(summary: RunSummary) -> None:
    """Warn if numbers of another kind were read as times."""
    for message in list_time_warnings(summary):
        click.echo(f"tacit: warning: {message}.", err=True)


def format_occurrences(summary: RunSummary, events: Mapping[str, int]) -> list[str]:
    """Say in how many windows of subjects each event type and query occurred."""
    from tacit.insight.tabular import align

    whole = max(1, summary.answers // max(1, summary.queries))
    rows = [("event", "windows", "share"), *_occurrence_rows(events, whole)]
    rows += [("query", "windows", "share"), *_occurrence_rows(summary.detected, whole)]
    return ["How often it occurred, counted by subject and window:", *align(rows)]


def _occurrence_rows(counts: Mapping[str, int], whole: int) -> list[tuple[str, str, str]]:
    return [(name, f"{times:,}", f"{times / whole:.2%}") for name, times in counts.items()]


def list_refusal_warnings(refusals: Refusals) -> list[str]:
    """Return a warning if most of the input was refused."""
    from tacit.pipeline.refusals import MOST

    return [str(refusals)] if refusals.exceed(MOST) else []
