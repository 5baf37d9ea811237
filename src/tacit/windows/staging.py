"""Presence of a batch that is computed before the clock has judged its tuples.

The thread that reads ahead often waits for the thread that inserts. Meanwhile it can find the
presence of the next batch. That counts only if the clock accepts all of these tuples; if it refuses
one of them, or stops within the batch, they are inserted as usual.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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
_AHEAD: Final = 4 * RUN
"""How many tuples further the columns are loaded into the cache."""
_STEP: Final = 64
"""After so many tuples the next lines of the columns are loaded."""
NO_SKIPS: Final[NDArray[np.bool_]] = np.empty(0, np.bool_)
"""Which runs are inserted already, where none is."""


@dataclass(frozen=True, slots=True, eq=False)
class StagedPresence:
    """The presence of the runs of a batch that are in one window each, or in two in a row."""

    first: int
    """The window of the earliest tuple of the first run."""
    words: NDArray[np.uint32] | NDArray[np.uint64]
    """`[window][slot]`: event-type bits."""
    runs: NDArray[np.bool_]
    """Which runs of the batch are in `words`."""
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
        words = allocate((_WINDOWS, width), bits.dtype)
        words[:] = 0
        extents = RunExtents.allocate(len(times))
        staged = np.empty(len(extents.earliest), np.bool_)
        first = _stage(
            freeze(times), freeze(slots), masks.codes, bits, size, extents.earliest,
            extents.latest, extents.least, words, staged,
        )  # fmt: skip
        return cls(first, words, staged, extents)

    def is_accepted(self, verdicts: Verdicts, begin: int, end: int) -> bool:
        """Return whether the clock has accepted all of these runs, in one step from `begin`."""
        if begin or end != len(verdicts.each) or len(verdicts.runs) != len(self.runs):
            return False
        return _are_taken(verdicts.each, verdicts.runs, self.runs)

    def add_to(self, ring: NDArray[np.uint64]) -> None:
        """Add the presence to the ring of open windows."""
        _add(self.words, self.first, ring)


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
    staged: NDArray[np.bool_],
) -> int:
    """Measure runs, and write the presence of those that are staged; return the first window."""
    flat, first = words.reshape(-1), np.int64(0)
    for run in range(len(staged)):
        begin, end = run * RUN, min((run + 1) * RUN, len(slots))
        moments, owners, kinds = times[begin:end], slots[begin:end], codes[begin:end]
        earliest[run], latest[run], least[run] = find_span(moments, owners)
        before, window = earliest[run] // size, latest[run] // size
        if run == 0:
            first = before
        staged[run] = (
            least[run] >= 0
            and first <= before
            and window <= before + 1
            and window < first + len(words)
        )
        if not staged[run]:
            continue
        start = window * size
        pane = np.uint64((window - first) * words.shape[1])
        past = np.uint64((before - first) * words.shape[1])
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
    return first


@compiled
def _are_taken(
    verdicts: NDArray[np.uint8], runs: NDArray[np.int64], staged: NDArray[np.bool_]
) -> bool:
    """Return whether all tuples of the staged runs are accepted."""
    for run in range(len(staged)):
        # A run with a window is accepted as a whole.
        if staged[run] and runs[run] == NONE:
            refused = np.uint8(TAKEN)
            for verdict in verdicts[run * RUN : (run + 1) * RUN]:
                refused |= verdict
            if refused != TAKEN:
                return False
    return True


@compiled
def _add(words: NDArray[np.uint64], first: int, ring: NDArray[np.uint64]) -> None:
    for window in range(len(words)):
        place = (first + window) % len(ring)
        # A window without staged runs is empty here, so it changes nothing.
        for slot in range(words.shape[1]):
            ring[place, slot, 0] |= np.uint64(words[window, slot])
