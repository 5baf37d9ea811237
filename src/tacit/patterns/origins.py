"""Chains one state at a time: for each state the latest time at which a match could have begun.

For a chain with WITHIN a bit is not enough: what matters is how long ago the match began.
The latest beginning is enough. All that can happen to a partial match later (entering the
next state, being ended by something unwanted, too long a span) depends on its state and its
beginning, except that at the very time at which it entered its state it cannot be ended, and
its events are in use; both concern that time alone and are settled when its events are read
together. Of two partial matches in a state, the one that began later can therefore do all
that the other can.

Also for chains that repeat an element in a window where a type occurs several times at once:
here events are counted. Elements `i + 1` to `k` can be entered together if there are enough
events for each set of types among them; if so, this holds for every shorter run as well, so
two pointers find the longest run that ends at each element.

Cost: an event touches the states that wait for it; several events at one time, every state
of the chains that know them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.kernels import compiled
from tacit.patterns.chains import Chain
from tacit.patterns.lists import EventLists, Selection, read_group

_NEVER = -(1 << 62)
_ALWAYS = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Origins:
    """Chains as tables: state 0 of chain c has number `offset[c]`, and so on up to its last."""

    selection: Selection
    offset: NDArray[np.int64]
    span: NDArray[np.int64]
    group: NDArray[np.int64]  # [state]: which of its chain's sets of types leads to it
    sets: tuple[NDArray[np.int64], ...]  # the types of each set; `sets_of` chain, and in it
    sets_of: NDArray[np.int64]
    waits: tuple[NDArray[np.int64], ...]  # the states that an event of each type leads to
    ends: tuple[NDArray[np.int64], ...]  # the states that an event of each type ends
    knows: tuple[NDArray[np.int64], ...]  # the chains that an event of each type can advance

    @classmethod
    def of(cls, chains: Sequence[Chain], selection: Selection) -> Origins:
        """Tables for chains of any kind."""
        places = {name: place for place, name in enumerate(selection.names)}
        offset, sets_of = [0], [0]
        group: list[int] = []
        sets: list[list[int]] = []
        waits, ends, knows = ([[] for _ in places] for _ in range(3))  # type: ignore[var-annotated]
        for number, chain in enumerate(chains):
            distinct = list(dict.fromkeys(chain.elements))
            sets += [[places[name] for name in types] for types in distinct]
            group += [-1, *(distinct.index(types) for types in chain.elements)]
            for state, types in enumerate(chain.elements, start=offset[-1] + 1):
                for name in types:
                    waits[places[name]].append((state, number))
            for state, types in enumerate(chain.gaps, start=offset[-1]):
                for name in types:
                    ends[places[name]].append(state)
            for name in frozenset().union(*chain.elements):
                knows[places[name]].append(number)
            offset.append(len(group))
            sets_of.append(len(sets))
        return cls(
            selection,
            np.array(offset, np.int64),
            np.array([_ALWAYS if c.span is None else c.span for c in chains], np.int64),
            np.array(group, np.int64),
            _ragged(sets),
            np.array(sets_of, np.int64),
            _ragged(waits, 2),
            _ragged(ends),
            _ragged(knows),
        )

    def run(
        self,
        lists: EventLists,
        windows: NDArray[np.int64],
        columns: NDArray[np.int64],
        out: NDArray[np.bool_],
    ) -> None:
        """Fill a column of `out[window]` for each chain, for the given windows."""
        _run(
            lists.starts,
            lists.times,
            lists.masks,
            windows,
            self.selection.relevant,
            self.selection.places,
            self.offset,
            self.span,
            self.group,
            self.sets_of,
            self.sets,
            self.waits,
            self.ends,
            self.knows,
            columns,
            out,
        )


def _ragged(rows: Iterable[Sequence[object]], width: int = 0) -> tuple[NDArray[np.int64], ...]:
    """Rows of different lengths: where each begins, and all of them in a line."""
    lengths = [len(row) for row in rows]
    flat = [item for row in rows for item in row]
    return (
        np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
        np.array(flat, np.int64).reshape((-1, width) if width else -1),
    )


@compiled
def _run(
    starts: NDArray[np.int64],
    times: NDArray[np.int64],
    masks: NDArray[np.uint64],
    windows: NDArray[np.int64],
    relevant: NDArray[np.uint64],
    places: NDArray[np.int64],
    offset: NDArray[np.int64],
    span: NDArray[np.int64],
    group: NDArray[np.int64],
    sets_of: NDArray[np.int64],
    sets: tuple[NDArray[np.int64], ...],
    waits: tuple[NDArray[np.int64], ...],
    ends: tuple[NDArray[np.int64], ...],
    knows: tuple[NDArray[np.int64], ...],
    columns: NDArray[np.int64],
    out: NDArray[np.bool_],
) -> None:
    wait_at, wait = waits
    end_at, ended = ends
    chains = len(offset) - 1
    types = len(wait_at) - 1
    counts = np.zeros(types, np.int64)
    kinds = np.empty(types, np.int64)
    origin = np.empty(len(group), np.int64)
    fresh = np.empty(len(group), np.int64)
    left = np.empty(1 + len(group), np.int64)
    touched = np.empty(chains, np.int64)
    seen = np.full(chains, -1, np.int64)
    for window in windows:
        origin[:] = _NEVER
        origin[offset[:-1]] = 0
        here, end = starts[window], starts[window + 1]
        while here < end:
            time = times[here]
            here, found = read_group(times, masks, here, end, relevant, places, counts, kinds, 0)
            if found == 1 and counts[kinds[0]] == 1:
                kind = kinds[0]
                counts[kind] = 0
                for place in range(wait_at[kind], wait_at[kind + 1]):
                    fresh[place - wait_at[kind]] = _begun(
                        origin, wait[place, 0] - 1, wait[place, 0], wait[place, 1], time, offset,
                        span,
                    )  # fmt: skip
                for place in range(end_at[kind], end_at[kind + 1]):
                    origin[ended[place]] = _NEVER
                for place in range(wait_at[kind], wait_at[kind + 1]):
                    state = wait[place, 0]
                    origin[state] = max(origin[state], fresh[place - wait_at[kind]])
            elif found:
                known = _find_touched(kinds, found, knows, here, seen, touched)
                for place in range(known):
                    _advance(
                        touched[place], time, counts, offset, span, group, sets_of, sets, origin,
                        fresh, left,
                    )  # fmt: skip
                for place in range(found):
                    counts[kinds[place]] = 0
                    for killed in range(end_at[kinds[place]], end_at[kinds[place] + 1]):
                        origin[ended[killed]] = _NEVER
                for place in range(known):
                    for state in range(offset[touched[place]] + 1, offset[touched[place] + 1]):
                        origin[state] = max(origin[state], fresh[state])
        for chain in range(chains):
            out[window, columns[chain]] = origin[offset[chain + 1] - 1] != _NEVER


@compiled
def _begun(
    origin: NDArray[np.int64],
    source: int,
    state: int,
    chain: int,
    time: int,
    offset: NDArray[np.int64],
    span: NDArray[np.int64],
) -> int:
    """When a match that enters a state from another began; never, if it takes too long."""
    begun = origin[source]
    if begun == _NEVER:
        return _NEVER
    if source == offset[chain]:
        begun = time
    if state == offset[chain + 1] - 1 and time - begun > span[chain]:
        return _NEVER
    return begun


@compiled
def _find_touched(
    kinds: NDArray[np.int64],
    found: int,
    knows: tuple[NDArray[np.int64], ...],
    stamp: int,
    seen: NDArray[np.int64],
    touched: NDArray[np.int64],
) -> int:
    """List the chains that can advance by these types, each once."""
    know_at, know = knows
    known = 0
    for place in range(found):
        for index in range(know_at[kinds[place]], know_at[kinds[place] + 1]):
            chain = know[index]
            if seen[chain] != stamp:
                seen[chain] = stamp
                touched[known] = chain
                known += 1
    return known


@compiled
def _advance(
    chain: int,
    time: int,
    counts: NDArray[np.int64],
    offset: NDArray[np.int64],
    span: NDArray[np.int64],
    group: NDArray[np.int64],
    sets_of: NDArray[np.int64],
    sets: tuple[NDArray[np.int64], ...],
    origin: NDArray[np.int64],
    fresh: NDArray[np.int64],
    left: NDArray[np.int64],
) -> None:
    """The latest beginnings in the states that a chain enters at this time."""
    set_at, members = sets
    first = offset[chain]
    for place in range(sets_of[chain], sets_of[chain + 1]):
        events = 0
        for index in range(set_at[place], set_at[place + 1]):
            events += counts[members[index]]
        left[place - sets_of[chain]] = events
    source = first
    for state in range(first + 1, offset[chain + 1]):
        left[group[state]] -= 1
        while left[group[state]] < 0:
            source += 1
            left[group[source]] += 1
        begun = _NEVER
        for earlier in range(source, state):
            begun = max(begun, _begun(origin, earlier, state, chain, time, offset, span))
        fresh[state] = begun
