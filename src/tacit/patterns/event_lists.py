"""The tuples of windows as the compiled matchers read them: in groups of equal time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.kernels import compiled


@dataclass(frozen=True, slots=True)
class EventLists:
    """The tuples of several windows: each window's together, in order of time.

    `starts` holds where each window begins and, at its end, the number of tuples;
    `masks` the event types that each tuple gives, 64 to a word, lowest bit first.
    """

    starts: NDArray[np.int64]
    times: NDArray[np.int64]
    masks: NDArray[np.uint64]

    def __len__(self) -> int:
        """How many windows there are."""
        return len(self.starts) - 1


@dataclass(frozen=True, slots=True)
class Selection:
    """The event types that a matcher looks at, numbered from 0 in the matcher's own order."""

    names: tuple[str, ...]
    relevant: NDArray[np.uint64]
    places: NDArray[np.int64]

    @classmethod
    def of(cls, names: Iterable[str], numbers: Mapping[str, int]) -> Selection:
        """Select some of the event types, given the number of each."""
        chosen = tuple(dict.fromkeys(names))
        words = max(1, -(-len(numbers) // 64))
        relevant = np.zeros(words, np.uint64)
        places = np.zeros(64 * words, np.int64)
        for place, name in enumerate(chosen):
            word, bit = divmod(numbers[name], 64)
            relevant[word] |= np.uint64(1 << bit)
            places[64 * word + _hash(1 << bit)] = place
        return cls(chosen, relevant, places)


# Multiplied by it, each of the 64 single bits has its own six leading bits (de Bruijn). The
# kernels write this look-up out where they read tuples: a call with arrays costs more.
SPREAD = np.uint64(0x03F79D71B4CB0A89)
TOP = np.uint64(58)
ONE = np.uint64(1)


def _hash(bit: int) -> int:
    return (bit * int(SPREAD) & 0xFFFFFFFFFFFFFFFF) >> 58


@compiled
def read_group(
    times: NDArray[np.int64],
    masks: NDArray[np.uint64],
    begin: int,
    end: int,
    relevant: NDArray[np.uint64],
    places: NDArray[np.int64],
    counts: NDArray[np.int64],
    kinds: NDArray[np.int64],
    found: int,
) -> tuple[int, int]:
    """Read all tuples of the time at `begin`: where the next time begins, how many kinds so far.

    The distinct event types are appended to `kinds` from `found` on; `counts` is raised by
    the number of events of each, and must be zero before.
    """
    time = times[begin]
    here = begin
    while here < end and times[here] == time:
        for word in range(len(relevant)):
            mask = masks[here, word] & relevant[word]
            while mask:
                place = places[64 * word + np.int64(((mask & (~mask + ONE)) * SPREAD) >> TOP)]
                mask &= mask - ONE
                if counts[place] == 0:
                    kinds[found] = place
                    found += 1
                counts[place] += 1
        here += 1
    return here, found
