"""Check a specification without raising: every mistake in it, in a list."""

from __future__ import annotations

from os import PathLike

from tacit.errors import Mistake, SpecificationError
from tacit.spec.specification import Specification
from tacit.spec.yaml_reader import load


def validate(spec: Specification | str | PathLike[str]) -> list[Mistake]:
    """Return the mistakes in a specification, or in the file at this path; none if it is right.

    >>> [str(mistake) for mistake in validate("no-such.yaml")]
    ['no-such.yaml: cannot read this file: No such file or directory']
    """
    if isinstance(spec, Specification):
        return list(spec.check())
    try:
        load(spec)
    except SpecificationError as error:
        return list(error.mistakes)
    return []
