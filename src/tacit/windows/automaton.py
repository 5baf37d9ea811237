"""An automaton for each open window and subject, advanced as events arrive.

A subject mostly sends its tuples in order. If it did not, or sent several events with the same
time, the state is unreliable. Such windows are evaluated again when they are closed, from their
sorted tuples.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tacit.buffers import allocate
from tacit.kernels import compiled, inlined
from tacit.patterns.bits import ChainBits
from tacit.patterns.event_lists import ONE, SPREAD, TOP, EventLists
from tacit.windows.clock import NEVER, NONE, TAKEN
from tacit.windows.event_buffer import BufferPiece
from tacit.windows.runs import RUN, count_runs, find_extent, find_run


class StreamingAutomaton:
    """The states of the automaton in a ring of windows."""

    def __init__(self, size: int, capacity: int, slots: int, automaton: ChainBits) -> None:
        self._size = size
        self._begin = automaton.begin[0]
        self._initial = automaton.initial[0]
        self._relevant = automaton.selection.relevant[0]
        places = automaton.selection.places
        self._steps = np.stack([automaton.enter[places, 0], automaton.leave[places, 0]], axis=1)
        """For the hash of each event type: the states that it enters, and those that it ends."""
        self._ring = self._fresh(capacity, slots)
        """`[window][slot]`: the state and the time of the last event; NEVER if it is unreliable.

        The two are adjacent in memory, since they are always used together.
        """

    def _fresh(self, capacity: int, slots: int) -> NDArray[np.uint64]:
        start = np.array([self._initial, np.uint64(NONE % 2**64)])
        return np.broadcast_to(start, (capacity, slots, 2)).copy()

    def grow(self, slots: int) -> None:
        """Make room for more subjects."""
        capacity, before, _ = self._ring.shape
        self._ring = np.concatenate([self._ring, self._fresh(capacity, slots - before)], axis=1)

    def advance(self, piece: BufferPiece) -> None:
        """Advance the automata of all windows and slots by these events."""
        _walk(
            piece.slots, piece.times, piece.masks.codes, piece.masks.table, piece.verdicts,
            piece.runs, piece.offset, self._size, self._relevant, self._steps, self._begin,
            self._ring,
        )  # fmt: skip

    def pop(
        self, places: NDArray[np.int64], slots: int
    ) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        """Return the states at these places of the ring and which are unreliable; reset them."""
        states = allocate((len(places), slots), np.uint64)
        doubtful = allocate((len(places), slots), np.bool_)
        _pop(self._ring, places, self._initial, states, doubtful)
        return states, doubtful.reshape(-1)

    def replay(
        self, keys: NDArray[np.int64], lists: EventLists, states: NDArray[np.uint64]
    ) -> tuple[NDArray[np.int64], EventLists]:
        """Recompute states from sorted tuples; return the windows that are still unreliable.

        These are the windows with several events at the same time.
        """
        if not len(keys):
            return keys, lists
        doubtful = _walk_lists(
            lists.starts, lists.times, lists.masks, keys,
            self._relevant, self._steps, self._begin, self._initial, states.reshape(-1),
        )  # fmt: skip
        left = np.flatnonzero(doubtful)
        lengths = np.diff(lists.starts)
        chosen = np.repeat(doubtful, lengths)
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths[left])])
        return keys[left], EventLists(starts, lists.times[chosen], lists.masks[chosen])

    def state(self, slots: int) -> dict[str, NDArray[np.generic]]:
        """Return the state as plain arrays."""
        return {
            "states": self._ring[:, :slots, 0],
            "lasts": self._ring[:, :slots, 1].view(np.int64),
        }

    def restore(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Restore what `state` returned."""
        lasts = np.array(state["lasts"], np.int64).view(np.uint64)
        self._ring = np.stack([np.array(state["states"], np.uint64), lasts], axis=2)


@compiled
def _walk(
    slots: NDArray[np.int32],
    times: NDArray[np.int64],
    codes: NDArray[np.uint8],
    masks: NDArray[np.uint64],
    verdicts: NDArray[np.uint8],
    runs: NDArray[np.int64],
    offset: int,
    size: int,
    relevant: np.uint64,
    steps: NDArray[np.uint64],
    begin: np.uint64,
    ring: NDArray[np.uint64],
) -> None:
    all_steps, flat, bits = steps.reshape(-1), ring.reshape(-1), masks.reshape(-1)
    places, looked_up = np.empty(RUN, np.uint64), np.empty(RUN, np.uint64)
    by_code, simple = _index_steps(bits, relevant, all_steps, len(codes) > 0)
    for run in range(count_runs(len(times), offset)):
        first, stop = find_run(run, len(times), offset)
        moments, owners, judged = (
            times[first:stop],
            slots[first:stop],
            verdicts[first:stop],
        )
        if simple and run < len(runs) and runs[run] != NONE:
            pane = np.uint64(runs[run] % len(ring) * ring.shape[1])
            _walk_codes(pane, owners, moments, codes[first:stop], by_code, begin, flat)
            continue
        refused, earliest, latest = find_extent(moments, judged)
        start = latest // size * size
        late = np.uint64(latest // size % len(ring) * ring.shape[1])
        early = np.uint64((latest // size - 1) % len(ring) * ring.shape[1])
        two_windows = refused == TAKEN and earliest >= start - size
        if simple and two_windows:
            for i in range(len(owners)):
                places[i] = late if moments[i] >= start else early
            _walk_codes_of_two(places, owners, moments, codes[first:stop], by_code, begin, flat)
            continue
        events = looked_up[: stop - first]
        if len(codes):
            kinds = codes[first:stop]
            for i in range(len(events)):
                events[i] = bits[kinds[i]]
        else:
            events = bits[first:stop]
        if not two_windows or not _single(events, relevant):
            _walk_one_by_one(owners, moments, events, judged, size, relevant, steps, begin, ring)
            continue
        # All in two consecutive windows, with one event each: select without branches.
        for i in range(len(owners)):
            places[i] = ((late if moments[i] >= start else early) + np.uint64(owners[i])) << ONE
        for i in range(len(owners)):
            place, time = places[i], moments[i]
            step = (((events[i] & relevant) * SPREAD) >> TOP) << ONE
            old, last = flat[place], np.int64(flat[place + ONE])
            entered = ((old << ONE) | begin) & all_steps[step]
            flat[place] = (old & ~all_steps[step + ONE]) | entered
            flat[place + ONE] = np.uint64(time if time > last else np.int64(NEVER))


@compiled
def _index_steps(
    bits: NDArray[np.uint64], relevant: np.uint64, steps: NDArray[np.uint64], coded: bool
) -> tuple[NDArray[np.uint64], bool]:
    """Return for each code: the states that it enters, those that stay, and whether it counts.

    Also returns whether no code has several relevant events.
    """
    several = np.uint64(not coded)
    by_code = np.zeros(3 * (len(bits) if coded else 0), np.uint64)
    for code in range(len(by_code) // 3):
        event, own = bits[code] & relevant, by_code[3 * code : 3 * code + 3]
        several |= event & (event - ONE)
        own[1] = ~np.uint64(0)
        if event:
            step = ((event * SPREAD) >> TOP) << ONE
            own[0], own[1], own[2] = steps[step], ~steps[step + ONE], ~np.uint64(0)
    return by_code, several == 0


@inlined
def _advance_slot(
    place: np.uint64,
    time: np.int64,
    code: np.uint8,
    by_code: NDArray[np.uint64],
    begin: np.uint64,
    flat: NDArray[np.uint64],
) -> None:
    """Advance the automaton at a place of the ring by a tuple with at most one relevant event."""
    row = np.uint64(code) * np.uint64(3)
    old, last, counts = flat[place], flat[place + ONE], by_code[row + ONE + ONE]
    entered = ((old << ONE) | begin) & by_code[row]
    flat[place] = (old & by_code[row + ONE]) | entered
    ordered = np.uint64(time if time > np.int64(last) else np.int64(NEVER))
    flat[place + ONE] = (ordered & counts) | (last & ~counts)


@compiled
def _walk_codes(
    pane: np.uint64,
    slots: NDArray[np.int32],
    times: NDArray[np.int64],
    codes: NDArray[np.uint8],
    by_code: NDArray[np.uint64],
    begin: np.uint64,
    flat: NDArray[np.uint64],
) -> None:
    """Advance by accepted tuples of one window, with at most one relevant event each."""
    for i in range(len(slots)):
        place = (pane + np.uint64(slots[i])) << ONE
        _advance_slot(place, times[i], codes[i], by_code, begin, flat)


@compiled
def _walk_codes_of_two(
    panes: NDArray[np.uint64],
    slots: NDArray[np.int32],
    times: NDArray[np.int64],
    codes: NDArray[np.uint8],
    by_code: NDArray[np.uint64],
    begin: np.uint64,
    flat: NDArray[np.uint64],
) -> None:
    """Do the same for tuples of two windows, given the beginning of each one's window."""
    for i in range(len(slots)):
        place = (panes[i] + np.uint64(slots[i])) << ONE
        _advance_slot(place, times[i], codes[i], by_code, begin, flat)


@compiled
def _single(events: NDArray[np.uint64], relevant: np.uint64) -> bool:
    """Return whether each tuple has exactly one relevant event."""
    other = np.uint64(0)
    for i in range(len(events)):
        event = events[i] & relevant
        other |= (event & (event - ONE)) | np.uint64(event == 0)
    return bool(other == 0)


@compiled
def _walk_one_by_one(
    slots: NDArray[np.int32],
    times: NDArray[np.int64],
    events: NDArray[np.uint64],
    verdicts: NDArray[np.uint8],
    size: int,
    relevant: np.uint64,
    steps: NDArray[np.uint64],
    begin: np.uint64,
    ring: NDArray[np.uint64],
) -> None:
    """Do the same for any tuples."""
    start = np.int64(0)
    length = np.uint64(0)  # of the window that starts there; none yet
    pane = np.uint64(0)
    for i in range(len(times)):
        time, event = times[i], events[i] & relevant
        if verdicts[i] != TAKEN or event == 0:
            continue
        if np.uint64(time - start) >= length:
            window = time // size
            start, length = window * size, np.uint64(size)
            pane = np.uint64(window % len(ring))
        slot = np.uint64(slots[i])
        if time <= np.int64(ring[pane, slot, 1]) or event & (event - ONE):
            ring[pane, slot, 1] = np.uint64(NEVER)
            continue
        kind = (event * SPREAD) >> TOP
        old = ring[pane, slot, 0]
        entered = ((old << ONE) | begin) & steps[kind, 0]
        ring[pane, slot, 0] = (old & ~steps[kind, 1]) | entered
        ring[pane, slot, 1] = np.uint64(time)


@compiled
def _pop(
    ring: NDArray[np.uint64],
    places: NDArray[np.int64],
    initial: np.uint64,
    states: NDArray[np.uint64],
    doubtful: NDArray[np.bool_],
) -> None:
    for number in range(len(places)):
        pane = ring[places[number]]
        for slot in range(states.shape[1]):
            states[number, slot] = pane[slot, 0]
            doubtful[number, slot] = pane[slot, 1] == np.uint64(NEVER)
            pane[slot, 0], pane[slot, 1] = initial, np.uint64(NONE)


@compiled
def _walk_lists(
    starts: NDArray[np.int64],
    times: NDArray[np.int64],
    masks: NDArray[np.uint64],
    keys: NDArray[np.int64],
    relevant: np.uint64,
    steps: NDArray[np.uint64],
    begin: np.uint64,
    initial: np.uint64,
    states: NDArray[np.uint64],
) -> NDArray[np.bool_]:
    """Compute states from lists; return where several events have the same time."""
    all_steps, bits = steps.reshape(-1), masks.reshape(-1)
    doubtful = np.zeros(len(keys), np.bool_)
    for number in range(len(keys)):
        state, last, doubt = initial, np.int64(NONE), False
        for i in range(np.uint64(starts[number]), np.uint64(starts[number + 1])):
            event = bits[i] & relevant
            doubt |= (times[i] == last) | (event & (event - ONE) != 0)
            last = times[i]
            step = ((event * SPREAD) >> TOP) << ONE
            entered = ((state << ONE) | begin) & all_steps[step]
            state = (state & ~all_steps[step + ONE]) | entered
        doubtful[number] = doubt
        if not doubt:
            states[np.uint64(keys[number])] = state
    return doubtful
