"""Match chains without WITHIN in parallel: a bit for every state of every chain.

Bit k of a chain says that some choice of events matched its first k elements and no forbidden
event came since. At an event of type x, every chain that waits for x enters its next state (a
shift and two masks for 64 states), and the states in which x is forbidden end, except those just
entered: an absence is strictly between times. What happens later depends only on the state, so
one bit for each is enough.

At a time with several events the step is repeated on the states just entered. A run of elements
entered at one time needs distinct events: `runs` has, for each length, the states whose last
elements are of different types. This is exact if no type occurs twice at one time. In a window
where a type does, a chain that repeats an element is matched by `origins`; a chain that repeats a
choice of types always is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.kernels import compiled
from tacit.patterns.chains import Chain, Types
from tacit.patterns.event_lists import ONE, SPREAD, TOP, EventLists, Selection, read_group


@dataclass(frozen=True, slots=True)
class ChainBits:
    """The tables of chains packed into words; a chain longer than a word has its own words."""

    selection: Selection
    enter: NDArray[np.uint64]  # [type, word]: states entered by an event
    leave: NDArray[np.uint64]  # [type, word]: states ended by an event
    begin: NDArray[np.uint64]  # [word]: first states that can be entered at any time
    initial: NDArray[np.uint64]  # [word]: states before the first tuple
    runs: NDArray[np.uint64]  # [length - 1, word]: states reached by distinct types in a row
    packs: NDArray[np.int64]  # words that belong together: where each begins, and the end
    final: NDArray[np.int64]  # [chain]: the number of the bit that says it is matched

    @classmethod
    def of(cls, chains: Sequence[Chain], selection: Selection) -> ChainBits:
        """Build the tables of chains that do not repeat a choice."""
        offsets, packs = _place(chains)
        words = packs[-1]
        places = {name: place for place, name in enumerate(selection.names)}
        longest = max((max(_run_lengths(chain)) for chain in chains), default=1)
        tables = cls(
            selection,
            np.zeros((len(places), words), np.uint64),
            np.zeros((len(places), words), np.uint64),
            np.zeros(words, np.uint64),
            np.zeros(words, np.uint64),
            np.zeros((longest + 1, words), np.uint64),
            np.array(packs, np.int64),
            np.zeros(len(chains), np.int64),
        )
        for number, (chain, offset) in enumerate(zip(chains, offsets, strict=True)):
            tables._fill(number, chain, offset, places)
        return tables

    def _fill(self, number: int, chain: Chain, offset: int, places: dict[str, int]) -> None:
        """Write a chain's states from a bit on; state 0 has a bit if something can end it."""
        guarded = bool(chain.gaps[0])
        first = offset + guarded
        if guarded:
            _set(self.initial, offset)
        else:
            _set(self.begin, first)
        for place, unwanted in enumerate(chain.gaps):
            for name in unwanted:
                _set(self.leave[places[name]], first + place - 1)
        runs = _run_lengths(chain)
        for place, types in enumerate(chain.elements):
            for name in types:
                _set(self.enter[places[name]], first + place)
            for length in range(1, runs[place] + 1):
                _set(self.runs[length - 1], first + place)
        self.final[number] = first + len(chain.elements) - 1

    def run(
        self, lists: EventLists, columns: NDArray[np.int64], out: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Fill a column of `out[window]` for each chain; mark where types occur twice at once."""
        doubled = np.zeros(len(lists), np.bool_)
        _run(
            lists.starts,
            lists.times,
            lists.masks,
            self.selection.relevant,
            self.selection.places,
            (self.enter, self.leave, self.begin, self.initial, self.runs),
            self.packs,
            self.final,
            columns,
            out,
            doubled,
        )
        return doubled


def _set(row: NDArray[np.uint64], bit: int) -> None:
    row[bit // 64] |= np.uint64(1 << bit % 64)


def _place(chains: Sequence[Chain]) -> tuple[list[int], list[int]]:
    """Return the first bit of each chain, and where the packs of words begin."""
    offsets = [0] * len(chains)
    packs = [0]
    free = 0
    lengths = [len(chain.elements) + bool(chain.gaps[0]) for chain in chains]
    for number in sorted(range(len(chains)), key=lambda number: lengths[number]):
        if not free or free + lengths[number] > 64 * packs[-1]:
            free = 64 * packs[-1]
            packs.append(packs[-1] + -(-lengths[number] // 64))
        offsets[number] = free
        free += lengths[number]
    return offsets, packs


def _run_lengths(chain: Chain) -> list[int]:
    """Return how many elements up to each one are all of different types."""
    lengths: list[int] = []
    seen: dict[Types, int] = {}
    for place, types in enumerate(chain.elements):
        length = lengths[-1] + 1 if lengths else 1
        lengths.append(min(length, place - seen.get(types, -1)))
        seen[types] = place
    return lengths


@compiled
def _run(
    starts: NDArray[np.int64],
    times: NDArray[np.int64],
    masks: NDArray[np.uint64],
    relevant: NDArray[np.uint64],
    places: NDArray[np.int64],
    tables: tuple[NDArray[np.uint64], ...],
    packs: NDArray[np.int64],
    final: NDArray[np.int64],
    columns: NDArray[np.int64],
    out: NDArray[np.bool_],
    doubled: NDArray[np.bool_],
) -> None:
    """Read the groups of equal time of each window, then advance all words through them."""
    enter, leave, begin, initial, runs = tables
    types = len(enter)
    counts = np.zeros(types, np.int64)
    kinds = np.empty(1024 + types, np.int64)
    ends = np.empty(1024, np.int64)
    state = np.empty(len(begin), np.uint64)
    scratch = np.empty((2, len(begin)), np.uint64)
    short = 0
    while short < len(packs) - 1 and packs[short + 1] == short + 1:
        short += 1
    only = (enter[:, 0].copy(), leave[:, 0].copy(), runs[:, 0].copy())
    for window in range(len(starts) - 1):
        here, end = starts[window], starts[window + 1]
        if end - here > len(ends):
            ends = np.empty(2 * (end - here), np.int64)
        groups, found = 0, 0
        while here < end:
            if found + types > len(kinds):
                kinds = _doubled(kinds)
            before = found
            if here + 1 < end and times[here + 1] == times[here]:
                here, found = read_group(
                    times, masks, here, end, relevant, places, counts, kinds, found
                )
                for place in range(before, found):
                    doubled[window] |= counts[kinds[place]] > 1
                    counts[kinds[place]] = 0
            else:
                for word in range(len(relevant)):
                    mask = masks[here, word] & relevant[word]
                    while mask:
                        lowest = ((mask & (~mask + ONE)) * SPREAD) >> TOP
                        kinds[found] = places[64 * word + np.int64(lowest)]
                        mask &= mask - ONE
                        found += 1
                here += 1
            if found == before:
                continue
            ends[groups] = found
            groups += 1
        if short == 1:
            state[0] = _run_word(kinds, ends, groups, only, begin[0], initial[0])
        elif short:
            _run_row(kinds, ends, groups, tables, state[:short])
        for pack in range(short, len(packs) - 1):
            _run_long(kinds, ends, groups, tables, packs[pack], packs[pack + 1], state, scratch)
        for chain in range(len(final)):
            bit = final[chain]
            out[window, columns[chain]] = ((state[bit >> 6] >> np.uint64(bit & 63)) & ONE) != 0


@compiled
def _doubled(row: NDArray[np.int64]) -> NDArray[np.int64]:
    larger = np.empty(2 * len(row), np.int64)
    for place in range(len(row)):
        larger[place] = row[place]
    return larger


@compiled
def _run_word(
    kinds: NDArray[np.int64],
    ends: NDArray[np.int64],
    groups: int,
    tables: tuple[NDArray[np.uint64], ...],
    begin: np.uint64,
    initial: np.uint64,
) -> np.uint64:
    """Process all groups of equal time, for chains that fit into one word."""
    enter, leave, runs = tables
    state = initial
    place = 0
    for group in range(groups):
        kind = kinds[place]
        arriving, leaving = enter[kind], leave[kind]
        place += 1
        if place == ends[group]:
            state = (state & ~leaving) | (((state << ONE) | begin) & arriving)
            continue
        while place < ends[group]:
            arriving |= enter[kinds[place]]
            leaving |= leave[kinds[place]]
            place += 1
        fresh = ((state << ONE) | begin) & arriving
        entered = fresh
        length = 1
        while fresh:
            fresh = (fresh << ONE) & arriving & runs[length]
            entered |= fresh
            length += 1
        state = (state & ~leaving) | entered
    return state


@compiled
def _run_row(
    kinds: NDArray[np.int64],
    ends: NDArray[np.int64],
    groups: int,
    tables: tuple[NDArray[np.uint64], ...],
    state: NDArray[np.uint64],
) -> None:
    """Do the same as `_run_word` for a row of words, in a loop that can be vectorised."""
    enter, leave, begin, initial, runs = tables
    for word in range(len(state)):
        state[word] = initial[word]
    place = 0
    for group in range(groups):
        first, place = place, ends[group]
        if place - first == 1:
            kind = kinds[first]
            for word in range(len(state)):
                old = state[word]
                state[word] = (old & ~leave[kind, word]) | (
                    ((old << ONE) | begin[word]) & enter[kind, word]
                )
            continue
        for word in range(len(state)):
            arrive, depart = np.uint64(0), np.uint64(0)
            for event in range(first, place):
                arrive |= enter[kinds[event], word]
                depart |= leave[kinds[event], word]
            fresh = ((state[word] << ONE) | begin[word]) & arrive
            entered = fresh
            length = 1
            while fresh:
                fresh = (fresh << ONE) & arrive & runs[length, word]
                entered |= fresh
                length += 1
            state[word] = (state[word] & ~depart) | entered


@compiled
def _merged(
    enter: NDArray[np.uint64],
    leave: NDArray[np.uint64],
    kinds: NDArray[np.int64],
    first: int,
    end: int,
    word: int,
) -> tuple[np.uint64, np.uint64]:
    """Return the states of a word that a group of events leads to, and those that it ends."""
    arrive, depart = np.uint64(0), np.uint64(0)
    for place in range(first, end):
        arrive |= enter[kinds[place], word]
        depart |= leave[kinds[place], word]
    return arrive, depart


@compiled
def _run_long(
    kinds: NDArray[np.int64],
    ends: NDArray[np.int64],
    groups: int,
    tables: tuple[NDArray[np.uint64], ...],
    low: int,
    high: int,
    state: NDArray[np.uint64],
    scratch: NDArray[np.uint64],
) -> None:
    """Do the same as `_run_word` for a chain that spans several words."""
    enter, leave, begin, initial, runs = tables
    fresh, entered = scratch[0], scratch[1]
    for word in range(low, high):
        state[word] = initial[word]
    place = 0
    for group in range(groups):
        first, place = place, ends[group]
        _shift(state, fresh, low, high)
        for word in range(low, high):
            fresh[word] |= begin[word]
            entered[word] = 0
        length = 0
        moving = True
        while moving:
            moving = False
            for word in range(low, high):
                arrive, _ = _merged(enter, leave, kinds, first, place, word)
                fresh[word] &= arrive & runs[length, word]
                entered[word] |= fresh[word]
                moving |= fresh[word] != 0
            moving &= place - first > 1
            _shift(fresh, fresh, low, high)
            length += 1
        for word in range(low, high):
            _, depart = _merged(enter, leave, kinds, first, place, word)
            state[word] = (state[word] & ~depart) | entered[word]


@compiled
def _shift(source: NDArray[np.uint64], target: NDArray[np.uint64], low: int, high: int) -> None:
    """Move bits up by one through the words from `low` on."""
    for word in range(high - 1, low, -1):
        target[word] = (source[word] << ONE) | (source[word - 1] >> np.uint64(63))
    target[low] = source[low] << ONE
