"""Checks across the parts of a specification: names, circular references, durations.

The checks run over a partial, so that all mistakes are found at once: a part that could not
be read is None, but its name is known; so is a field that a part needs and does not have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tacit.config import describe
from tacit.durations import format_duration
from tacit.errors import nearest
from tacit.events.areas import Area
from tacit.events.streams import Stream
from tacit.events.types import EventType
from tacit.patterns.conditions import KEYWORDS, NAME
from tacit.patterns.names import Names
from tacit.patterns.tree import Pattern, Within, walk
from tacit.spec.boolean_queries import MOST_VALUES, NONE
from tacit.spec.paths import check_path
from tacit.windows.schedule import Windows

if TYPE_CHECKING:
    from tacit.spec.specification import Private, Query
    from tacit.spec.subjects import LearnedSubjects, SubjectFile


class SpecFinding(NamedTuple):
    """A mistake, and the path to it from the top of the specification."""

    path: tuple[str | int, ...]
    message: str
    word: str | None = None
    """The word of a pattern's text that it is about."""
    of_name: bool = False
    """Whether it is about the last name on the path, not about its value."""


@dataclass(frozen=True, slots=True)
class PartialSpec:
    """A specification as far as it could be read."""

    streams: Mapping[str, Stream | None] = field(default_factory=dict)
    areas: Mapping[str, Area | None] = field(default_factory=dict)
    windows: Windows | None = None
    events: Mapping[str, EventType | None] = field(default_factory=dict)
    patterns: Mapping[str, Pattern | None] = field(default_factory=dict)
    private: Sequence[Private | None] = ()
    queries: Sequence[Query | None] = ()
    subjects: tuple[str, ...] | SubjectFile | LearnedSubjects | None = None
    folder: Path = Path()
    allow_paths: tuple[Path, ...] = ()


def find_mistakes(partial: PartialSpec) -> Iterator[SpecFinding]:
    """Yield all mistakes that concern several parts."""
    hints = Hints()
    yield from _check_names(partial)
    yield from _check_events(partial, hints)
    yield from _check_files(partial)
    yield from _check_patterns(partial)
    yield from _check_private(partial, hints)
    yield from _check_queries(partial)
    yield from _check_counts(partial)


class Hints:
    """The nearest known name, as long as looking for it is cheap: mistakes may be many."""

    def __init__(self, comparisons: int = 100_000) -> None:
        self.left = comparisons

    def __call__(self, name: str, known: Collection[str]) -> str:
        """A sentence such as ` Did you mean 'parked'?`, or nothing."""
        self.left -= len(known)
        return nearest(name, [*known]) if self.left >= 0 and len(name) < 100 else ""

    def of_subject(self, name: str, registry: Sequence[str]) -> str:
        """Return a hint for a subject; names that differ in blanks or leading zeros come first."""
        from tacit.spec.lookalikes import find_lookalikes  # it imports Polars

        similar = find_lookalikes([name], registry) if self.left >= 0 else {}
        self.left -= len(registry)
        if similar:
            return f" Did you mean {' or '.join(map(ascii, similar[name][:3]))}?"
        return self(name, registry)


def _check_names(partial: PartialSpec) -> Iterator[SpecFinding]:
    sections: dict[str, Iterable[str]] = {
        "streams": partial.streams,
        "areas": partial.areas,
        "events": partial.events,
        "patterns": partial.patterns,
    }
    for section, names in sections.items():
        for name in names:
            if not NAME.fullmatch(name):
                yield SpecFinding((section, name), _describe_bad_name(name), of_name=True)
            elif name.upper() in KEYWORDS and section in ("events", "patterns"):
                message = f"'{name}' is a word of the pattern language; choose another name"
                yield SpecFinding((section, name), message, of_name=True)
    for name in partial.patterns:
        if name in partial.events:
            message = f"'{name}' is the name of an event already; rename one of the two"
            yield SpecFinding(("patterns", name), message, of_name=True)


def _describe_bad_name(name: str) -> str:
    return (
        f"{describe(name)} cannot be a name: a name has letters A to Z, digits and '_', "
        "and does not begin with a digit"
    )


def _check_events(partial: PartialSpec, hints: Hints) -> Iterator[SpecFinding]:
    for name, event in partial.events.items():
        if event is None:
            continue
        if event.stream is not None and event.stream not in partial.streams:
            message = (
                f"event '{name}' is on stream {describe(event.stream)}, which is not declared."
                f"{hints(event.stream, partial.streams)} Declare it under streams"
            )
            yield SpecFinding(("events", name, "stream"), message)
        for place, area in enumerate(event.areas):
            if area not in partial.areas:
                message = (
                    f"event '{name}' is inside {describe(area)}, which is not declared."
                    f"{hints(area, partial.areas)} Declare it under areas"
                )
                yield SpecFinding(("events", name, "inside", place), message)


def _check_files(partial: PartialSpec) -> Iterator[SpecFinding]:
    for name, area in partial.areas.items():
        if area is not None and isinstance(area.geojson, str):
            try:
                check_path(area.geojson, partial.folder, partial.allow_paths)
                area.shape(partial.folder)
            except ValueError as error:
                yield SpecFinding(("areas", name, "geojson"), f"area '{name}': {error}")
    file = getattr(partial.subjects, "file", None)
    if file is not None:
        try:
            check_path(file, partial.folder, partial.allow_paths)
        except ValueError as error:
            yield SpecFinding(("subjects", "file"), f"cannot read the subjects: {error}")


def _check_patterns(partial: PartialSpec) -> Iterator[SpecFinding]:
    """Names, aliases and durations in all patterns."""
    known = {name: tree for name, tree in partial.patterns.items() if tree is not None}
    others = (partial.events.keys() | partial.patterns.keys()) - known.keys()
    names = Names(known, others)
    for mistake in names.mistakes:
        name = str(mistake.pattern)
        yield SpecFinding(("patterns", name), f"pattern '{name}': {mistake.message}", mistake.word)
    for name, pattern in known.items():
        yield from _check_spans(("patterns", name), f"pattern '{name}'", pattern, partial.windows)
    for path, title, pattern in _inline(partial):
        for mistake in names.check(pattern):
            yield SpecFinding(path, f"{title}: {mistake.message}", mistake.word)
        yield from _check_spans(path, title, pattern, partial.windows)


def _inline(partial: PartialSpec) -> Iterator[tuple[tuple[str | int, ...], str, Pattern]]:
    """Yield the patterns of private patterns and queries."""
    for place, private in enumerate(partial.private):
        if private is not None and private.pattern is not None:
            title = f"private pattern {describe(private.name)}"
            yield ("private", place, "pattern"), title, private.pattern
    for place, query in enumerate(partial.queries):
        if query is None:
            continue
        title = "query" if query.name is None else f"query {describe(query.name)}"
        for kind in ("pattern", "times", "count"):
            pattern = getattr(query, kind)
            if pattern is not None:
                yield ("queries", place, kind), title, pattern
        for name, pattern in (query.one_of or {}).items():
            yield ("queries", place, "one_of", name), title, pattern


def _check_spans(
    path: tuple[str | int, ...], title: str, pattern: Pattern, windows: Windows | None
) -> Iterator[SpecFinding]:
    for node in walk(pattern):
        if windows is not None and isinstance(node, Within) and node.span > windows.size:
            message = (
                f"{title} asks for WITHIN {format_duration(node.span)}, but a match lies in one "
                f"window and windows are {format_duration(windows.size)} long; make the window "
                "longer, or the WITHIN shorter"
            )
            yield SpecFinding(path, message, word="WITHIN")


def _check_private(partial: PartialSpec, hints: Hints) -> Iterator[SpecFinding]:
    seen: dict[Pattern, list[Private]] = {}
    registry = partial.subjects if isinstance(partial.subjects, tuple) else None
    listed = frozenset(registry or ())
    for place, private in enumerate(partial.private):
        if private is None:
            continue
        others = seen.setdefault(private.pattern, [])
        if private.pattern is not None and any(_overlap(private, other) for other in others):
            message = (
                f"{describe(private.name)} is declared private twice for the same subjects; "
                "keep one epsilon for each subject"
            )
            yield SpecFinding(("private", place, "pattern"), message)
        others.append(private)
        limit, epsilon = private.limit, private.epsilon
        if limit is not None and epsilon is not None and not limit.windows(epsilon):
            counted = "" if limit.amount < epsilon else ", counted in whole nano-epsilon,"
            message = (
                f"the limit of {limit}{counted} is less than the epsilon of one window "
                f"({epsilon}), so no window could ever be released with noise; raise the limit or "
                "lower epsilon"
            )
            yield SpecFinding(("private", place, "limit"), message)
        for row, subject in enumerate(private.subjects or ()):
            if registry is not None and subject not in listed:
                message = (
                    f"subject {describe(subject)} is not registered."
                    f"{hints.of_subject(subject, registry)} Add it to subjects"
                )
                yield SpecFinding(("private", place, "subjects", row), message)


def _overlap(one: Private, other: Private) -> bool:
    if () in (one.subjects, other.subjects):  # they could not be read
        return False
    if one.subjects is None or other.subjects is None:  # an entry with names replaces the other
        return one.subjects is other.subjects
    return not set(one.subjects).isdisjoint(other.subjects)


def _check_queries(partial: PartialSpec) -> Iterator[SpecFinding]:
    seen: set[str] = set()
    for place, query in enumerate(partial.queries):
        if query is None or query.name is None:
            continue
        if not NAME.fullmatch(query.name):
            yield SpecFinding(("queries", place, "name"), _describe_bad_name(query.name))
        if query.name in seen:
            message = f"there is another query called {describe(query.name)}; rename one of the two"
            yield SpecFinding(("queries", place, "name"), message)
        seen.add(query.name)
        yield from _check_values(("queries", place), query)


def _check_values(path: tuple[str | int, ...], query: Query) -> Iterator[SpecFinding]:
    """Check the values of a query with `one_of`."""
    if query.one_of is None:
        return
    title = f"query {describe(query.name)}"
    if not query.one_of or len(query.one_of) > MOST_VALUES:
        message = f"{title}: one_of needs 1 to {MOST_VALUES} patterns; got {len(query.one_of)}"
        yield SpecFinding((*path, "one_of"), message)
    for name in query.one_of:
        if name == NONE:
            message = f"{title}: '{NONE}' is the answer if no pattern is detected; choose another"
            yield SpecFinding((*path, "one_of", name), message, of_name=True)
        elif not NAME.fullmatch(name):
            yield SpecFinding((*path, "one_of", name), _describe_bad_name(name), of_name=True)


def _check_counts(partial: PartialSpec) -> Iterator[SpecFinding]:
    """Check that counts have the registry that they need."""
    for place, query in enumerate(partial.queries):
        if query is None or query.by is None:
            continue
        if getattr(partial.subjects, "column", None) is None:
            message = (
                f"counts by {describe(query.by)} need a registry file with that column: write"
                " subjects: {file: subjects.csv, column: subject}"
            )
            yield SpecFinding(("queries", place, "by"), message)
