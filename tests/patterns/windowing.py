"""Windows of the reference matcher as the compiled ones read them, and answers back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tacit.patterns.event_lists import EventLists
from tacit.patterns.matcher import Matcher, scatter, to_columns
from tacit.patterns.reference import Tuple

Window = Sequence[Tuple]


def event_lists(windows: Sequence[Window], types: Sequence[str]) -> EventLists:
    """The tuples of all windows in order of time, with masks of event types."""
    words = max(1, -(-len(types) // 64))
    numbers = {name: number for number, name in enumerate(types)}
    tuples = [sorted(window, key=lambda tuple_: tuple_.time) for window in windows]
    masks = np.zeros((sum(map(len, tuples)), words), np.uint64)
    for row, tuple_ in enumerate(tuple_ for window in tuples for tuple_ in window):
        for name in tuple_.types:
            masks[row, numbers[name] // 64] |= np.uint64(1 << numbers[name] % 64)
    return EventLists(
        np.cumsum([0, *map(len, tuples)]).astype(np.int64),
        np.array([tuple_.time for window in tuples for tuple_ in window], np.int64),
        masks,
    )


def presence(lists: EventLists) -> NDArray[np.uint64]:
    """Which event types each window has: `[1, window, word]`."""
    words = np.zeros((1, len(lists), lists.masks.shape[1]), np.uint64)
    for window in range(len(lists)):
        rows = lists.masks[lists.starts[window] : lists.starts[window + 1]]
        words[0, window] = np.bitwise_or.reduce(rows, axis=0, initial=0)
    return words


def answers(matcher: Matcher, windows: Sequence[Window], types: Sequence[str]) -> NDArray[np.bool_]:
    """What the matcher detects, `[window, query]`; each window is that of another subject.

    Windows without tuples get no row, as in the engine.
    """
    lists = event_lists(windows, types)
    keys = np.flatnonzero(np.diff(lists.starts) > 0)
    starts = np.append(lists.starts[keys], lists.starts[-1])
    ordered = matcher.match_ordered(EventLists(starts, lists.times, lists.masks))
    columns = np.concatenate(
        [
            to_columns(presence(lists), len(types)),
            scatter(keys, ordered, matcher.ordered_when_empty, 1, len(windows)),
        ],
        axis=1,
    )
    found: NDArray[np.bool_] = bits(matcher.combine(columns), len(windows))[0].T
    return found


def bits(columns: NDArray[np.uint64], subjects: int) -> NDArray[np.bool_]:
    """Bit columns as truth values: `[window, column, subject]`."""
    unpacked = np.unpackbits(columns.view(np.uint8), axis=2, bitorder="little")
    return unpacked[:, :, :subjects].astype(np.bool_)
