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

Where no element repeats there are always enough, and only states that wait for one of the
events need a look, from a chain's first to its last.

Cost: an event touches the states that wait for it; several events at one time, also every
state of the chains with repeated elements that they can advance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.kernels import compiled
from tacit.patterns.chains import Chain
from tacit.patterns.event_lists import ONE, SPREAD, TOP, EventLists, Selection, read_group

_NEVER = -(1 << 62)
_ALWAYS = (1 << 63) - 1

Rows = tuple[NDArray[np.int64], NDArray[np.int64]]  # where each row begins, and all in a line


@dataclass(frozen=True, slots=True)
class Origins:
    """Chains as tables: state 0 of chain c has number `offset[c]`, and so on up to its last."""

    selection: Selection
    offset: NDArray[np.int64]
    limit: NDArray[np.int64]  # [state]: how long ago a match that enters it may have begun
    opens: NDArray[np.bool_]  # [state]: whether entering it begins a match
    draws: NDArray[np.int64]  # [state]: the number of the set of types that leads to it
    sets: Rows  # the types of each set
    waits: Rows  # the states that an event of each type leads to, chains that repeat last
    plain: NDArray[np.int64]  # [type]: where in `waits` those of chains that repeat begin
    ends: Rows  # the states that an event of each type ends
    advances: Rows  # the chains that repeat an element and that an event of each type can advance

    @classmethod
    def of(cls, chains: Sequence[Chain], selection: Selection) -> Origins:
        """Tables for chains of any kind."""
        places = {name: place for place, name in enumerate(selection.names)}
        waits: list[list[tuple[bool, int]]] = [[] for _ in places]
        ends: list[list[int]] = [[] for _ in places]
        advances: list[list[int]] = [[] for _ in places]
        sets: list[list[int]] = []
        offset, limit, draws = [0], list[int](), list[int]()
        for number, chain in enumerate(chains):
            distinct = {
                types: len(sets) + n for n, types in enumerate(dict.fromkeys(chain.elements))
            }
            sets += [[places[name] for name in types] for types in distinct]
            draws += [-1, *(distinct[types] for types in chain.elements)]
            limit += [_ALWAYS] * len(chain.elements)
            limit.append(_ALWAYS if chain.span is None else chain.span)
            for state, types in enumerate(chain.elements, start=offset[-1] + 1):
                for name in types:
                    waits[places[name]].append((chain.repeats, state))
            for state, types in enumerate(chain.gaps, start=offset[-1]):
                for name in types:
                    ends[places[name]].append(state)
            for name in frozenset().union(*chain.elements) if chain.repeats else ():
                advances[places[name]].append(number)
            offset.append(len(draws))
        wait_rows = _rows([[state for _, state in sorted(row)] for row in waits])
        plain = [sum(not repeats for repeats, _ in row) for row in waits]
        opens = np.zeros(len(draws), np.bool_)
        opens[np.array(offset[:-1], np.int64) + 1] = True
        return cls(
            selection,
            np.array(offset, np.int64),
            np.array(limit, np.int64),
            opens,
            np.array(draws, np.int64),
            _rows(sets),
            wait_rows,
            wait_rows[0][:-1] + np.array(plain, np.int64),
            _rows(ends),
            _rows(advances),
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
            (self.offset, self.limit, self.opens, self.draws),
            self.sets,
            self.waits,
            self.plain,
            self.ends,
            self.advances,
            columns,
            out,
        )


def _rows(rows: Sequence[Sequence[int]]) -> Rows:
    lengths = [len(row) for row in rows]
    return (
        np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
        np.array([item for row in rows for item in row], np.int64),
    )


@compiled
def _run(
    starts: NDArray[np.int64],
    times: NDArray[np.int64],
    masks: NDArray[np.uint64],
    windows: NDArray[np.int64],
    relevant: NDArray[np.uint64],
    places: NDArray[np.int64],
    states: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]],
    sets: Rows,
    waits: Rows,
    plain: NDArray[np.int64],
    ends: Rows,
    advances: Rows,
    columns: NDArray[np.int64],
    out: NDArray[np.bool_],
) -> None:
    offset, limit, opens, draws = states
    wait_at, wait = waits
    end_at, ended = ends
    chains = len(offset) - 1
    counts = np.zeros(len(plain), np.int64)
    kinds = np.empty(len(plain), np.int64)
    origin = np.empty(len(draws), np.int64)
    fresh = np.empty(len(draws), np.int64)
    line = np.empty(len(draws), np.int64)
    touched = np.empty(chains, np.int64)
    seen = np.full(chains, -1, np.int64)
    left = np.empty(len(sets[0]), np.int64)
    for window in windows:
        for state in range(len(origin)):
            origin[state] = _NEVER
        for chain in range(chains):
            origin[offset[chain]] = 0
        here, end = starts[window], starts[window + 1]
        while here < end:
            time = times[here]
            found = 0
            if here + 1 < end and times[here + 1] == time:
                here, found = read_group(
                    times, masks, here, end, relevant, places, counts, kinds, 0
                )
            else:
                for word in range(len(relevant)):
                    mask = masks[here, word] & relevant[word]
                    while mask:
                        lowest = ((mask & (~mask + ONE)) * SPREAD) >> TOP
                        kinds[found] = places[64 * word + np.int64(lowest)]
                        counts[kinds[found]] = 1
                        mask &= mask - ONE
                        found += 1
                here += 1
            if found == 0:
                continue
            if found == 1 and counts[kinds[0]] == 1:
                kind = kinds[0]
                counts[kind] = 0
                for place in range(wait_at[kind], wait_at[kind + 1]):
                    state = wait[place]
                    begun = origin[state - 1]
                    if opens[state] and begun != _NEVER:
                        begun = time
                    line[place - wait_at[kind]] = begun
                for place in range(end_at[kind], end_at[kind + 1]):
                    origin[ended[place]] = _NEVER
                for place in range(wait_at[kind], wait_at[kind + 1]):
                    state, begun = wait[place], line[place - wait_at[kind]]
                    if begun > origin[state] and time - begun <= limit[state]:
                        origin[state] = begun
                continue
            waiting = _line_up(kinds, found, wait_at, wait, plain, line)
            for place in range(waiting):
                state = line[place]
                begun = origin[state - 1]
                if opens[state] and begun != _NEVER:
                    begun = time
                if place and line[place - 1] == state - 1:
                    begun = max(begun, fresh[state - 1])
                fresh[state] = begun if time - begun <= limit[state] else _NEVER
            known = _find_touched(kinds, found, advances, here, seen, touched)
            for place in range(known):
                _advance(touched[place], time, counts, states, sets, origin, fresh, left)
            for event in range(found):
                counts[kinds[event]] = 0
                for place in range(end_at[kinds[event]], end_at[kinds[event] + 1]):
                    origin[ended[place]] = _NEVER
            for place in range(waiting):
                origin[line[place]] = max(origin[line[place]], fresh[line[place]])
            for place in range(known):
                for state in range(offset[touched[place]] + 1, offset[touched[place] + 1]):
                    origin[state] = max(origin[state], fresh[state])
        for chain in range(chains):
            out[window, columns[chain]] = origin[offset[chain + 1] - 1] != _NEVER


@compiled
def _line_up(
    kinds: NDArray[np.int64],
    found: int,
    wait_at: NDArray[np.int64],
    wait: NDArray[np.int64],
    plain: NDArray[np.int64],
    line: NDArray[np.int64],
) -> int:
    """List the states of chains without repetition that wait for these types, in order."""
    count = 0
    for event in range(found):
        for place in range(wait_at[kinds[event]], plain[kinds[event]]):
            state = wait[place]
            at = count
            while at and line[at - 1] > state:
                at -= 1
            if at and line[at - 1] == state:
                continue
            for moved in range(count, at, -1):
                line[moved] = line[moved - 1]
            line[at] = state
            count += 1
    return count


@compiled
def _find_touched(
    kinds: NDArray[np.int64],
    found: int,
    advances: Rows,
    stamp: int,
    seen: NDArray[np.int64],
    touched: NDArray[np.int64],
) -> int:
    """List the chains with repetition that can advance by these types, each once."""
    advance_at, advance = advances
    known = 0
    for place in range(found):
        for index in range(advance_at[kinds[place]], advance_at[kinds[place] + 1]):
            chain = advance[index]
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
    states: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]],
    sets: Rows,
    origin: NDArray[np.int64],
    fresh: NDArray[np.int64],
    left: NDArray[np.int64],
) -> None:
    """The latest beginnings in the states that a chain enters at this time."""
    offset, limit, _, draws = states
    set_at, members = sets
    source = offset[chain]
    for state in range(source + 1, offset[chain + 1]):
        events = 0
        for place in range(set_at[draws[state]], set_at[draws[state] + 1]):
            events += counts[members[place]]
        left[draws[state]] = events
    for state in range(source + 1, offset[chain + 1]):
        left[draws[state]] -= 1
        while left[draws[state]] < 0:
            source += 1
            left[draws[source]] += 1
        begun = _NEVER
        for earlier in range(source, state):
            if origin[earlier] != _NEVER:
                begun = max(begun, time if earlier == offset[chain] else origin[earlier])
        fresh[state] = begun if time - begun <= limit[state] else _NEVER
