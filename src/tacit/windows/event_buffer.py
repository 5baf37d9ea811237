"""A buffer for the tuples that ordered patterns need, until their windows are popped.

A large batch is not copied: its arrays are referenced until all their windows are closed. A small
batch, or one with few relevant tuples, is copied into arrays of the buffer. Only requested windows
are sorted: bucketed by window and slot, then sorted by time inside each bucket.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.buffers import allocate
from tacit.events.columns import freeze
from tacit.events.masks import EventMasks
from tacit.kernels import compiled
from tacit.patterns.lists import EventLists
from tacit.windows.clock import NONE, TAKEN
from tacit.windows.runs import RUN

_LARGE = 1 << 16
"""The number of tuples from which on a batch is not copied."""
_NEARLY_SORTED = 4
"""The number of moves per tuple after which insertion sort is given up."""


@dataclass(frozen=True, slots=True)
class BufferPiece:
    """Tuples in order of arrival. Readers skip those that were refused or are not relevant."""

    slots: NDArray[np.int32]
    times: NDArray[np.int64]
    masks: EventMasks
    verdicts: NDArray[np.uint8]

    @classmethod
    def allocate(cls, length: int, words: int) -> BufferPiece:
        """Allocate tuples that are all accepted."""
        return cls(
            np.empty(length, np.int32),
            np.empty(length, np.int64),
            EventMasks(np.empty((length, words), np.uint64)),
            np.full(length, TAKEN, np.uint8),
        )

    def __len__(self) -> int:
        return len(self.times)

    def cut(self, begin: int, end: int) -> BufferPiece:
        """Return the tuples from `begin` to `end`, without copying."""
        part = slice(begin, end)
        return BufferPiece(
            self.slots[part], self.times[part], self.masks[part], self.verdicts[part]
        )

    def freeze(self) -> BufferPiece:
        """Return the piece with read-only slots and times, as most sources give them.

        Writable arrays would make the kernels compile once more.
        """
        return BufferPiece(freeze(self.slots), freeze(self.times), self.masks, self.verdicts)


class EventBuffer:
    """Tuples of open windows; `ordered` are the relevant event types, as mask words."""

    def __init__(self, size: int, ordered: NDArray[np.uint64]) -> None:
        self._size = size
        self._ordered = ordered
        self._pieces: list[tuple[BufferPiece, int]] = []
        """The pieces in order of arrival, each with its latest time."""
        self._room = BufferPiece.allocate(0, len(ordered))
        self._used = 0
        self._from: int = NONE
        """The start of the first window that was not popped."""
        self._keys = np.empty(0, np.uint32)

    def add(self, piece: BufferPiece) -> BufferPiece:
        """Add tuples; return those that are buffered, and perhaps some to be skipped."""
        piece = piece.freeze()
        enough = -(-len(piece) // 2) if len(piece) >= _LARGE else len(piece)
        relevant, latest = _count_relevant(
            piece.times, piece.masks.codes, piece.masks.table, piece.verdicts, self._ordered, enough
        )
        if not relevant:
            return piece.cut(0, 0)
        if len(piece) >= _LARGE and relevant >= enough:
            self._pieces.append((piece, int(latest)))
            return piece
        if self._used + relevant > len(self._room):
            self._room, self._used = (
                BufferPiece.allocate(max(_LARGE, relevant), len(self._ordered)),
                0,
            )
        begin, self._used = self._used, self._used + relevant
        copy = self._room.cut(begin, self._used)
        _copy_relevant(
            piece.slots, piece.times, piece.masks.codes, piece.masks.table, piece.verdicts,
            self._ordered, copy.slots, copy.times, copy.masks.table,
        )  # fmt: skip
        if self._pieces and self._pieces[-1][0].times.base is self._room.times:
            last, before = self._pieces.pop()
            begin, latest = begin - len(last), max(np.int64(before), latest)
        self._pieces.append((self._room.cut(begin, self._used).freeze(), int(latest)))
        return copy.freeze()

    def pop(
        self, first: int, slots: int, requested: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], EventLists]:
        """Return the sorted tuples of the windows from `first` on, where they are `requested`.

        The result has the keys of the windows and slots that have any, and their lists. All
        tuples in these windows are dropped.
        """
        some = bool(self._pieces) and bool(requested.any())
        found = self._sort(first, slots, requested) if some else self.no_events()
        self._from = (first + len(requested) // max(1, slots)) * self._size
        self._pieces = [piece for piece in self._pieces if piece[1] >= self._from]
        return found

    def no_events(self) -> tuple[NDArray[np.int64], EventLists]:
        """Return no keys and no lists."""
        none = np.empty(0, np.int64)
        masks = np.empty((0, len(self._ordered)), np.uint64)
        return none, EventLists(np.zeros(1, np.int64), none, masks)

    def _sort(
        self, first: int, slots: int, requested: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], EventLists]:
        """Sort by window and slot with a counting sort, then each bucket by time."""
        pieces = [piece for piece, _ in self._pieces]
        ends = np.cumsum([0, *(len(piece) for piece in pieces)])
        if ends[-1] > len(self._keys):
            self._keys = np.empty(2 * ends[-1], np.uint32)
        counts = np.zeros(len(requested) + 1, np.int64)
        for piece, begin in zip(pieces, ends[:-1], strict=True):
            _count(
                piece.slots, piece.times, piece.masks.codes, piece.masks.table, piece.verdicts,
                self._ordered, first * self._size, self._size, slots, requested,
                self._keys[begin:], counts,
            )  # fmt: skip
        keys, starts = _to_starts(counts)
        times = allocate(int(starts[-1]), np.int64)
        masks = allocate((int(starts[-1]), len(self._ordered)), np.uint64)
        for piece, begin in zip(pieces, ends[:-1], strict=True):
            _fill_buckets(
                piece.times, piece.masks.codes, piece.masks.table, self._ordered,
                self._keys[begin:], counts, times, masks,
            )  # fmt: skip
        _sort_each(starts, times, masks)
        return keys, EventLists(starts, times, masks)

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Return the tuples of windows that were not popped, as plain arrays."""
        parts = [self._room.cut(0, 0)]
        for piece, _ in self._pieces:
            masks = piece.masks.dense & self._ordered
            relevant = masks.any(axis=1) & (piece.verdicts == TAKEN) & (piece.times >= self._from)
            parts.append(
                BufferPiece(
                    piece.slots[relevant],
                    piece.times[relevant],
                    EventMasks(masks[relevant]),
                    piece.verdicts[:0],
                )
            )
        return {
            "times": np.concatenate([part.times for part in parts]),
            "owners": np.concatenate([part.slots for part in parts]),
            "masks": np.concatenate([part.masks.dense for part in parts]),
        }

    def restore(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Restore what `state` returned."""
        self._pieces, self._from = [], NONE
        times = np.array(state["times"], np.int64)
        self.add(
            BufferPiece(
                np.array(state["owners"], np.int32),
                times,
                EventMasks(np.array(state["masks"], np.uint64)),
                np.full(len(times), TAKEN, np.uint8),
            )
        )


@compiled
def _count_relevant(
    times: NDArray[np.int64],
    codes: NDArray[np.uint8],
    masks: NDArray[np.uint64],
    verdicts: NDArray[np.uint8],
    ordered: NDArray[np.uint64],
    enough: int,
) -> tuple[int, np.int64]:
    """Return how many accepted tuples have one of these types, and the latest accepted time.

    It stops counting where there are `enough`.
    """
    relevant = np.uint64(0)
    if len(codes):
        wanted = np.empty(len(masks), np.uint8)
        for code in range(len(masks)):
            wanted[code] = _is_relevant(masks, code, ordered)
        for begin in range(0, len(codes), RUN):
            kinds, judged = codes[begin : begin + RUN], verdicts[begin : begin + RUN]
            for i in range(len(kinds)):
                relevant += np.uint64(wanted[kinds[i]] & (judged[i] == TAKEN))
            if relevant >= np.uint64(enough):
                break
    elif len(ordered) == 1:
        only = masks.reshape(-1)
        for i in range(len(only)):
            relevant += np.uint64(((only[i] & ordered[0]) != 0) & (verdicts[i] == TAKEN))
    else:
        for i in range(len(masks)):
            relevant += np.uint64(_is_relevant(masks, i, ordered) & (verdicts[i] == TAKEN))
    latest = np.int64(NONE)
    for i in range(len(times)):
        latest = max(latest, times[i] if verdicts[i] == TAKEN else np.int64(NONE))
    return int(relevant), latest


@compiled
def _is_relevant(
    masks: NDArray[np.uint64], row: int | np.int64, ordered: NDArray[np.uint64]
) -> bool:
    """Return whether a tuple has one of these types."""
    found = np.uint64(0)
    for word in range(len(ordered)):
        found |= masks[row, word] & ordered[word]
    return bool(found != 0)


@compiled
def _copy_relevant(
    slots: NDArray[np.int32],
    times: NDArray[np.int64],
    codes: NDArray[np.uint8],
    masks: NDArray[np.uint64],
    verdicts: NDArray[np.uint8],
    ordered: NDArray[np.uint64],
    to_slots: NDArray[np.int32],
    to_times: NDArray[np.int64],
    to_masks: NDArray[np.uint64],
) -> None:
    at = np.uint64(0)
    for i in range(len(times)):
        row = np.int64(codes[i]) if len(codes) else i
        if verdicts[i] == TAKEN and _is_relevant(masks, row, ordered):
            to_slots[at], to_times[at] = slots[i], times[i]
            for word in range(len(ordered)):
                to_masks[at, word] = masks[row, word] & ordered[word]
            at += np.uint64(1)


@compiled
def _count(
    slots: NDArray[np.int32],
    times: NDArray[np.int64],
    codes: NDArray[np.uint8],
    masks: NDArray[np.uint64],
    verdicts: NDArray[np.uint8],
    ordered: NDArray[np.uint64],
    start: int,
    size: int,
    width: int,
    requested: NDArray[np.bool_],
    keys: NDArray[np.uint32],
    counts: NDArray[np.int64],
) -> None:
    """Write each tuple's window and slot as one key, the greatest for tuples not requested."""
    nothing = np.uint64(len(requested))
    span = np.uint64(len(requested) // width * size)
    window_start, window_key = np.int64(start), np.uint64(0)
    for i in range(len(times)):
        key = nothing
        within = np.uint64(times[i] - start) < span
        row = np.int64(codes[i]) if len(codes) else i
        if within and verdicts[i] == TAKEN and _is_relevant(masks, row, ordered):
            if np.uint64(times[i] - window_start) >= np.uint64(size):
                window = (times[i] - start) // size
                window_start, window_key = start + window * size, np.uint64(window * width)
            key = window_key + np.uint64(slots[i])
            key = key if requested[key] else nothing
        keys[np.uint64(i)] = np.uint32(key)
        counts[key] += 1


@compiled
def _to_starts(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Turn counts into the beginnings of buckets; return the nonempty buckets and their starts.

    The last count is that of tuples that are not requested.
    """
    filled = 0
    for number in range(len(counts) - 1):
        filled += counts[number] > 0
    keys = np.empty(filled, np.int64)
    starts = np.empty(filled + 1, np.int64)
    bucket, total = np.uint64(0), np.int64(0)
    for number in range(len(counts) - 1):
        count = counts[number]
        if count > 0:
            keys[bucket], starts[bucket] = number, total
            bucket += np.uint64(1)
        counts[number] = total
        total += count
    starts[bucket] = total
    return keys, starts


@compiled
def _fill_buckets(
    times: NDArray[np.int64],
    codes: NDArray[np.uint8],
    masks: NDArray[np.uint64],
    ordered: NDArray[np.uint64],
    keys: NDArray[np.uint32],
    places: NDArray[np.int64],
    to_times: NDArray[np.int64],
    to_masks: NDArray[np.uint64],
) -> None:
    """Write tuples into their buckets."""
    nothing = np.uint64(len(places) - 1)
    for i in range(len(times)):
        key = np.uint64(keys[np.uint64(i)])
        if key == nothing:
            continue
        place = np.uint64(places[key])
        places[key] += 1
        to_times[place] = times[i]
        row = np.int64(codes[i]) if len(codes) else i
        for word in range(len(ordered)):
            to_masks[place, word] = masks[row, word] & ordered[word]


@compiled
def _merge_sort(times: NDArray[np.int64], masks: NDArray[np.uint64], begin: int, end: int) -> None:
    """Sort a bucket by time, stably."""
    # Numba takes longer to compile NumPy's sorts than everything else here.
    words = masks.shape[1]
    spare_times = np.empty(end - begin, np.int64)
    spare_masks = np.empty((end - begin, words), np.uint64)
    width = 1
    while width < end - begin:
        for left in range(begin, end, 2 * width):
            middle, right = min(left + width, end), min(left + 2 * width, end)
            one, two = left, middle
            for place in range(left - begin, right - begin):
                if two == right or (one < middle and times[one] <= times[two]):
                    source = one
                    one += 1
                else:
                    source = two
                    two += 1
                spare_times[place] = times[source]
                for word in range(words):
                    spare_masks[place, word] = masks[source, word]
        for place in range(end - begin):
            times[begin + place] = spare_times[place]
            for word in range(words):
                masks[begin + place, word] = spare_masks[place, word]
        width *= 2


@compiled
def _sort_each(
    starts: NDArray[np.int64], times: NDArray[np.int64], masks: NDArray[np.uint64]
) -> None:
    """Sort each bucket by time, with insertion sort, since tuples arrive nearly sorted."""
    words = masks.shape[1]
    for bucket in range(len(starts) - 1):
        begin, end = starts[bucket], starts[bucket + 1]
        moves, most = 0, _NEARLY_SORTED * (end - begin)
        for i in range(begin + 1, end):
            if times[i] >= times[i - 1]:
                continue
            if moves > most:  # far from sorted: insertion sort would take quadratic time
                _merge_sort(times, masks, begin, end)
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
