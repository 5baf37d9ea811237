"""Summaries of a specification: a line, and a table for notebooks."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from tacit.durations import format_duration
from tacit.quantities import count

if TYPE_CHECKING:
    from tacit.spec.specification import Specification

_ROWS = 12


def summarise_spec(spec: Specification) -> str:
    """Summarise a specification in one line."""
    counts = [
        count(len(spec.streams), "stream"),
        count(len(spec.events), "event type"),
        count(len(spec.private), "private pattern"),
        count(len(spec.queries), "query", "queries"),
        f"windows of {format_duration(spec.windows.size)}"
        + ("" if spec.windows.slide is None else f" every {format_duration(spec.windows.slide)}"),
        spec.mechanism,
    ]
    return ", ".join(counts)


def format_table(spec: Specification) -> str:
    """Return an HTML table; long lists are truncated."""
    windows = spec.windows
    slide = "" if windows.slide is None else f" every {format_duration(windows.slide)}"
    late = format_duration(windows.lateness)
    schedule = f"{format_duration(windows.size)}{slide}, lateness {late}"
    rows = [
        ("windows", "", schedule),
        *_cut("stream", ((name, f"{s.subject}, {s.time}") for name, s in spec.streams.items())),
        *_cut("event", ((name, _event(spec, name)) for name in spec.events)),
        *_cut("pattern", ((name, repr(tree)) for name, tree in spec.patterns.items())),
        *_cut(
            "private", ((p.name, f"epsilon {p.epsilon} per {windows.unit}") for p in spec.private)
        ),
        *_cut("query", ((q.name, f"{q.asks} for {q.consumer}") for q in spec.queries)),
    ]
    body = "".join(
        f"<tr><th style='text-align:left'>{escape(kind)}</th>"
        f"<td style='text-align:left'>{escape(name)}</td>"
        f"<td style='text-align:left'>{escape(text)}</td></tr>"
        for kind, name, text in rows
    )
    return f"<table><caption>Specification: {escape(summarise_spec(spec))}</caption>{body}</table>"


def _event(spec: Specification, name: str) -> str:
    event = spec.events[name]
    where = f" where {event.where}" if event.where is not None else ""
    inside = f" inside {' or '.join(event.areas)}" if event.areas else ""
    return f"on {event.stream}{inside}{where}"


def _cut(kind: str, rows: Iterable[tuple[str, str]]) -> list[tuple[str, str, str]]:
    known = list(rows)
    shown = [(kind, name[:80], text[:200]) for name, text in known[:_ROWS]]
    left = len(known) - len(shown)
    return [*shown, (kind, "...", f"{left} more")] if left else shown
