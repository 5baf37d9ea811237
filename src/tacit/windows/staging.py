"""Presence of a batch that is computed before the clock has judged its tuples.

The columns are then read only once: presence is found while the extents of runs are measured. Both
the thread that reads ahead and the one that inserts can do that, whichever has time. Presence
counts only if the clock accepts all of these tuples; if it refuses one of them, or stops within the
batch, they are inserted as usual. Tuples that are late are in runs of two windows or more, so runs
of one and of two windows are separate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tacit.buffers import allocate
from tacit.events.columns import freeze
from tacit.events.masks import EventMasks
from tacit.kernels import compiled
from tacit.kernels.memory import LINE, prefetch
from tacit.windows.clock import NONE, TAKEN, Verdicts
from tacit.windows.runs import RUN, RunExtents, find_span

_WINDOWS: Final = 4
"""The number of windows from the earliest of the first run on that are staged."""
_NARROW: Final = 2**32
"""Masks below this are staged in half as much memory."""
_AHEAD: Final = 2 * RUN
"""How many tuples further the columns are loaded into the cache."""
_STEP: Final = 64
"""After so many tuples the next lines of the columns are loaded."""
_NOT, _ONE, _TWO = 0, 1, 2
"""Whether a run is staged, and how many windows it has."""
NO_SKIPS: Final[NDArray[np.bool_]] = np.empty(0, np.bool_)
"""Which runs are inserted already, where none is."""


@dataclass(frozen=True, slots=True, eq=False)
class StagedPresence:
    """The presence of the runs of a batch that are in one window each, or in two in a row."""

    first: int
    """The window of the earliest tuple of the first run."""
    words: NDArray[Any]
    """`[runs of one window, of two][window][slot]`: event-type bits, as 32 or 64 bits."""
    runs: NDArray[np.uint8]
    """How many windows each staged run has; 0 for the others."""
    extents: RunExtents
    """Those of all runs."""

    @classmethod
    def find(
        cls,
        times: NDArray[np.int64],
        slots: NDArray[np.int32],
        masks: EventMasks,
        size: int,
        width: int,
    ) -> StagedPresence:
        """Find the presence of tuples with codes; all slots are below `width`."""
        bits = masks.table.reshape(-1)
        if bits.max() < _NARROW:
            bits = bits.astype(np.uint32)
        words = allocate((2, _WINDOWS, width), bits.dtype)
        words[:] = 0
        extents = RunExtents.allocate(len(times))
        staged = np.empty(len(extents.earliest), np.uint8)
        first = _stage(
            freeze(times), freeze(slots), masks.codes, bits, size, extents.earliest,
            extents.latest, extents.least, words, staged,
        )  # fmt: skip
        return cls(first, words, staged, extents)

    def add_accepted(
        self, verdicts: Verdicts, begin: int, end: int, ring: NDArray[np.uint64]
    ) -> NDArray[np.bool_]:
        """Add presence that the clock accepts, in one step from `begin`, to the open windows.

        Returns which runs are in them now.
        """
        if begin or end != len(verdicts.each) or len(verdicts.runs) != len(self.runs):
            return NO_SKIPS
        added = np.empty(len(self.runs), np.bool_)
        each, runs = verdicts.each, verdicts.runs
        _add_accepted(each, runs, self.runs, self.words, self.first, ring, added)
        return added


@compiled
def _stage(
    times: NDArray[np.int64],
    slots: NDArray[np.int32],
    codes: NDArray[np.uint8],
    bits: NDArray[np.uint64],
    size: int,
    earliest: NDArray[np.int64],
    latest: NDArray[np.int64],
    least: NDArray[np.int32],
    words: NDArray[np.uint64],
    staged: NDArray[np.uint8],
) -> int:
    """Measure runs, and write the presence of those that are staged; return the first window."""
    flat, first, each = words.reshape(-1), np.int64(0), words.shape[1] * words.shape[2]
    for run in range(len(staged)):
        begin, end = run * RUN, min((run + 1) * RUN, len(slots))
        moments, owners, kinds = times[begin:end], slots[begin:end], codes[begin:end]
        earliest[run], latest[run], least[run] = find_span(moments, owners)
        before, window = earliest[run] // size, latest[run] // size
        if run == 0:
            first = before
        staged[run] = _NOT
        if least[run] < 0 or before < first or window >= first + words.shape[1]:
            continue
        if window > before + 1:
            continue
        staged[run] = _ONE if window == before else _TWO
        start = window * size
        own_words = (staged[run] - _ONE) * each
        pane = np.uint64(own_words + (window - first) * words.shape[2])
        past = np.uint64(own_words + (before - first) * words.shape[2])
        for step in range(0, len(owners), _STEP):
            # The columns are read only once, so the processor would wait for the memory.
            ahead = np.uint64(begin + step + _AHEAD)
            for line in range(_STEP * 8 // LINE):
                prefetch(times, ahead + np.uint64(line * LINE // 8))
            for line in range(_STEP * 4 // LINE):
                prefetch(slots, ahead + np.uint64(line * LINE // 4))
            prefetch(codes, ahead)
            own, types = owners[step : step + _STEP], kinds[step : step + _STEP]
            if before == window:
                for k in range(len(own)):
                    flat[pane + np.uint64(own[k])] |= bits[types[k]]
            else:  # select the window without a branch
                when = moments[step : step + _STEP]
                for k in range(len(own)):
                    place = past + (pane - past) * np.uint64(when[k] >= start)
                    flat[place + np.uint64(own[k])] |= bits[types[k]]
    return int(first)


@compiled
def _add_accepted(
    verdicts: NDArray[np.uint8],
    runs: NDArray[np.int64],
    staged: NDArray[np.uint8],
    words: NDArray[np.uint64],
    first: int,
    ring: NDArray[np.uint64],
    added: NDArray[np.bool_],
) -> None:
    """Add the runs of one window if all of them are accepted, and so those of two windows."""
    for number in range(len(words)):
        accepted, some = True, False
        for run in range(len(staged)):
            own = staged[run] == _ONE + number
            some |= own
            if own and runs[run] == NONE:  # a run with a window is accepted as a whole
                for i in range(run * RUN, min((run + 1) * RUN, len(verdicts))):
                    accepted &= verdicts[i] == TAKEN
        for run in range(len(staged)):
            own = staged[run] == _ONE + number and accepted
            added[run] = own if number == 0 else added[run] or own
        if accepted and some:
            _add(words[number], first, ring)


@compiled
def _add(words: NDArray[np.uint64], first: int, ring: NDArray[np.uint64]) -> None:
    for window in range(len(words)):
        own, place = words[window], ring[(first + window) % len(ring)].reshape(-1)
        some = own[0]
        for slot in range(len(own)):
            some |= own[slot]
        if some:  # else the place may be that of another window
            for slot in range(len(own)):
                place[slot] |= own[slot]
