"""Patterns over a specification's event types, compiled to be matched on closed windows."""

from __future__ import annotations

from collections.abc import Sequence

from tacit.patterns.tree import Pattern
from tacit.spec.specification import Specification
from tacit.windows.queries import Queries


def compile_queries(
    spec: Specification, patterns: Sequence[Pattern], *, walk: bool = True
) -> Queries:
    """Compile patterns; `walk` allows an automaton that runs as tuples arrive."""
    streams = {name: event.stream for name, event in spec.events.items()}
    return Queries(patterns, tuple(spec.types), streams, walk=walk)
