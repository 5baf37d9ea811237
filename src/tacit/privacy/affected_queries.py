"""Queries that depend on private elements, as mechanisms that flip elements need them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tacit.patterns.residuals import Residual, find_residual, is_presence, lift_booleans
from tacit.patterns.tree import Name, Pattern, elements
from tacit.privacy.policies import Policy

MOST_ELEMENTS: Final = 6
"""With more private elements than this, a query is wide: it gets no answer table."""
MOST_SIGNALS: Final = 6
"""The largest number of public signals in an answer table."""


@dataclass(frozen=True, slots=True, eq=False)
class AffectedQuery:
    """A query that depends on private elements.

    Its context is a number: bit i says whether signal i, a pattern over public events, is
    detected. Presence is a number too: bit i says whether element i is present.
    """

    query: int
    pattern: Pattern
    elements: tuple[str, ...]
    signals: tuple[Pattern, ...]
    table: NDArray[np.bool_] | None
    """`[context][presence]`: the answer; None if presence alone does not decide it."""
    decided: NDArray[np.int8]
    """`[context]`: 1 or 0 if the query is true or false whatever private events do, else -1."""

    @property
    def wide(self) -> bool:
        """Whether it has too many private elements for tables, so that only its answer is used."""
        return len(self.elements) > MOST_ELEMENTS


def find_affected(policy: Policy, queries: Sequence[Pattern]) -> tuple[AffectedQuery, ...]:
    """Find the queries that depend on a policy's private elements."""
    private = policy.private
    return tuple(
        _analyse(number, query, private)
        for number, query in enumerate(queries)
        if not private.isdisjoint(elements(query))
    )


def _analyse(number: int, query: Pattern, private: frozenset[str]) -> AffectedQuery:
    found = tuple(sorted(private.intersection(elements(query))))
    most = MOST_ELEMENTS if len(found) <= MOST_ELEMENTS else 0
    left = find_residual(query, private, most)
    if len(_signals(left)) > MOST_SIGNALS:
        left = find_residual(query, private, 0)
    signals = _signals(left)
    whole = len(left.variables) == len(found) and all(
        isinstance(variable.atom, Name) for variable in left.variables
    )
    table = None
    if whole and is_presence(lift_booleans(query)):
        table = _table(left, signals, found)
    return AffectedQuery(number, query, found, signals, table, _find_decided(left, signals))


def _signals(left: Residual) -> tuple[Pattern, ...]:
    found = (cofactor for cofactor in left.cofactors if not isinstance(cofactor, bool))
    return tuple(dict.fromkeys(found))


def _find_decided(left: Residual, signals: tuple[Pattern, ...]) -> NDArray[np.int8]:
    """Return for each context the value that all cofactors agree on, or -1."""
    contexts = np.arange(1 << len(signals))
    values = [
        np.full(len(contexts), cofactor)
        if isinstance(cofactor, bool)
        else ((contexts >> signals.index(cofactor)) & 1).astype(np.bool_)
        for cofactor in dict.fromkeys(left.cofactors)
    ]
    always, never = np.logical_and.reduce(values), ~np.logical_or.reduce(values)
    return np.where(always, 1, np.where(never, 0, -1)).astype(np.int8)


def _table(
    left: Residual, signals: tuple[Pattern, ...], found: tuple[str, ...]
) -> NDArray[np.bool_]:
    """Tabulate the answer by context and presence; presence bits are in the order of `found`."""
    contexts = np.arange(1 << len(signals))
    order = [found.index(next(iter(variable.elements))) for variable in left.variables]
    table = np.empty((len(contexts), 1 << len(found)), np.bool_)
    for choice, cofactor in enumerate(left.cofactors):
        presence = sum(((choice >> bit) & 1) << place for bit, place in enumerate(order))
        if isinstance(cofactor, bool):
            table[:, presence] = cofactor
        else:
            table[:, presence] = (contexts >> signals.index(cofactor)) & 1
    return table
