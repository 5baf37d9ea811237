"""Check the subjects that private patterns name against the registry.

If a private pattern names a subject that the registry does not have, the real subject may be
registered under another name and would be unprotected. This is an error, raised before anything
is released. Registered names that look like a protected one but have other private patterns are
reported, since they may be the same subject.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tacit.errors import Mistake, SpecificationError
from tacit.quantities import count
from tacit.spec.lookalikes import find_lookalikes
from tacit.spec.specification import Specification

_MOST: Final = 10
"""The largest number of names in one message."""


def check_names(spec: Specification, registry: pa.Array) -> list[str]:
    """Raise SpecificationError if the registry lacks a subject that a private pattern names.

    Return warnings for the operator about registered names that look like a protected one.
    """
    missing = find_missing_names(spec, registry)
    if missing:
        raise SpecificationError([Mistake(describe_missing(missing, registry))])
    named = _list_named(spec)
    found = [
        (name, other)
        for name, others in find_lookalikes(list(named), registry).items()
        for other in others
        if named.get(other) != named[name]
    ]
    shown = [f"{other!a} looks like {name!a}" for name, other in found[:_MOST]]
    if not shown:
        return []
    return [
        f"{count(len(found), 'name')} in the registry"
        f" {'looks' if len(found) == 1 else 'look'} like a protected subject but"
        f" {'has' if len(found) == 1 else 'have'} other private patterns:"
        f" {_list_names(shown, len(found))}."
        " If they are one subject, write its name the same way everywhere"
    ]


def find_missing_names(spec: Specification, registry: pa.Array) -> list[str]:
    """Return the subjects that private patterns name but the registry does not have."""
    names = list(_list_named(spec))
    known = pc.is_in(pa.array(names, pa.large_string()), value_set=registry)
    return [name for name, there in zip(names, known.to_pylist(), strict=True) if not there]


def describe_missing(missing: Sequence[str], registry: pa.Array) -> str:
    """Describe the missing subjects, with registered names that look like them."""
    similar = find_lookalikes(missing, registry)
    shown = [
        f"{name!r}{_suggest_names(similar[name])}" if name in similar else repr(name)
        for name in missing[:_MOST]
    ]
    return (
        f"private patterns name {count(len(missing), 'subject')} that the registry does not have:"
        f" {_list_names(shown, len(missing))}. Nothing is released, since subjects registered under"
        " different names would be unprotected; write the names exactly as in the registry"
    )


def _list_named(spec: Specification) -> Mapping[str, frozenset[int]]:
    """Return the subjects that private patterns name, with the numbers of these patterns."""
    found: dict[str, frozenset[int]] = {}
    for number, private in enumerate(spec.private):
        for name in private.subjects or ():
            found[name] = found.get(name, frozenset()) | {number}
    return found


def _suggest_names(others: Sequence[str]) -> str:
    return f" (did you mean {' or '.join(map(ascii, others[:3]))}, which it has?)"


def _list_names(shown: Sequence[str], total: int) -> str:
    more = total - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more > 0 else "")
