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
from tacit.windows.clock import NONE, TAKEN, Verdicts
from tacit.windows.runs import RUN, RunExtents

_WINDOWS: Final = 4
"""The number of windows from the earliest of the first run on that are staged."""
NO_SKIPS: Final[NDArray[np.bool_]] = np.empty(0, np.bool_)
"""Which runs are inserted already, where none is."""


@dataclass(frozen=True, slots=True, eq=False)
class StagedPresence:
    """The presence of the runs of a batch that are in one window each."""

    first: int
    """The window of the first row."""
    words: NDArray[np.uint64]
    """`[window][slot]`: event-type bits."""
    runs: NDArray[np.bool_]
    """Which runs of the batch are in `words`."""

    @classmethod
    def find(
        cls,
        slots: NDArray[np.int32],
        masks: EventMasks,
        extents: RunExtents,
        size: int,
        width: int,
    ) -> StagedPresence:
        """Find the presence of tuples with codes; all slots are below `width`."""
        first = int(extents.earliest[0]) // size
        words = allocate((_WINDOWS, width), np.uint64)
        words[:] = 0
        staged = np.empty(len(extents.earliest), np.bool_)
        _stage(
            freeze(slots), masks.codes, masks.table, extents.earliest, extents.latest,
            extents.least, size, first, words, staged,
        )  # fmt: skip
        return cls(first, words, staged)

    def is_accepted(self, verdicts: Verdicts, begin: int, end: int) -> bool:
        """Return whether the clock has accepted all of these runs, in one step from `begin`."""
        if begin or end != len(verdicts.each) or len(verdicts.runs) != len(self.runs):
            return False
        # The clock judges a run that moves it tuple by tuple.
        unsure = np.flatnonzero(self.runs & (verdicts.runs == NONE)).tolist()
        each = verdicts.each
        return all((each[run * RUN : (run + 1) * RUN] == TAKEN).all() for run in unsure)

    def add_to(self, ring: NDArray[np.uint64]) -> None:
        """Add the presence to the ring of open windows."""
        _add(self.words, self.first, ring)


@compiled
def _stage(
    slots: NDArray[np.int32],
    codes: NDArray[np.uint8],
    masks: NDArray[np.uint64],
    earliest: NDArray[np.int64],
    latest: NDArray[np.int64],
    least: NDArray[np.int32],
    size: int,
    first: int,
    words: NDArray[np.uint64],
    staged: NDArray[np.bool_],
) -> None:
    flat, bits = words.reshape(-1), masks.reshape(-1)
    for run in range(len(earliest)):
        window = earliest[run] // size
        staged[run] = (
            least[run] >= 0
            and latest[run] // size == window
            and first <= window < first + len(words)
        )
        if not staged[run]:
            continue
        begin, end = run * RUN, min((run + 1) * RUN, len(slots))
        pane = np.uint64((window - first) * words.shape[1])
        owners, kinds = slots[begin:end], codes[begin:end]
        for k in range(len(owners)):
            flat[pane + np.uint64(owners[k])] |= bits[kinds[k]]


@compiled
def _add(words: NDArray[np.uint64], first: int, ring: NDArray[np.uint64]) -> None:
    for window in range(len(words)):
        place = (first + window) % len(ring)
        # A window without staged runs is empty here, so it changes nothing.
        for slot in range(words.shape[1]):
            ring[place, slot, 0] |= words[window, slot]
