"""The groups of subjects for counts: the values of columns of the registry file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tacit.spec.specification import Specification
from tacit.spec.subjects import SubjectFile


@dataclass(frozen=True, slots=True)
class SubjectGroups:
    """The group of each subject by column. Groups are public; an empty cell is the group ''."""

    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """For each column, the group of each subject."""

    @classmethod
    def read(cls, spec: Specification) -> SubjectGroups:
        """Read the columns that the counts of a specification name; SourceError if they lack."""
        names = dict.fromkeys(query.by for query in spec.count_queries if query.by is not None)
        registry = spec.subjects
        if not names or not isinstance(registry, SubjectFile):
            return cls()
        subjects = registry.read(spec.folder)
        columns = {name: registry.read_column(name, spec.folder) for name in names}
        return cls(
            {
                name: {subject: found.get(subject, "") for subject in subjects}
                for name, found in columns.items()
            }
        )

    def list_groups(self, by: str | None) -> list[str | None]:
        """Return the groups of a column in order of name; a single one, None, without a column."""
        return [None] if by is None else [*sorted(set(self.columns[by].values()))]

    def find_groups(self, by: str | None, subjects: pa.Array) -> NDArray[np.int32]:
        """Return the number of each subject's group in that order; -1 if it has none."""
        if by is None:
            return np.zeros(len(subjects), np.int32)
        places = {name: number for number, name in enumerate(self.list_groups(by))}
        column = self.columns[by]
        numbers = np.array([places[group] for group in column.values()] + [-1], np.int32)
        known = pa.array(list(column), pa.large_string())
        found = pc.index_in(subjects.cast(pa.large_string()), value_set=known)
        return np.asarray(numbers[pc.fill_null(found, -1).to_numpy()])
