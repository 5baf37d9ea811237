"""The open windows of a shard's subjects: a dense ring of arrays, and the events kept in order.

Every registered subject has a slot in every window, whether or not it sends anything.
Presence is a ring `[window][slot][word]` of event-type bits. Tuples that ordered patterns
look at are kept beside it until their window is handed on, and then brought into order:
bucketed by window and slot, and sorted by time inside each bucket.

Where all ordered patterns are simple chains, their automaton takes each tuple as it comes:
a subject mostly sends in order, whatever lies between subjects. Only the windows in which
one did not, or sent several events at one time, are brought into order and walked again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.errors import Mistake, SpecificationError
from tacit.kernels import compiled
from tacit.patterns.bits import Bits
from tacit.patterns.lists import ONE, SPREAD, TOP, EventLists
from tacit.windows.clock import NEVER, NONE, TAKEN

_RING_BYTES = 1 << 20
"""What stays near the processor: a ring that is larger is written to from cold memory."""
_MOST_WINDOWS = 256
_MOST_BYTES = 16 << 30
_NEARLY_SORTED = 16
_RUN = 1024


def ring_capacity(size: int, lateness: int, subjects: int, words: int) -> int:
    """How many windows a ring holds: all that may be open, and more while memory is cheap."""
    needed = -(-lateness // size) + 2
    a_window = max(1, subjects * words * 8)
    if needed * a_window > _MOST_BYTES:
        raise SpecificationError(
            [
                Mistake(
                    f"windows: with this lateness {needed:,} windows of {subjects:,} subjects are "
                    f"open at a time, which takes {needed * a_window / 1e9:,.0f} GB; make the "
                    "lateness shorter or the windows longer"
                )
            ]
        )
    return max(needed, min(_RING_BYTES // a_window, _MOST_WINDOWS))


@dataclass(frozen=True, slots=True)
class Closed:
    """Consecutive windows that are handed on: presence, and ordered events where they are kept.

    `states` are those of the automaton `[window][slot]`, where there is one. `lists` holds
    the windows for which it does not tell, or else all that have such events; `keys` says
    which: the window's place in this block times the number of slots, plus the slot.
    """

    first: int
    words: NDArray[np.uint64]
    keys: NDArray[np.int64]
    lists: EventLists
    states: NDArray[np.uint64] | None = None


class Panes:
    """The open windows of some subjects."""

    def __init__(
        self,
        size: int,
        capacity: int,
        slots: int,
        ordered_types: NDArray[np.uint64],
        automaton: Bits | None = None,
    ) -> None:
        self.size = size
        self.slots = slots
        self.ordered_types = ordered_types
        self.automaton = automaton
        self._keeps = bool(ordered_types.any())
        words = len(ordered_types)
        self._ring = np.zeros((capacity, slots, words), dtype=np.uint64)
        walked = slots if automaton is not None else 0
        self._states = np.full((capacity, walked), self._initial, dtype=np.uint64)
        self._lasts = np.full((capacity, walked), NONE, dtype=np.int64)
        """The time of the last event that was walked; NEVER where the state does not tell."""
        self._kept = 0
        self._times = np.empty(0, dtype=np.int64)
        self._owners = np.empty(0, dtype=np.int32)
        self._masks = np.empty((0, words), dtype=np.uint64)

    @property
    def _initial(self) -> np.uint64:
        """The state of the automaton before the first event."""
        return np.uint64(0) if self.automaton is None else self.automaton.initial[0]

    @property
    def capacity(self) -> int:
        """How many windows can be held at once."""
        return len(self._ring)

    def grow(self, slots: int) -> None:
        """Make room for more subjects; open windows hold nothing for them yet."""
        capacity, before, words = self._ring.shape
        self.slots = slots
        if slots <= before:
            return
        ring = np.zeros((capacity, max(slots, 2 * before), words), dtype=np.uint64)
        ring[:, :before] = self._ring
        self._ring = ring
        if self.automaton is not None:
            new = np.full((capacity, ring.shape[1] - before), self._initial, dtype=np.uint64)
            self._states = np.concatenate([self._states, new], axis=1)
            never = np.full(new.shape, NONE, dtype=np.int64)
            self._lasts = np.concatenate([self._lasts, never], axis=1)

    def lay(
        self,
        slots: NDArray[np.int32],
        times: NDArray[np.int64],
        masks: NDArray[np.uint64],
        verdicts: NDArray[np.uint8],
        begin: int,
        end: int,
    ) -> None:
        """Lay the tuples from `begin` to `end` that were taken into their windows."""
        _lay(slots, times, masks, verdicts, begin, end, self.size, self._ring)
        if not self._keeps:
            return
        self._make_room(end - begin)
        before = self._kept
        self._kept = _keep(
            slots[begin:end],
            times[begin:end],
            masks[begin:end],
            verdicts[begin:end],
            self.ordered_types,
            self._kept,
            self._owners,
            self._times,
            self._masks,
        )
        if self.automaton is not None:
            _walk(
                self._owners[before : self._kept],
                self._times[before : self._kept],
                self._masks[before : self._kept],
                self.size,
                self.automaton.selection.places,
                self.automaton.enter,
                self.automaton.leave,
                self.automaton.begin[0],
                self._states,
                self._lasts,
            )

    def hand_on(self, first: int, count: int) -> Closed:
        """Take `count` windows from `first` on out of the ring, at most as many as it holds."""
        places = np.arange(first, first + count) % len(self._ring)
        words = self._ring[places, : self.slots]
        self._ring[places] = 0
        if self.automaton is None:
            unsure = np.ones(count * self.slots, dtype=np.bool_)
            return Closed(first, words, *self._in_order(first, unsure))
        states = self._states[places, : self.slots]
        unsure = (self._lasts[places, : self.slots] == NEVER).reshape(-1)
        self._states[places], self._lasts[places] = self._initial, NONE
        return Closed(first, words, *self._in_order(first, unsure), states)

    def _make_room(self, more: int) -> None:
        needed = self._kept + more + 1  # one past the last is written before it is wanted
        if needed <= len(self._times):
            return
        room = max(needed, 2 * len(self._times))
        self._times = np.concatenate([self._times[: self._kept], np.empty(room, np.int64)])
        self._owners = np.concatenate([self._owners[: self._kept], np.empty(room, np.int32)])
        fresh = np.empty((room, self._masks.shape[1]), np.uint64)
        self._masks = np.concatenate([self._masks[: self._kept], fresh])

    def _in_order(
        self, first: int, unsure: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], EventLists]:
        """The events of the windows and slots that are unsure; those of the others are dropped."""
        kept = slice(0, self._kept)
        times, owners, masks = self._times[kept], self._owners[kept], self._masks[kept]
        if not self._kept or not unsure.any():
            stop = (first + len(unsure) // max(1, self.slots)) * self.size
            self._kept = _keep_later(times, owners, masks, stop)
            nothing = np.empty(0, np.int64)
            return nothing, EventLists(np.zeros(1, np.int64), nothing, self._masks[:0])
        keys, starts, sorted_times, sorted_masks, rest = _bucket(
            times, owners, masks, first * self.size, self.size, self.slots, unsure
        )
        _sort_each(starts, sorted_times, sorted_masks)
        self._kept = len(rest)
        times[: len(rest)], owners[: len(rest)] = times[rest], owners[rest]
        masks[: len(rest)] = masks[rest]
        return keys, EventLists(starts, sorted_times, sorted_masks)

    def state(self) -> dict[str, NDArray[np.generic]]:
        """The state as plain arrays."""
        kept = slice(0, self._kept)
        return {
            "ring": self._ring[:, : self.slots],
            "times": self._times[kept],
            "owners": self._owners[kept],
            "masks": self._masks[kept],
            "states": self._states[:, : self.slots],
            "lasts": self._lasts[:, : self.slots],
        }

    def restore(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Take up a state that `state` gave."""
        self._ring = np.array(state["ring"], dtype=np.uint64)
        self._times = np.array(state["times"], dtype=np.int64)
        self._owners = np.array(state["owners"], dtype=np.int32)
        self._masks = np.array(state["masks"], dtype=np.uint64)
        self._states = np.array(state["states"], dtype=np.uint64)
        self._lasts = np.array(state["lasts"], dtype=np.int64)
        self._kept = len(self._times)
        self.slots = self._ring.shape[1]


@compiled
def _lay(
    slots: NDArray[np.int32],
    times: NDArray[np.int64],
    masks: NDArray[np.uint64],
    verdicts: NDArray[np.uint8],
    begin: int,
    end: int,
    size: int,
    ring: NDArray[np.uint64],
) -> None:
    # Flat arrays, slices that are walked from their beginning, and indices without a sign are
    # what the compiler makes the most of: an index with a sign might count from the end.
    width, flat, bits = ring.shape[2], ring.reshape(-1), masks.reshape(-1)
    start = stop = np.int64(0)  # the window of the tuple before, as tuples bunch
    pane = np.uint64(0)
    run_to = begin
    i = begin - 1
    while i + 1 < end:
        i += 1
        if width == 1 and i >= run_to:
            run_to = min(i + _RUN, end)
            moments, owners, new = times[i:run_to], slots[i:run_to], bits[i:run_to]
            refused, earliest, latest = _extent(moments, verdicts[i:run_to])
            window = latest // size
            start, stop = window * size, (window + 1) * size
            pane = np.uint64(window % len(ring) * ring.shape[1])
            if refused == TAKEN and earliest >= start:
                for k in range(len(owners)):
                    flat[pane + np.uint64(owners[k])] |= new[k]
                i = run_to - 1
                continue
            if refused == TAKEN and earliest >= start - size:
                # In two windows that follow each other: a choice, not a branch.
                before = np.uint64((window - 1) % len(ring) * ring.shape[1])
                for k in range(len(owners)):
                    place = pane if moments[k] >= start else before
                    flat[place + np.uint64(owners[k])] |= new[k]
                i = run_to - 1
                continue
        if verdicts[i] != TAKEN:
            continue
        if times[i] < start or times[i] >= stop:
            window = times[i] // size
            start, stop = window * size, (window + 1) * size
            pane = np.uint64(window % len(ring) * ring.shape[1])
        place = (pane + np.uint64(slots[i])) * np.uint64(width)
        for word in range(width):
            flat[place + np.uint64(word)] |= masks[i, word]


@compiled
def _extent(
    times: NDArray[np.int64], verdicts: NDArray[np.uint8]
) -> tuple[np.uint8, np.int64, np.int64]:
    """Whether some of these tuples were refused, the earliest time and the latest."""
    refused, earliest, latest = np.uint8(0), times[0], times[0]
    for i in range(len(verdicts)):
        refused |= verdicts[i]
    for i in range(len(times)):
        earliest = min(earliest, times[i])
        latest = max(latest, times[i])
    return refused, earliest, latest


@compiled
def _keep(
    slots: NDArray[np.int32],
    times: NDArray[np.int64],
    masks: NDArray[np.uint64],
    verdicts: NDArray[np.uint8],
    ordered: NDArray[np.uint64],
    kept: int,
    owners: NDArray[np.int32],
    kept_times: NDArray[np.int64],
    kept_masks: NDArray[np.uint64],
) -> int:
    """Append the tuples that were taken and that ordered patterns look at; how many there are."""
    at = np.uint64(kept)
    for run in range(0, len(times), _RUN):
        who, moments, what = (
            slots[run : run + _RUN],
            times[run : run + _RUN],
            masks[run : run + _RUN],
        )
        judged = verdicts[run : run + _RUN]
        if len(ordered) == 1 and _all_wanted(what[:, 0], judged, ordered[0]):
            end = at + np.uint64(len(moments))
            owners[at:end], kept_times[at:end] = who, moments
            kept_masks[at:end, 0] = what[:, 0] & ordered[0]
            at = end
            continue
        for i in range(len(moments)):
            wanted = np.uint64(0)
            for word in range(len(ordered)):
                kept_masks[at, word] = what[i, word] & ordered[word]
                wanted |= kept_masks[at, word]
            owners[at] = who[i]
            kept_times[at] = moments[i]
            at += np.uint64((wanted != 0) & (judged[i] == TAKEN))
    return int(at)


@compiled
def _all_wanted(masks: NDArray[np.uint64], verdicts: NDArray[np.uint8], ordered: np.uint64) -> bool:
    """Whether all of these tuples were taken and give an event of these types."""
    missing = np.uint8(0)
    for i in range(len(masks)):
        missing |= np.uint8((masks[i] & ordered) == 0) | verdicts[i]
    return bool(missing == 0)


@compiled
def _keep_later(
    times: NDArray[np.int64], owners: NDArray[np.int32], masks: NDArray[np.uint64], stop: int
) -> int:
    """Move what lies at or after `stop` to the front; how much that is."""
    at = np.uint64(0)
    for i in range(len(times)):
        if times[i] >= stop:
            times[at], owners[at] = times[i], owners[i]
            for word in range(masks.shape[1]):
                masks[at, word] = masks[i, word]
            at += np.uint64(1)
    return int(at)


@compiled
def _walk(
    owners: NDArray[np.int32],
    times: NDArray[np.int64],
    masks: NDArray[np.uint64],
    size: int,
    places: NDArray[np.int64],
    enter: NDArray[np.uint64],
    leave: NDArray[np.uint64],
    begin: np.uint64,
    states: NDArray[np.uint64],
    lasts: NDArray[np.int64],
) -> None:
    """Take each window's and slot's automaton through its events, as long as they are in order."""
    all_states, all_lasts = states.reshape(-1), lasts.reshape(-1)
    start = stop = np.int64(0)
    pane = np.uint64(0)
    for i in range(len(times)):
        if times[i] < start or times[i] >= stop:
            window = times[i] // size
            start, stop = window * size, (window + 1) * size
            pane = np.uint64(window % len(states) * states.shape[1])
        place = pane + np.uint64(owners[i])
        event = masks[i, 0]
        if times[i] > all_lasts[place] and event & (event - ONE) == 0:
            kind = np.uint64(places[(event * SPREAD) >> TOP])
            old = all_states[place]
            entered = ((old << ONE) | begin) & enter[kind, 0]
            all_states[place] = (old & ~leave[kind, 0]) | entered
            all_lasts[place] = times[i]
        else:
            all_lasts[place] = NEVER


@compiled
def _bucket(
    times: NDArray[np.int64],
    owners: NDArray[np.int32],
    masks: NDArray[np.uint64],
    start: int,
    size: int,
    slots: int,
    unsure: NDArray[np.bool_],
) -> tuple[
    NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64]
]:
    """A counting sort by window and slot of what lies in these windows and is unsure.

    The keys of the buckets that hold something, where each starts, the times and masks in
    that order, and the places of what lies in later windows.
    """
    buckets = len(unsure)
    counts = np.zeros(buckets + 2, dtype=np.uint64)
    keys = np.empty(len(times), dtype=np.uint64)
    window_start, window_key = start, np.int64(0)
    for i in range(len(times)):
        if np.uint64(times[i] - window_start) >= np.uint64(size):
            window = (times[i] - start) // size
            window_start, window_key = start + window * size, window * slots
        key = np.uint64(min(window_key + owners[i], buckets))
        if key < np.uint64(buckets) and not unsure[key]:
            key = np.uint64(buckets + 1)
        keys[i] = key
        counts[key] += np.uint64(1)
    filled = 0
    for number in range(buckets):
        filled += counts[number] > 0
    found = np.empty(filled, dtype=np.int64)
    starts = np.empty(filled + 1, dtype=np.int64)
    bucket, total = 0, np.uint64(0)
    for number in range(buckets):
        count = counts[number]
        if count > 0:
            found[bucket], starts[bucket] = number, np.int64(total)
            bucket += 1
        counts[number] = total
        total += count
    starts[filled] = np.int64(total)
    rest = np.empty(counts[buckets], dtype=np.int64)
    counts[buckets] = 0
    sorted_times = np.empty(total, dtype=np.int64)
    sorted_masks = np.empty((total, masks.shape[1]), dtype=np.uint64)
    for i in range(len(times)):
        if keys[i] > np.uint64(buckets):
            continue
        place = counts[keys[i]]
        counts[keys[i]] += np.uint64(1)
        if keys[i] == np.uint64(buckets):
            rest[place] = i
            continue
        sorted_times[place] = times[i]
        for word in range(masks.shape[1]):
            sorted_masks[place, word] = masks[i, word]
    return found, starts, sorted_times, sorted_masks, rest


@compiled
def _sort_each(
    starts: NDArray[np.int64], times: NDArray[np.int64], masks: NDArray[np.uint64]
) -> None:
    """Sort each bucket by time: by insertion, since tuples arrive nearly in order."""
    words = masks.shape[1]
    for bucket in range(len(starts) - 1):
        begin, end = starts[bucket], starts[bucket + 1]
        moves, most = 0, _NEARLY_SORTED * (end - begin)
        for i in range(begin + 1, end):
            if times[i] >= times[i - 1]:
                continue
            if moves > most:  # far from sorted: insertion would take the square of the length
                order = np.argsort(times[begin:end], kind="mergesort")
                times[begin:end] = times[begin:end][order]
                masks[begin:end] = masks[begin:end][order]
                break
            place = i
            while place > begin and times[place - 1] > times[place]:
                times[place - 1], times[place] = times[place], times[place - 1]
                for word in range(words):
                    masks[place - 1, word], masks[place, word] = (
                        masks[place, word],
                        masks[place - 1, word],
                    )
                place -= 1
                moves += 1
