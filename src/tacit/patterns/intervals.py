"""Any pattern without a condition, matched by the intervals that its parts can take.

For every node (see `nodes`) the kernel lists its matches in a window, each as an interval: first
and last time, and how many events it uses there of the types that another part may also use. The
rest of the pattern depends on nothing else:

- Order, WITHIN and absences depend only on first and last times.
- Two parts of a SEQ can use the same event only at a time where one ends and the other begins.
  Events of one type at one time are interchangeable, so two parts fit if there are as many
  events as both use together.
- The parts of an AND may share events, so that together they use as many as the one that
  uses more.

An interval is dropped if another is at least as good: inside it (or, on a side where an
absence is next to the node, with the same end) and, where the ends agree, with no more
events used there. So a node keeps about as many intervals as there are distinct times t,
unless absences stand on both sides of it: then up to t * t, since each may be the best.

Cost for a window: a join or AND compares pairs of kept intervals, about t * t for each node
at worst, and up to t**4 for an AND of composites between two absences. How many kinds of
usage there are depends on the pattern alone. Memory is that of the intervals kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.kernels import compiled
from tacit.patterns.event_lists import EventLists, Selection, read_group
from tacit.patterns.nodes import Nodes
from tacit.patterns.simplification import fold
from tacit.patterns.spans import (
    ABSENT,
    AFTER,
    BEFORE,
    BOTH,
    EITHER,
    EMPTY,
    EVENT,
    FAR,
    JOIN,
    LIMIT,
    ONLY_EMPTY,
    Store,
    both,
    copy,
    join,
    limits,
    list_events,
    new_store,
    seal,
)
from tacit.patterns.tree import Name, Not, Or, Pattern, elements

_MOST_BUCKETS = 1 << 16


@dataclass(frozen=True, slots=True)
class Intervals:
    """The tables of one pattern.

    Usage is packed: a field of `width` bits for each counted type, the highest of them kept
    free, so that all fields of a word are compared at once.
    """

    selection: Selection
    required: NDArray[np.uint64]  # event types without which there is no match
    table: NDArray[np.int64]  # [node]: kind, left, right, value, reaches left, reaches right
    absences: NDArray[np.int64]  # [node, place]: nodes that must be absent, then -1
    counted: NDArray[np.uint64]  # [node, word]: the fields of the types counted around it
    units: NDArray[np.uint64]  # [type, word]: one event in its field, if it has one
    width: int
    root: int

    @classmethod
    def of(cls, pattern: Pattern, numbers: Mapping[str, int]) -> Intervals:
        """Tables for a simplified pattern."""
        selection = Selection.of(elements(pattern), numbers)
        program = Nodes(pattern, {name: place for place, name in enumerate(selection.names)})
        nodes = program.nodes
        width = 1 + max(max(usage.values(), default=0) for usage in program.usage).bit_length()
        units = np.zeros(
            (len(selection.names), -(-len(program.tracked) // (64 // width))), np.uint64
        )
        for field, place in enumerate(program.tracked):
            word, shift = divmod(field, 64 // width)
            units[place, word] = np.uint64(1 << shift * width)
        longest = 1 + max(len(node.absences) for node in nodes)
        absences = np.full((len(nodes), longest), -1, np.int64)
        counted = np.zeros((len(nodes), units.shape[1]), np.uint64)
        for row, node in enumerate(nodes):
            absences[row, : len(node.absences)] = node.absences
            counted[row] = units[sorted(node.counted)].sum(axis=0) * np.uint64((1 << width) - 1)
        return cls(
            selection,
            Selection.of(_find_required(pattern), numbers).relevant,
            np.array(
                [(n.kind, n.left, n.right, n.value, n.reach_left, n.reach_right) for n in nodes],
                np.int64,
            ),
            absences,
            counted,
            units,
            width,
            program.root,
        )

    def run(self, lists: EventLists, column: int, out: NDArray[np.bool_]) -> None:
        """Fill a column of `out[window]`."""
        _run(
            lists.starts,
            lists.times,
            lists.masks,
            self.selection.relevant,
            self.selection.places,
            self.required,
            self.table,
            self.absences,
            self.counted,
            self.units,
            self.width,
            self.root,
            out[:, column],
        )


def _find_required(pattern: Pattern) -> frozenset[str]:
    """Event types that must be in a window for the pattern to be detected."""

    def combine(node: Pattern, below: list[frozenset[str]]) -> frozenset[str]:
        match node:
            case Name(name):
                return frozenset({name})
            case Not():
                return frozenset()
            case Or():
                return frozenset.intersection(*below) if below else frozenset()
            case _:
                return frozenset().union(*below)

    return fold(pattern, combine)


@compiled
def _run(
    starts: NDArray[np.int64],
    times: NDArray[np.int64],
    masks: NDArray[np.uint64],
    relevant: NDArray[np.uint64],
    places: NDArray[np.int64],
    required: NDArray[np.uint64],
    table: NDArray[np.int64],
    absences: NDArray[np.int64],
    counted: NDArray[np.uint64],
    units: NDArray[np.uint64],
    width: int,
    root: int,
    out: NDArray[np.bool_],
) -> None:
    """Read the distinct times of each window, then list every node's intervals in turn."""
    types = len(units)
    guard = np.uint64(0)
    for field in range(64 // width):
        guard |= np.uint64(1) << np.uint64(field * width + width - 1)
    kinds = np.empty(types, np.int64)
    moments = np.empty(64, np.int64)
    events = np.empty((64, types), np.int64)
    store = new_store(256, units.shape[1])
    heads = np.full(64, -1, np.int64)
    bounds = np.zeros((len(table), 2), np.int64)
    empty = np.zeros(len(table), np.bool_)
    for window in range(len(starts) - 1):
        here, end = starts[window], starts[window + 1]
        out[window] = False
        if not _has_all(masks, here, end, required):
            continue
        if end - here > len(moments):
            moments = np.empty(2 * (end - here), np.int64)
            events = np.empty((2 * (end - here), types), np.int64)
        count = 0
        while here < end:
            moments[count] = times[here]
            events[count] = 0
            here, found = read_group(
                times, masks, here, end, relevant, places, events[count], kinds, 0
            )
            count += found > 0
        while len(heads) < min(_MOST_BUCKETS, count * count):
            heads = np.full(2 * len(heads), -1, np.int64)
        room = _count_room(events[:count], units, (1 << (width - 1)) - 1)
        filled = int(bounds[0, 0])  # it is 0; a constant would be compiled for on its own
        for node in range(len(table)):
            bounds[node, 0] = filled
            store, filled, empty[node] = _list_node(
                table[node], absences[node], counted[node], units, width, guard, moments, events,
                room, count, store, filled, bounds, empty, heads,
            )  # fmt: skip
            bounds[node, 1] = filled
        out[window] = empty[root] or bounds[root, 1] > bounds[root, 0]


@compiled
def _has_all(masks: NDArray[np.uint64], begin: int, end: int, required: NDArray[np.uint64]) -> bool:
    for word in range(len(required)):
        missing = required[word]
        for place in range(begin, end):
            missing &= ~masks[place, word]
        if missing:
            return False
    return True


@compiled
def _count_room(
    events: NDArray[np.int64], units: NDArray[np.uint64], most: int
) -> NDArray[np.uint64]:
    """Return how many events of each counted type there are at each time, packed."""
    room = np.zeros((len(events), units.shape[1]), np.uint64)
    for moment in range(len(events)):
        for kind in range(len(units)):
            for word in range(units.shape[1]):
                room[moment, word] += units[kind, word] * np.uint64(min(most, events[moment, kind]))
    return room


@compiled
def _list_node(
    row: NDArray[np.int64],
    absent: NDArray[np.int64],
    counted: NDArray[np.uint64],
    units: NDArray[np.uint64],
    width: int,
    guard: np.uint64,
    moments: NDArray[np.int64],
    events: NDArray[np.int64],
    room: NDArray[np.uint64],
    count: int,
    store: Store,
    filled: int,
    bounds: NDArray[np.int64],
    empty: NDArray[np.bool_],
    heads: NDArray[np.int64],
) -> tuple[Store, int, bool]:
    """Append the intervals of a node; return whether it also has a match without events."""
    kind, left, right, value = row[0], row[1], row[2], row[3]
    reach = (row[4] != 0, row[5] != 0)
    one, two = bounds[left], bounds[right]
    around = (counted, guard, reach, count, heads)
    begin, without = filled, False
    if kind == EVENT:
        store, filled = list_events(store, filled, events[:count, value], units[value], around)
        return store, filled, False
    longest, latest_first, earliest_last = FAR, FAR, 0
    copies = (kind in (AFTER, BEFORE, LIMIT, EITHER), kind == EITHER)
    if kind == EMPTY:
        without = True
    elif kind == ABSENT:
        without = not empty[left] and one[0] == one[1]
    elif kind == ONLY_EMPTY:
        without = empty[left]
    elif kind == LIMIT:
        longest, without = value, empty[left]
    elif kind == EITHER:
        without = empty[left] or empty[right]
    elif kind == BOTH:
        store, filled = both(store, filled, one, two, width, around)
        copies = (empty[right], empty[left])
        without = empty[left] and empty[right]
    else:
        latest = limits(store, absent, bounds, empty, count)
        if kind == JOIN:
            store, filled = join(store, filled, one, two, latest, room, around)
        elif kind == AFTER:
            latest_first = latest[0]
        else:
            while earliest_last < count and latest[earliest_last + 1] < FAR:
                earliest_last += 1
    for side in range(2):
        if copies[side]:
            store, filled = copy(
                store,
                filled,
                bounds[row[1 + side]],
                moments,
                (longest, latest_first, earliest_last),
                around,
            )
    return store, seal(store, begin, filled, around), without
