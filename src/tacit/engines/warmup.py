"""Find the kernels that a run needs, and compile them in advance."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tacit.errors import TacitError
from tacit.events.predicates import parse_predicate
from tacit.kernels.ahead import compile_ahead
from tacit.kernels.needs import find_kernels
from tacit.patterns.tree import Name, walk
from tacit.pipeline.reader import Input
from tacit.spec.specification import Specification
from tacit.spec.subjects import SubjectFile

_ANY = (
    "command:*",
    "source:*",
    "subject:*",
    "time:*",
    "column:*",
    "mechanism:*",
    "ledger:*",
    "sink:*",
)
"""Features that a specification does not determine."""


def warm(spec: Specification | None = None) -> int:
    """Compile the kernels for runs of a specification, or for any run; return how many.

    Kernels that were compiled before are kept, and not compiled again.
    """
    return compile_ahead(find_kernels(None if spec is None else list_any_run_features(spec)))


def list_any_run_features(spec: Specification) -> set[str]:
    """Return the features of all runs that a specification allows."""
    return list_spec_features(spec) | {*_ANY}


def list_run_features(
    command: str,
    spec: Specification,
    inputs: Sequence[Input],
    mechanism: str | None = None,
    *,
    ledger: bool = False,
    target: str | None = None,
) -> set[str]:
    """Return the features that determine which kernels a run needs."""
    features = list_spec_features(spec) | {f"command:{command}"}
    for one in inputs:
        features |= _source_features(spec, one)
    if mechanism is not None:
        features.add(f"mechanism:{mechanism}")
    if ledger:
        features.add("ledger:yes")
    if target is not None:
        features.add(f"sink:{Path(target).suffix}")
    return features


def _source_features(spec: Specification, given: Input) -> set[str]:
    """Return the kind of a source, and the types of the columns that are read from it."""
    source, stream = given.source, spec.streams[given.stream]
    features = {f"source:{type(source).__name__}"}
    events = [event for event in spec.events.values() if event.stream == given.stream]
    conditions = [parse_predicate(event.where) for event in events if event.where is not None]
    read = {column for condition in conditions for column in condition.columns}
    columns = [("subject", stream.subject), ("time", stream.time), *(("column", c) for c in read)]
    if source.textual:
        return features | {f"{kind}:text" for kind, _ in columns}
    if source.live or source.once:
        return features
    try:
        schema = source.schema()
    except TacitError:
        return features  # the run itself reports the error
    known = [(kind, column) for kind, column in columns if schema.get_field_index(column) >= 0]
    return features | {f"{kind}:{schema.field(column).type}" for kind, column in known}


def list_spec_features(spec: Specification) -> set[str]:
    """Return the features that a specification determines."""
    asked = [*spec.query_patterns.values(), *spec.count_patterns.values()]
    patterns = [*asked, *spec.private_patterns]
    parts = (part for pattern in patterns for part in walk(pattern))
    features = {f"operator:{type(part).__name__}" for part in parts if not isinstance(part, Name)}
    if any(event.areas for event in spec.events.values()):
        features.add("areas:yes")
    if not isinstance(spec.subjects, tuple | SubjectFile):
        features.add("registry:learned")
    if spec.windows.slide not in (None, spec.windows.size):
        features.add("windows:sliding")
    return features
