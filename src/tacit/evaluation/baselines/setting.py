"""The setting of a baseline: event types, private patterns, queries of presence, and history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PatternError, PrivacyError
from tacit.patterns.residuals import is_presence, lift_booleans
from tacit.patterns.tree import And, Name, Not, Or, Pattern, elements
from tacit.privacy.evidence import STRENGTH
from tacit.spec.specification import Specification

Presence: TypeAlias = NDArray[np.bool_]
"""`[window][event type]`, or `[subject][window][event type]`."""
Floats: TypeAlias = NDArray[np.float64]

MOST_ELEMENTS = 12
"""A query's tables have a cell for each presence of its elements: at most 4096."""


@dataclass(frozen=True, eq=False)
class QueryTable:
    """A query as a table: bit i of a number x below 2**k is the presence of its element i."""

    columns: tuple[int, ...]
    """The numbers of its elements among the event types."""
    table: NDArray[np.bool_]
    """`[x]`: whether the query is true."""
    windows: Floats
    """`[x]`: the number of windows of history."""

    def read(self, bits: Presence) -> NDArray[np.int64]:
        """Compute the number x of each window."""
        read = np.zeros(bits.shape[:-1], np.int64)
        for place, column in enumerate(self.columns):
            read |= bits[..., column].astype(np.int64) << place
        return read

    def private_mask(self, setting: Setting) -> int:
        """Return the bits of x that are private elements."""
        private = set(setting.private_columns.tolist())
        return sum(1 << place for place, column in enumerate(self.columns) if column in private)

    def find_open(self, setting: Setting) -> NDArray[np.bool_]:
        """Return `[x]`: whether private events decide the query, given the public ones of x."""
        mask = self.private_mask(setting)
        x = np.arange(len(self.table))
        _, groups = np.unique(x & ~mask, return_inverse=True)
        true = np.bincount(groups, self.table)[groups]
        return np.asarray((true > 0) & (true < np.bincount(groups)[groups]))

    @cached_property
    def weights(self) -> Floats:
        """The weights of history, `[0 if true, 1 if false][0 as prior, 1 as seen][x]`.

        In the prior the base rates count as a few windows, so that nothing is impossible.
        """
        base = np.ones(1)
        for place in range(len(self.columns)):
            there = self.windows.reshape(-1, 2, 2**place)[:, 1].sum()
            rate = (there + 0.5) / (self.windows.sum() + 1)
            base = np.concatenate([base * (1 - rate), base * rate])
        both = np.stack([self.windows + STRENGTH * base, self.windows])
        return np.where(np.stack([self.table, ~self.table])[:, None], both, 0.0)


@dataclass(frozen=True, eq=False)
class Setting:
    """The private patterns and the queries. All private patterns have the same epsilon.

    >>> history = np.array([[True, False, True], [True, True, False]])
    >>> Setting(("a", "b", "c"), (frozenset("ab"),), (And("b", "c"),), history).longest
    2
    """

    types: tuple[str, ...]
    private: tuple[frozenset[str], ...]
    """The elements of each private pattern."""
    queries: tuple[Pattern, ...]
    history: Presence
    alphas: tuple[float, ...] = ()
    """The weight of precision for each query; the default is 1/2."""

    def __post_init__(self) -> None:
        if not self.private or not all(self.private):
            raise PrivacyError("a baseline needs private patterns, each with at least one element")
        if unknown := frozenset().union(*self.private) - set(self.types):
            raise PrivacyError(f"no event type is called '{min(unknown)}'")
        self.streams(self.history)
        for query in self.queries:
            self._check(query)

    @classmethod
    def of(cls, spec: Specification, history: Presence) -> Setting:
        """Create the setting of a specification; epsilons come from the plot's axis."""
        return cls(
            tuple(spec.events),
            tuple(frozenset(elements(pattern)) for pattern in spec.private_patterns),
            tuple(spec.query_patterns.values()),
            history,
            tuple(query.alpha for query in spec.boolean_queries),
        )

    @property
    def longest(self) -> int:
        """The number of elements m of the longest private pattern."""
        return max(map(len, self.private))

    @cached_property
    def private_columns(self) -> NDArray[np.int64]:
        """The numbers of the event types in any private pattern."""
        named = frozenset().union(*self.private)
        return np.array([n for n, name in enumerate(self.types) if name in named])

    @cached_property
    def private_part(self) -> Setting:
        """The setting without public event types; it has no queries."""
        types = tuple(self.types[column] for column in self.private_columns)
        return Setting(types, self.private, (), self.history[..., self.private_columns])

    @cached_property
    def asked(self) -> tuple[QueryTable, ...]:
        """The queries as tables."""
        return tuple(self._tabulate(lift_booleans(query)) for query in self.queries)

    def streams(self, presence: Presence) -> Presence:
        """Return presence as `[subject][window][event type]`; two dimensions mean one subject."""
        known = presence.ndim in (2, 3) and presence.shape[-1] == len(self.types)
        if not known or presence.dtype != np.bool_:
            raise PrivacyError(
                "presence must be bools [window][event type] or [subject][window][event"
                f" type] of {len(self.types)} event types; got {presence.dtype} {presence.shape}"
            )
        return np.ascontiguousarray(presence if presence.ndim == 3 else presence[None])

    def _check(self, query: Pattern) -> None:
        if not is_presence(lift_booleans(query)):
            raise PatternError(f"baselines support presence only, not order; got {query}")
        if unknown := set(elements(query)) - set(self.types):
            raise PatternError(f"no event type is called '{min(unknown)}'")
        if len(elements(query)) > MOST_ELEMENTS:
            raise PatternError(f"a query of a baseline has at most {MOST_ELEMENTS} event types")

    def _tabulate(self, query: Pattern) -> QueryTable:
        names = elements(query)
        x = np.arange(2 ** len(names))
        present = {name: (x >> place & 1).astype(np.bool_) for place, name in enumerate(names)}
        table = _value(query, present)
        asked = QueryTable(tuple(map(self.types.index, names)), table, np.zeros(len(x)))
        counts = np.bincount(asked.read(self.history).ravel(), minlength=len(x))
        return QueryTable(asked.columns, table, counts.astype(np.float64))


def _value(pattern: Pattern, present: Mapping[str, Presence]) -> Presence:
    match pattern:
        case And(parts):
            return np.asarray(np.logical_and.reduce([_value(part, present) for part in parts]))
        case Or(parts):
            return np.asarray(np.logical_or.reduce([_value(part, present) for part in parts]))
        case Not(part):
            return ~_value(part, present)
    assert isinstance(pattern, Name)
    return present[pattern.name]
