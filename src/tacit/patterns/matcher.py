"""All queries of a specification, matched together.

A query is a boolean expression over the whole window: of the presence of event types, of *ordered*
sub-patterns, which depend on the times of events, and of *conditional* ones, which depend on
attributes (WHERE). Each is matched on the fastest path that is exact for it:

- presence: bit columns, 64 subjects per word (`booleans`);
- order: chains of event types, as bit-parallel automata (`chains`, `bits`, `origins`);
- intervals: everything else that has no condition (`intervals`);
- conditions: the caller supplies their bits.

Sub-patterns that are the same in several queries are matched once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PatternError, nearest
from tacit.patterns.bits import ChainBits
from tacit.patterns.booleans import GateGraph, scatter, to_columns
from tacit.patterns.chains import Chain, find_chains
from tacit.patterns.event_lists import EventLists, Selection
from tacit.patterns.intervals import Intervals
from tacit.patterns.origins import Origins
from tacit.patterns.simplification import fold, holds_condition, limit_span, simplify
from tacit.patterns.tree import And, Name, Not, Or, Pattern, Repeat, Within, children, elements

__all__ = ["Matcher", "scatter", "to_columns"]

_BOOLEAN = (Name, And, Or, Not)
PATHS = ("presence", "order", "intervals", "conditions")


class Matcher:
    """Queries prepared for matching; `types` are all event types in the order of their bits.

    `ordered_types` are those that ordered sub-patterns use: if there are none, no lists of
    events are needed. `conditional` are the sub-patterns whose bits the caller supplies.
    """

    def __init__(self, patterns: Sequence[Pattern], types: Sequence[str]) -> None:
        numbers = {name: number for number, name in enumerate(types)}
        for name in dict.fromkeys(name for pattern in patterns for name in elements(pattern)):
            if name not in numbers:
                raise PatternError(f"expected an event type; got '{name}'.{nearest(name, types)}")
        formulas = _Formulas()
        queries = [formulas.add(pattern) for pattern in patterns]
        self._paths = [PATHS[path] for _, path in queries]
        self.conditional: tuple[Pattern, ...] = tuple(formulas.conditional)
        self._ordered = _Ordered(list(formulas.chains), list(formulas.intervals), numbers)
        self.ordered_types: NDArray[np.uint64] = self._ordered.types
        atoms = [*types, *formulas.chains, *formulas.intervals, *formulas.conditional]
        self._program = formulas.gates.program(
            [literal for literal, _ in queries],
            {atom: number for number, atom in enumerate(atoms)},
        )
        self.uses_presence = bool((self._program.used < len(types)).any())
        """Whether a query depends on the presence of an event type, whatever its order."""

    def match_ordered(self, lists: EventLists) -> NDArray[np.bool_]:
        """Return whether each window has each distinct ordered sub-pattern: `[window, pattern]`."""
        return self._ordered.run(lists)

    @property
    def automaton(self) -> ChainBits | None:
        """The automaton that answers all ordered sub-patterns, if one of a single word does.

        It can be advanced through a window's tuples as they arrive, if each gives one event and
        is later than the one before: bit `final[k]` of its state answers the k-th.
        """
        return self._ordered.automaton

    @cached_property
    def ordered_when_empty(self) -> NDArray[np.bool_]:
        """Whether each ordered sub-pattern is detected in a window without events."""
        words = len(self.ordered_types)
        nothing = EventLists(
            np.zeros(2, np.int64), np.zeros(0, np.int64), np.zeros((0, words), np.uint64)
        )
        result: NDArray[np.bool_] = self.match_ordered(nothing)[0]
        return result

    def combine(self, columns: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return answers `[window, query, word]` from bit columns `[window, column, word]`.

        The columns are those of all event types, of the ordered sub-patterns and of the
        conditional ones; subject s is bit s % 64 of word s // 64. Bits past the last
        subject are undefined.
        """
        return self._program.run(columns)

    def explain(self) -> list[str]:
        """Return the slowest path that each query takes."""
        return list(self._paths)


class _Formulas:
    """Queries as boolean formulas over the columns of a window."""

    def __init__(self) -> None:
        self.gates = GateGraph()
        self.chains: dict[Chain, None] = {}
        self.intervals: dict[Pattern, None] = {}
        self.conditional: dict[Pattern, None] = {}

    def add(self, pattern: Pattern) -> tuple[int, int]:
        """Return the literal of a pattern, and the slowest path that it needs."""
        return fold(pattern, self._add_node, _boolean_parts)

    def _add_node(self, node: Pattern, below: list[tuple[int, int]]) -> tuple[int, int]:
        if _is_boolean(node):
            return self._combine(node, below)
        if holds_condition(node):
            self.conditional[node] = None
            return self.gates.column(node), 3
        return fold(simplify(node), self._add_plain, _boolean_parts)

    def _add_plain(self, node: Pattern, below: list[tuple[int, int]]) -> tuple[int, int]:
        if _is_boolean(node):
            return self._combine(node, below)
        if isinstance(node, Within) and isinstance(node.part, Repeat):
            once = limit_span(node.part.part, node.span)
            return fold(once, self._add_plain, _boolean_parts)
        return self._add_ordered(node)

    def _combine(self, node: Pattern, below: list[tuple[int, int]]) -> tuple[int, int]:
        if isinstance(node, Name):
            return self.gates.column(node.name), 0
        literals = [literal for literal, _ in below]
        path = max(path for _, path in below)
        match node:
            case And():
                return self.gates.all(literals), path
            case Or():
                return self.gates.any(literals), path
            case Not():
                return literals[0] ^ 1, path
            case _:
                return literals[0], path

    def _add_ordered(self, pattern: Pattern) -> tuple[int, int]:
        chains = find_chains(pattern)
        if chains is None:
            self.intervals[pattern] = None
            return self.gates.column(pattern), 2
        self.chains.update(dict.fromkeys(chains))
        return self.gates.any(self.gates.column(chain) for chain in chains), 1


def _is_boolean(node: Pattern) -> bool:
    """Return whether its detection follows from that of its parts; `p+` equals `p`."""
    if isinstance(node, Repeat):
        return node.least == 1
    return isinstance(node, _BOOLEAN)


def _boolean_parts(node: Pattern) -> tuple[Pattern, ...]:
    return children(node) if _is_boolean(node) else ()


class _Ordered:
    """The ordered sub-patterns, each on its path."""

    def __init__(
        self, chains: Sequence[Chain], intervals: Sequence[Pattern], numbers: dict[str, int]
    ) -> None:
        self._count = len(chains) + len(intervals)
        places = {chain: place for place, chain in enumerate(chains)}
        quick = [chain for chain in chains if chain.span is None and not chain.repeats_choice]
        counting = [chain for chain in quick if chain.repeats]
        timed = [chain for chain in chains if chain.span is not None or chain.repeats_choice]
        self._quick = _columns(quick, places), ChainBits.of(quick, _select(quick, numbers))
        self._counting = (
            _columns(counting, places),
            Origins.of(counting, _select(counting, numbers)),
        )
        self._timed = _columns(timed, places), Origins.of(timed, _select(timed, numbers))
        self._intervals = [Intervals.of(pattern, numbers) for pattern in intervals]
        names = [name for chain in chains for name in sorted(chain.types)]
        names += [name for pattern in intervals for name in elements(pattern)]
        self.types = Selection.of(names, numbers).relevant
        simple = len(quick) == self._count > 0 and len(self.types) == 1
        bits = self._quick[1]
        self.automaton = bits if simple and len(bits.begin) == 1 else None

    def run(self, lists: EventLists) -> NDArray[np.bool_]:
        """Return all columns for all windows."""
        out = np.zeros((len(lists), self._count), np.bool_)
        columns, quick = self._quick
        if len(columns):
            doubled = quick.run(lists, columns, out)
            columns, counting = self._counting
            if len(columns):
                counting.run(lists, np.flatnonzero(doubled), columns, out)
        columns, timed = self._timed
        if len(columns):
            timed.run(lists, np.arange(len(lists)), columns, out)
        for column, intervals in enumerate(self._intervals, self._count - len(self._intervals)):
            intervals.run(lists, column, out)
        return out


def _select(chains: Sequence[Chain], numbers: dict[str, int]) -> Selection:
    return Selection.of((name for chain in chains for name in sorted(chain.types)), numbers)


def _columns(chains: Sequence[Chain], places: dict[Chain, int]) -> NDArray[np.int64]:
    return np.array([places[chain] for chain in chains], np.int64)
