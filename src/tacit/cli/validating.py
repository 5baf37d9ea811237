"""`tacit validate`: what is checked beyond the specification's own text."""

from __future__ import annotations

from pathlib import Path

from tacit.errors import Mistake, SpecificationError
from tacit.spec.specification import Specification
from tacit.spec.subjects import listed


def checked_names(spec: Specification, file: Path) -> list[str]:
    """What to look at in a registry that is listed; raises where it lacks a protected subject."""
    if not any(private.subjects for private in spec.private):
        return []
    names = listed(spec.subjects, spec.folder)
    if not names:
        return []
    import pyarrow as pa

    from tacit.privacy.naming import check_names

    try:
        return check_names(spec, pa.array(names, pa.large_string()))
    except SpecificationError as error:
        mistakes = [Mistake(mistake.message, str(file)) for mistake in error.mistakes]
        raise SpecificationError(mistakes) from error
