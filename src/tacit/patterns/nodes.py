"""Any pattern without a condition as a list of nodes, each made from earlier ones.

A node represents a set of matches, each described by its first and last time and by the events
it uses there, and perhaps for the match without events. A SEQ becomes joins of two; where a
part may have no events, there is also a join that leaves it out, for the windows in which
that is so. What `intervals` needs to keep its sets small is found here, once:

- whether an absence stands to the left or right of a node, so that a match that reaches
  further may be better than one inside it;
- which types must be counted at its first and last time: those that a join has on both
  sides, since only there can two parts use the same event.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tacit.patterns.simplification import fold, may_be_empty
from tacit.patterns.spans import (
    ABSENT,
    AFTER,
    BEFORE,
    BOTH,
    EITHER,
    EMPTY,
    EVENT,
    JOIN,
    LIMIT,
    ONLY_EMPTY,
)
from tacit.patterns.tree import And, Name, Not, Or, Pattern, Repeat, Seq, Within

_Row = tuple[int, int, int, int, tuple[int, ...]]  # kind, left, right, value, absences


@dataclass
class Node:
    """A kind, up to two nodes it is made from, a number, and the nodes that must be absent.

    The number is an event type for `EVENT` and a time in microseconds for `LIMIT`.
    """

    kind: int
    left: int = -1
    right: int = -1
    value: int = 0
    absences: tuple[int, ...] = ()
    reach_left: bool = False
    reach_right: bool = False
    counted: set[int] = field(default_factory=set)


class Nodes:
    """The nodes of one pattern; `root` is the pattern itself."""

    def __init__(self, pattern: Pattern, places: dict[str, int]) -> None:
        self.nodes: list[Node] = []
        self._known: dict[_Row, int] = {}
        self._places = places
        self.root = fold(pattern, self._lower)
        self.usage = self._measure()
        self.tracked = self._mark()

    def _node(
        self,
        kind: int,
        left: int = -1,
        right: int = -1,
        value: int = 0,
        absences: Iterable[int] = (),
    ) -> int:
        row = (kind, left, right, value, tuple(sorted(set(absences))))
        if row not in self._known:
            self._known[row] = len(self.nodes)
            self.nodes.append(Node(*row))
        return self._known[row]

    def _lower(self, pattern: Pattern, below: list[int]) -> int:
        match pattern:
            case Name(name):
                return self._node(EVENT, value=self._places[name])
            case Not():
                return self._node(ABSENT, below[0])
            case And():
                return self._fold(BOTH, below)
            case Or():
                return self._fold(EITHER, below)
            case Within(_, span):
                return self._node(LIMIT, below[0], value=span)
            case Repeat(_, 1, None):
                return self._node(EITHER, below[0], self._node(JOIN, below[0], below[0]))
            case Seq(parts):
                return self._sequence(parts, below)
        raise AssertionError("only a simplified pattern without a condition has nodes")

    def _fold(self, kind: int, below: Sequence[int]) -> int:
        result = below[0]
        for other in below[1:]:
            result = self._node(kind, result, other)
        return result

    def _sequence(self, parts: Sequence[Pattern], below: Sequence[int]) -> int:
        """Return the ways to go through the parts from left to right.

        `ways` holds, for each part that can be the last one so far, its node, the absences
        since, and the parts left out since.
        """
        ways: list[tuple[int | None, list[int], list[int]]] = [(None, [], [])]
        for part, node in zip(parts, below, strict=True):
            if isinstance(part, Not):
                for _, absences, _ in ways:
                    absences.append(self.nodes[node].left)
                continue
            through = [self._way(last, node, *since) for last, *since in ways]
            left_out = [(last, absences, [*without, node]) for last, absences, without in ways]
            ways = left_out if may_be_empty(part) else []
            ways.append((self._fold(EITHER, through), [], []))
        ended = [self._way_out(*way) for way in ways]
        return self._fold(EITHER, ended)

    def _way(self, last: int | None, node: int, absences: list[int], without: list[int]) -> int:
        if last is not None:
            node = self._node(JOIN, last, node, absences=absences)
        elif absences:
            node = self._node(AFTER, node, absences=absences)
        return self._without(node, without)

    def _way_out(self, last: int | None, absences: list[int], without: list[int]) -> int:
        if last is not None:
            end = self._node(BEFORE, last, absences=absences) if absences else last
            return self._without(end, without)
        absent = [self._node(ABSENT, absence) for absence in absences]
        return self._without(self._fold(BOTH, absent) if absent else self._node(EMPTY), without)

    def _without(self, node: int, left_out: Iterable[int]) -> int:
        """Return the node, provided that these have a match without events."""
        return self._fold(BOTH, [node, *(self._node(ONLY_EMPTY, out) for out in left_out)])

    def _measure(self) -> list[dict[int, int]]:
        """Return how many events of each type a match of each node can use at one time, at most."""
        usage: list[dict[int, int]] = []
        for node in self.nodes:
            left = usage[node.left] if node.left >= 0 else {}
            right = usage[node.right] if node.right >= 0 else {}
            match node.kind:
                case k if k == EVENT:
                    usage.append({node.value: 1})
                case k if k in (ABSENT, ONLY_EMPTY):
                    usage.append({})
                case k if k == JOIN:
                    usage.append({x: left.get(x, 0) + right.get(x, 0) for x in {**left, **right}})
                case _:
                    usage.append(
                        {x: max(left.get(x, 0), right.get(x, 0)) for x in {**left, **right}}
                    )
        return usage

    def _mark(self) -> list[int]:
        """Say from the top down what matters around each node; list the types to count."""
        for place in range(len(self.nodes) - 1, -1, -1):
            node = self.nodes[place]
            if node.kind in (EVENT, EMPTY, ABSENT, ONLY_EMPTY):
                continue
            beside = bool(node.absences)
            counted = set(node.counted)
            if node.kind == JOIN:
                counted |= self.usage[node.left].keys() & self.usage[node.right].keys()
                self._note(node.left, node.reach_left, beside, counted)
                self._note(node.right, beside, node.reach_right, counted)
                continue
            left = node.reach_left or (node.kind == AFTER and beside)
            right = node.reach_right or (node.kind == BEFORE and beside)
            for below in (node.left, node.right):
                if below >= 0:
                    self._note(below, left, right, counted)
        return sorted(set().union(*(node.counted for node in self.nodes)))

    def _note(self, place: int, left: bool, right: bool, counted: set[int]) -> None:
        node = self.nodes[place]
        node.reach_left |= left
        node.reach_right |= right
        node.counted |= counted & self.usage[place].keys()
