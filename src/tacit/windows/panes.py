"""The open windows of a set of subjects: a dense ring of arrays, and a buffer of ordered events.

Every registered subject has a slot in every window, whether or not it sends anything. Presence is a
ring `[window][slot][word]` of event-type bits. Tuples that ordered patterns need are buffered until
their window is popped (`event_buffer`). With sliding windows, "window" here means pane.

If all ordered patterns are simple chains, an automaton processes each tuple as it arrives
(`automaton`). Only windows in which a subject did not send in order are sorted and evaluated again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from itertools import pairwise
from threading import get_ident
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tacit.buffers import allocate
from tacit.errors import Mistake, SpecificationError
from tacit.events.columns import freeze
from tacit.events.masks import EventMasks
from tacit.kernels import compiled
from tacit.kernels.threads import ONE_THREAD, Workers, run_in_threads, run_in_turn
from tacit.patterns.bits import ChainBits
from tacit.patterns.event_lists import EventLists
from tacit.windows.automaton import StreamingAutomaton
from tacit.windows.clock import NONE, TAKEN, Verdicts
from tacit.windows.event_buffer import BufferPiece, EventBuffer
from tacit.windows.runs import RUN, find_extent
from tacit.windows.staging import NO_SKIPS, StagedPresence

_RING_BYTES = 1 << 20
"""A ring of at most this size stays in the processor's cache."""
_MOST_WINDOWS = 256
_PARALLEL: Final = 3 << 17
"""Fewer tuples than this are inserted by one thread: another takes too long to start."""
_PIECE: Final = 1 << 15
"""The number of tuples that a thread inserts at a time."""
_STAGED: Final = 1 << 17
"""Fewer tuples than this are not staged: the result is as large as a part of a window."""
_FEW_THREADS: Final = 2
"""With more threads than these, tuples that are not staged ahead are inserted by several."""
_MOST_RINGS: Final = 4
"""The most threads that insert at the same time: each has a ring of its own."""
_MOST_BYTES = 16 << 30
"""Rings larger than this are refused."""


def choose_capacity(size: int, lateness: int, subjects: int, words: int, panes: int = 1) -> int:
    """Return how many windows a ring holds: all that may be open, and more if memory is cheap.

    With sliding windows these are panes, and a window has `panes` of them.
    """
    needed = -(-lateness // size) + 2
    a_window = max(1, subjects * words * 8)
    held = needed + 2 * (panes - 1)
    if held * a_window > _MOST_BYTES:
        kind, advice = "windows", "make the lateness shorter or the windows longer"
        if panes > 1:
            kind, advice = "panes", "make the lateness shorter or the slide longer"
        raise SpecificationError(
            [
                Mistake(
                    f"windows: with this lateness {held:,} {kind} of {subjects:,} subjects are "
                    f"open at a time, which takes {held * a_window / 1e9:,.0f} GB; {advice}"
                )
            ]
        )
    return max(needed, min(_RING_BYTES // a_window, _MOST_WINDOWS))


@dataclass(frozen=True, slots=True)
class ClosedPanes:
    """Consecutive closed windows: presence, and ordered events if patterns need them.

    `states` are those of the automaton `[window][slot]`, if there is one. `lists` has the ordered
    events of windows whose state is unreliable; without an automaton, of all windows with such
    events. `keys` says which: the window's index in this block times the number of slots, plus
    the slot. Sliding windows come with the panes that they were made from (`sliding`).
    """

    first: int
    words: NDArray[np.uint64]
    keys: NDArray[np.int64]
    lists: EventLists
    states: NDArray[np.uint64] | None = None
    panes: PaneSequence | None = None


@dataclass(frozen=True, slots=True)
class PaneSequence:
    """The panes of consecutive sliding windows.

    Window i has the panes from i on. All but the last `windows` panes were part of earlier
    windows, or are before the schedule.
    """

    count: int
    """The number of panes of a window."""
    first: int
    words: NDArray[np.uint64]
    """Presence, `[pane][slot][word]`."""
    before: Mapping[str, NDArray[Any]]
    """The noise drawn for the panes of earlier windows."""
    after: dict[str, NDArray[Any]]
    """Mechanisms that draw for panes store here the noise that later windows need."""
    since: NDArray[np.int64] | None = None
    """The first window for which each subject is registered; None for all windows."""

    @property
    def registered(self) -> NDArray[np.uint64]:
        """`[window][1][word]`: the subjects that have answers, 64 to a word."""
        slots = self.words.shape[1]
        flags = np.zeros((self.windows, -(-slots // 64) * 64), np.bool_)
        flags[:, :slots] = True
        if self.since is not None:
            numbers = np.arange(self.first, self.first + self.windows)
            flags[:, :slots] = self.since <= numbers[:, np.newaxis]
        packed = np.packbits(flags, axis=1, bitorder="little").view("<u8")
        return packed.astype(np.uint64, copy=False)[:, np.newaxis]

    @property
    def windows(self) -> int:
        """The number of windows."""
        return len(self.words) - self.count + 1


class Panes:
    """The open windows of some subjects."""

    def __init__(
        self,
        size: int,
        capacity: int,
        slots: int,
        ordered_types: NDArray[np.uint64],
        automaton: ChainBits | None = None,
        workers: Workers = ONE_THREAD,
        *,
        presence: bool = True,
    ) -> None:
        """Without `presence`, event types are not noted, and all closed windows look empty."""
        self.size = size
        self._presence = presence
        self.slots = slots
        self.ordered_types = ordered_types
        self._has_ordered = bool(ordered_types.any())
        self._workers = workers
        self._ring = np.zeros((capacity, slots, len(ordered_types)), dtype=np.uint64)
        self._others: dict[int, NDArray[np.uint64]] = {}
        """The rings of other threads. A window has the events of all rings."""
        self._buffer = EventBuffer(size, ordered_types)
        self._automaton = (
            None if automaton is None else StreamingAutomaton(size, capacity, slots, automaton)
        )

    @property
    def capacity(self) -> int:
        """The number of windows that fit into the ring."""
        return len(self._ring)

    def grow(self, slots: int) -> None:
        """Make room for more subjects; they have no events in open windows yet."""
        capacity, before, words = self._ring.shape
        self.slots = slots
        if slots <= before:
            return
        ring = np.zeros((capacity, max(slots, 2 * before), words), dtype=np.uint64)
        ring[:, :before] = self._merge()
        self._ring = ring
        if self._automaton is not None:
            self._automaton.grow(ring.shape[1])

    def stages(self, masks: EventMasks, width: int, *, ahead: bool) -> bool:
        """Return whether presence can be found before tuples are judged.

        If it is not done `ahead`, by another thread, then only if few threads can insert the tuples
        later. All slots are below `width`.
        """
        return (
            self._presence
            and (ahead or self._workers.threads <= _FEW_THREADS)
            and len(self.ordered_types) == 1
            and len(masks.codes) >= max(_STAGED, width)
        )

    def stage(
        self, times: NDArray[np.int64], slots: NDArray[np.int32], masks: EventMasks, width: int
    ) -> StagedPresence:
        """Find the presence of tuples before they are judged. Any thread may call this."""
        return StagedPresence.find(times, slots, masks, self.size, width)

    def insert(
        self,
        slots: NDArray[np.int32],
        times: NDArray[np.int64],
        masks: EventMasks,
        verdicts: Verdicts,
        begin: int,
        end: int,
        staged: StagedPresence | None = None,
    ) -> None:
        """Insert the accepted tuples from `begin` to `end` into their windows.

        The presence of runs that are `staged` is added if all of them are accepted.
        """
        each, runs, slots, skips = verdicts.each, verdicts.runs, freeze(slots), NO_SKIPS
        if staged is not None:
            skips = staged.add_accepted(verdicts, begin, end, self._ring)
        place = partial(_insert, slots, freeze(times), masks.codes, masks.table, each, runs, skips)
        parallel = end - begin >= _PARALLEL and self._workers.threads > 1
        if not self._has_ordered and self._presence:
            threads = min(self._workers.threads - 1, _MOST_RINGS)  # one reads ahead
            if (
                not parallel
                or threads < 2
                or len(skips)
                or self._ring.nbytes > 2 * _RING_BYTES  # rings stay in the cache
            ):
                place(begin, end, self.size, self._ring)
                return
            own = get_ident()
            calls = [
                partial(self._place, place, own, first, last)
                for first, last in pairwise(_divide(begin, end, -(-(end - begin) // _PIECE)))
            ]
            # Small pieces: a core that has more to do takes fewer of them.
            run_in_threads(calls, threads)
            return
        piece = BufferPiece(slots, times, masks, each, runs).cut(begin, end)
        calls = [partial(self._advance, piece)] if self._has_ordered else []
        if self._presence:
            calls.append(partial(place, begin, end, self.size, self._ring))
        if parallel:
            self._workers.run(calls)
        else:
            run_in_turn(calls)

    def _advance(self, piece: BufferPiece) -> None:
        """Buffer ordered events, and advance the automaton."""
        added = self._buffer.add(piece)
        if self._automaton is not None:
            self._automaton.advance(added)

    def _place(self, place: Callable[..., None], own: int, begin: int, end: int) -> None:
        """Insert tuples into the ring of the thread that calls this; `own` is the main one."""
        thread, ring = get_ident(), self._ring
        if thread != own:
            if thread not in self._others:
                self._others[thread] = np.zeros_like(self._ring)
            ring = self._others[thread]
        place(begin, end, self.size, ring)

    def _merge(self) -> NDArray[np.uint64]:
        """Merge all rings into the first, and return it."""
        if self._others:
            self._ring = reduce(np.bitwise_or, [self._ring, *self._others.values()])
            self._others = {}
        return self._ring

    def pop(self, first: int, count: int) -> ClosedPanes:
        """Remove and return `count` windows from `first` on, at most as many as the ring has."""
        words = self._pop_presence(first, count)
        if not self._has_ordered:
            return ClosedPanes(first, words, *self._buffer.no_events())
        if self._automaton is None:
            everything = np.ones(count * self.slots, dtype=np.bool_)
            return ClosedPanes(first, words, *self._buffer.pop(first, self.slots, everything))
        places = np.arange(first, first + count) % len(self._ring)
        states, doubtful = self._automaton.pop(places, self.slots)
        keys, lists = self._buffer.pop(first, self.slots, doubtful)
        return ClosedPanes(first, words, *self._automaton.replay(keys, lists, states), states)

    def _pop_presence(self, first: int, count: int) -> NDArray[np.uint64]:
        shape = count, self.slots, self._ring.shape[2]
        if not self._presence:
            return np.zeros(shape, np.uint64)
        words: NDArray[np.uint64] = allocate(shape, np.uint64)
        _pop(self._ring, first, words)
        for ring in self._others.values():
            _pop_more(ring, first, words)
        return words

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Return the state as plain arrays."""
        state: dict[str, NDArray[np.generic]] = {"ring": self._merge()[:, : self.slots]}
        state |= self._buffer.state()
        if self._automaton is not None:
            state |= self._automaton.state(self.slots)
        return state

    def restore(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Restore what `state` returned."""
        self._ring, self._others = np.array(state["ring"], dtype=np.uint64), {}
        self._buffer.restore(state)
        if self._automaton is not None:
            self._automaton.restore(state)
        self.slots = self._ring.shape[1]


def _divide(begin: int, end: int, parts: int) -> list[int]:
    """Divide tuples into parts of about the same size that begin with a run."""
    inner = [(begin + (end - begin) * part // parts) // RUN * RUN for part in range(1, parts)]
    return [begin, *(max(begin, edge) for edge in inner), end]


@compiled
def _insert(
    slots: NDArray[np.int32],
    times: NDArray[np.int64],
    codes: NDArray[np.uint8],
    masks: NDArray[np.uint64],
    verdicts: NDArray[np.uint8],
    runs: NDArray[np.int64],
    skips: NDArray[np.bool_],
    begin: int,
    end: int,
    size: int,
    ring: NDArray[np.uint64],
) -> None:
    # Flat arrays, slices indexed from 0, and unsigned indices compile to the fastest code: a
    # signed index might count from the end.
    width, flat, bits = ring.shape[2], ring.reshape(-1), masks.reshape(-1)
    coded = len(codes) > 0
    start = stop = np.int64(0)  # the window of the previous tuple, likely the same
    pane = np.uint64(0)
    run_to = begin
    i = begin - 1
    while i + 1 < end:
        i += 1
        if width == 1 and i >= run_to:
            run, run_to = i // RUN, min((i // RUN + 1) * RUN, end)
            if run < len(skips) and skips[run]:
                i = run_to - 1
                continue
            moments, owners = times[i:run_to], slots[i:run_to]
            if run < len(runs) and runs[run] != NONE:
                refused, window = np.uint8(TAKEN), runs[run]
                earliest = window * size
            else:
                refused, earliest, latest = find_extent(moments, verdicts[i:run_to])
                window = latest // size
            start, stop = window * size, (window + 1) * size
            pane = np.uint64(window % len(ring) * ring.shape[1])
            if refused == TAKEN and earliest >= start - size:
                # All in this window, or some in the one before: select without a branch.
                before = np.uint64((window - 1) % len(ring) * ring.shape[1])
                step = pane - before  # it may wrap around, and then the sum wraps back
                if coded and earliest >= start:
                    kinds = codes[i:run_to]
                    for k in range(len(owners)):
                        flat[pane + np.uint64(owners[k])] |= bits[kinds[k]]
                elif coded:
                    kinds = codes[i:run_to]
                    for k in range(len(owners)):
                        place = before + step * np.uint64(moments[k] >= start)
                        flat[place + np.uint64(owners[k])] |= bits[kinds[k]]
                else:
                    new = bits[i:run_to]
                    for k in range(len(owners)):
                        place = before + step * np.uint64(moments[k] >= start)
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
        row = np.int64(codes[i]) if coded else i
        for word in range(width):
            flat[place + np.uint64(word)] |= masks[row, word]


@compiled
def _pop(ring: NDArray[np.uint64], first: int, words: NDArray[np.uint64]) -> None:
    """Move the windows from `first` on out of the ring."""
    for window in range(len(words)):
        place = (first + window) % len(ring)
        # Loops, since Numba compiles much more code for slice assignments.
        for slot in range(words.shape[1]):
            for word in range(words.shape[2]):
                words[window, slot, word] = ring[place, slot, word]
        ring[place] = 0


@compiled
def _pop_more(ring: NDArray[np.uint64], first: int, words: NDArray[np.uint64]) -> None:
    """Move the windows from `first` on out of another ring, and add their events."""
    for window in range(len(words)):
        place = (first + window) % len(ring)
        for slot in range(words.shape[1]):
            for word in range(words.shape[2]):
                words[window, slot, word] |= ring[place, slot, word]
        ring[place] = 0
