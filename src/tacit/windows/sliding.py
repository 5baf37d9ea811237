"""Assemble sliding windows from panes when they are evaluated.

Tuples are inserted into panes as if these were tumbling windows. When a pane closes, the window
that ends with it closes: the pane and the k - 1 panes before it, which are stored here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tacit.errors import StateError
from tacit.kernels import compiled
from tacit.patterns.event_lists import EventLists
from tacit.windows.panes import ClosedPanes, PaneSequence


@dataclass(frozen=True, slots=True)
class EarlierPanes:
    """The k - 1 panes before a place in the schedule, for windows of k panes."""

    end: int
    """The number of the pane after them."""
    words: NDArray[np.uint64]
    keys: NDArray[np.int64]
    """As in `ClosedPanes`: the pane's index times the number of slots, plus the slot."""
    lists: EventLists
    rows: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    drawn: dict[str, NDArray[Any]] = field(default_factory=dict)
    """The noise drawn for them, once per pane: all windows with a pane use the same noise."""

    def widen(self, slots: int) -> EarlierPanes:
        """Add subjects without events in these panes."""
        panes, before, words = self.words.shape
        if slots == before:
            return self
        silent = np.zeros((panes, slots - before, words), np.uint64)
        keys = self.keys + self.keys // max(1, before) * (slots - before)
        wider = np.concatenate([self.words, silent], axis=1)
        return EarlierPanes(self.end, wider, keys, self.lists, self.rows, self.drawn)


class SlidingWindows:
    """Assembles windows of `panes` panes, which must be given once and in order.

    Only the latest panes may be given again, if nothing was released for them: their noise is
    then discarded.
    """

    def __init__(self, panes: int, size: int) -> None:
        self.panes = panes
        self.size = size
        """The length of a pane."""
        self._before: EarlierPanes | None = None
        """The panes before the latest ones."""
        self._after: EarlierPanes | None = None
        """The latest panes."""

    def assemble(
        self,
        closed: ClosedPanes,
        rows: Mapping[str, pl.DataFrame],
        since: NDArray[np.int64] | None = None,
    ) -> tuple[ClosedPanes, dict[str, pl.DataFrame]]:
        """Return the windows that end with these panes, and the rows of their tuples.

        `since` is the first window for which each subject is registered.
        """
        count, slots = closed.words.shape[:2]
        before = self._panes_before(closed).widen(slots)
        first = closed.first - self.panes + 1
        words = np.concatenate([before.words, closed.words])
        keys = np.concatenate([before.keys, closed.keys + (self.panes - 1) * slots])
        lists = _concat_lists(before.lists, closed.lists)
        frames = _concat_frames(before.rows, rows)
        after: dict[str, NDArray[Any]] = {}
        self._before = before
        self._after = EarlierPanes(
            closed.first + count,
            words[count:].copy(),
            *_drop_before(keys, lists, count * slots),
            self._later(frames, first + count),
            after,
        )
        window_keys, window_lists = self._lists(keys, lists, count, slots)
        paned = PaneSequence(self.panes, first, words, before.drawn, after, since)
        made = ClosedPanes(
            first, combine_panes(words, self.panes), window_keys, window_lists, panes=paned
        )
        return made, self._rows(frames, first, count, slots)

    def _panes_before(self, closed: ClosedPanes) -> EarlierPanes:
        """Return the panes before these."""
        for stored in (self._after, self._before):
            if stored is not None and stored.end == closed.first:
                return stored
        if self._after is not None:
            raise StateError(
                f"panes must come in order: expected number {self._after.end}, got {closed.first}"
            )
        # There are no events before the schedule.
        _, slots, width = closed.words.shape
        nothing = np.empty(0, np.int64)
        return EarlierPanes(
            closed.first,
            np.zeros((self.panes - 1, slots, width), np.uint64),
            nothing,
            EventLists(np.zeros(1, np.int64), nothing, np.empty((0, width), np.uint64)),
        )

    def _lists(
        self, keys: NDArray[np.int64], lists: EventLists, count: int, slots: int
    ) -> tuple[NDArray[np.int64], EventLists]:
        """Return the ordered events of each window: those of its panes in sequence."""
        ends = _count_events(keys, lists.starts, count, slots, self.panes)
        sizes = np.diff(ends, prepend=0)
        times = np.empty(ends[-1] if len(ends) else 0, np.int64)
        masks = np.empty((len(times), lists.masks.shape[1]), np.uint64)
        _fill_windows(keys, lists.starts, lists.times, lists.masks, count, slots, self.panes,
              ends - sizes, times, masks)  # fmt: skip
        filled = np.flatnonzero(sizes)
        return filled, EventLists(np.append(0, ends[filled]), times, masks)

    def _rows(
        self, frames: Mapping[str, pl.DataFrame], first: int, count: int, slots: int
    ) -> dict[str, pl.DataFrame]:
        """Return the rows of each window with their bucket; a row is in several windows."""
        pane = (pl.col("time") // self.size - first).cast(pl.Int64)
        found = {}
        for stream, frame in frames.items():
            parts = [
                frame.with_columns((pane - back).alias("bucket"))
                .filter(pl.col("bucket").is_between(0, count - 1))
                .with_columns(pl.col("bucket") * slots + pl.col("slot"))
                for back in range(self.panes)
            ]
            windows = pl.concat(parts)
            if len(windows):
                found[stream] = windows
        return found

    def _later(self, frames: Mapping[str, pl.DataFrame], pane: int) -> dict[str, pl.DataFrame]:
        """Return the rows from a pane on."""
        later = pl.col("time") >= pane * self.size
        stored = {stream: frame.filter(later) for stream, frame in frames.items()}
        return {stream: frame for stream, frame in stored.items() if len(frame)}

    def state(self) -> tuple[dict[str, NDArray[np.generic]], dict[str, pl.DataFrame]]:
        """Return the panes that later windows need and their noise, as arrays and frames."""
        stored = self._after
        if stored is None:
            return {}, {}
        arrays: dict[str, NDArray[np.generic]] = {
            "end": np.array(stored.end),
            "words": stored.words,
            "keys": stored.keys,
            "starts": stored.lists.starts,
            "times": stored.lists.times,
            "masks": stored.lists.masks,
        }
        arrays |= {f"drawn.{name}": part for name, part in stored.drawn.items()}
        return arrays, dict(stored.rows)

    def restore(
        self, arrays: Mapping[str, NDArray[Any]], frames: Mapping[str, pl.DataFrame]
    ) -> None:
        """Restore what `state` returned."""
        self._before = self._after = None
        if not arrays:
            return
        lists = EventLists(arrays["starts"], arrays["times"], arrays["masks"])
        drawn = {
            name.removeprefix("drawn."): part
            for name, part in arrays.items()
            if name.startswith("drawn.")
        }
        end = int(arrays["end"])
        self._after = EarlierPanes(end, arrays["words"], arrays["keys"], lists, dict(frames), drawn)


def combine_panes(words: NDArray[np.uint64], panes: int) -> NDArray[np.uint64]:
    """Return for each window the bits set in any of its panes: `[window]...` from `[pane]...`."""
    span = 1
    while 2 * span <= panes:
        words, span = words[:-span] | words[span:], 2 * span
    return words[: len(words) - (panes - span)] | words[panes - span :]


def _concat_lists(one: EventLists, other: EventLists) -> EventLists:
    return EventLists(
        np.concatenate([one.starts, one.starts[-1] + other.starts[1:]]),
        np.concatenate([one.times, other.times]),
        np.concatenate([one.masks, other.masks]),
    )


def _drop_before(
    keys: NDArray[np.int64], lists: EventLists, least: int
) -> tuple[NDArray[np.int64], EventLists]:
    """Return the lists whose keys are at least `least`, with keys relative to it."""
    begin = int(np.searchsorted(keys, least))
    at = lists.starts[begin]
    starts, times = lists.starts[begin:] - at, lists.times[at:].copy()
    return keys[begin:] - least, EventLists(starts, times, lists.masks[at:].copy())


def _concat_frames(
    one: Mapping[str, pl.DataFrame], other: Mapping[str, pl.DataFrame]
) -> dict[str, pl.DataFrame]:
    """Concatenate the frames of each stream."""
    found = {}
    for stream in dict.fromkeys([*one, *other]):
        parts = [part[stream] for part in (one, other) if stream in part]
        found[stream] = pl.concat([part.drop("bucket", strict=False) for part in parts])
    return found


@compiled
def _count_events(
    keys: NDArray[np.int64], starts: NDArray[np.int64], count: int, slots: int, panes: int
) -> NDArray[np.int64]:
    """Return where the events of each window and slot end in one flat sequence."""
    ends = np.zeros(count * slots, np.int64)
    for number in range(len(keys)):
        pane, slot = keys[number] // slots, keys[number] % slots
        length = starts[number + 1] - starts[number]
        for window in range(max(0, pane - panes + 1), min(count, pane + 1)):
            ends[window * slots + slot] += length
    total = np.int64(0)
    for place in range(len(ends)):
        total += ends[place]
        ends[place] = total
    return ends


@compiled
def _fill_windows(
    keys: NDArray[np.int64],
    starts: NDArray[np.int64],
    times: NDArray[np.int64],
    masks: NDArray[np.uint64],
    count: int,
    slots: int,
    panes: int,
    places: NDArray[np.int64],
    to_times: NDArray[np.int64],
    to_masks: NDArray[np.uint64],
) -> None:
    """Write the events of panes into all their windows; panes are in order, so events are too."""
    for number in range(len(keys)):
        pane, slot = keys[number] // slots, keys[number] % slots
        begin, end = starts[number], starts[number + 1]
        for window in range(max(0, pane - panes + 1), min(count, pane + 1)):
            place = places[window * slots + slot]
            places[window * slots + slot] += end - begin
            for i in range(begin, end):
                to_times[place + i - begin] = times[i]
                for word in range(masks.shape[1]):
                    to_masks[place + i - begin, word] = masks[i, word]
