"""The registry of subjects of a run: listed, learned, or all that occur in the input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow.compute as pc

from tacit.events.subjects import Subjects
from tacit.pipeline.compiled_spec import CompiledSpec
from tacit.pipeline.reader import Input
from tacit.spec.subjects import LearnedSubjects, list_subjects

_STRETCH: Final = 10
"""Windows from which subjects are learned if the specification says nothing."""


def open_registry(compiled: CompiledSpec, inputs: Sequence[Input]) -> tuple[Subjects, int]:
    """Return the registry, and for how long to learn it from the stream.

    If the specification says nothing, subjects are learned from the whole input where it can be
    read twice, else from the first windows.
    """
    spec, subjects = compiled.spec, Subjects()
    given = spec.subjects
    passing = any(input_.source.once or input_.source.live for input_ in inputs)
    if given is None and not passing:
        return read_subjects(compiled, inputs), 0
    if given is None or isinstance(given, LearnedSubjects):
        return subjects, given.learn if given else _STRETCH * spec.windows.size
    subjects.add(list_subjects(given, spec.folder))
    return subjects, 0


def read_subjects(compiled: CompiledSpec, inputs: Sequence[Input]) -> Subjects:
    """Read all subjects from the sources, in order of name: the order of arrival is private."""
    found, ordered = Subjects(), Subjects()
    for input_ in inputs:
        subject = compiled.spec.streams[input_.stream].subject
        types = compiled.column_types(input_.stream, input_.source)
        for batch in input_.source.batches([subject], [subject], types):
            found.learn(batch.table.column(subject))
    ordered.add(found.names.take(pc.sort_indices(found.names)))
    return ordered
