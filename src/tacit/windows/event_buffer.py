"""The tuples that ordered patterns look at, kept until their windows are handed on.

A large batch is not copied: the arrays that came are held until all their windows are
closed. What is little, or mostly of no interest, is gathered in arrays of our own. Only
the windows that are asked for are brought into order: bucketed by window and slot, and
sorted by time inside each bucket.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.events.columns import frozen
from tacit.kernels import compiled
from tacit.patterns.lists import EventLists
from tacit.windows.clock import NONE, TAKEN

_LARGE = 1 << 16
"""Tuples from which on a batch is held as it is."""
_NEARLY_SORTED = 16


@dataclass(frozen=True, slots=True)
class BufferPiece:
    """Tuples in order of arrival. Who reads them skips those that were refused or are of no
    type that is looked at.
    """

    slots: NDArray[np.int32]
    times: NDArray[np.int64]
    masks: NDArray[np.uint64]
    verdicts: NDArray[np.uint8]

    @classmethod
    def blank(cls, length: int, words: int) -> BufferPiece:
        """Room for tuples, all of them taken."""
        return cls(
            np.empty(length, np.int32),
            np.empty(length, np.int64),
            np.empty((length, words), np.uint64),
            np.full(length, TAKEN, np.uint8),
        )

    def __len__(self) -> int:
        return len(self.times)

    def cut(self, begin: int, end: int) -> BufferPiece:
        """The tuples from `begin` to `end`, not copied."""
        part = slice(begin, end)
        return BufferPiece(
            self.slots[part], self.times[part], self.masks[part], self.verdicts[part]
        )

    def fixed(self) -> BufferPiece:
        """The same with times that cannot be written to, as they come from most sources.

        A loop is compiled anew for arrays that can.
        """
        return BufferPiece(self.slots, frozen(self.times), self.masks, self.verdicts)


class EventBuffer:
    """Tuples of open windows; `ordered` are the event types that are looked at, as mask words."""

    def __init__(self, size: int, ordered: NDArray[np.uint64]) -> None:
        self._size = size
        self._ordered = ordered
        self._pieces: list[tuple[BufferPiece, int]] = []
        """In order of arrival, with the latest time in each."""
        self._room = BufferPiece.blank(0, len(ordered))
        self._used = 0
        self._from: int = NONE
        """Where the windows begin that were not handed on."""
        self._keys = np.empty(0, np.uint32)

    def add(self, piece: BufferPiece) -> BufferPiece:
        """Keep tuples; gives those that are kept, and perhaps some to be skipped."""
        piece = piece.fixed()
        wanted, latest = _survey(piece.times, piece.masks, piece.verdicts, self._ordered)
        if not wanted:
            return piece.cut(0, 0)
        if len(piece) >= _LARGE and 2 * wanted >= len(piece):
            self._pieces.append((piece, int(latest)))
            return piece
        if self._used + wanted > len(self._room):
            self._room, self._used = BufferPiece.blank(max(_LARGE, wanted), len(self._ordered)), 0
        begin, self._used = self._used, self._used + wanted
        copy = self._room.cut(begin, self._used)
        _copy_wanted(
            piece.slots, piece.times, piece.masks, piece.verdicts, self._ordered,
            copy.slots, copy.times, copy.masks,
        )  # fmt: skip
        if self._pieces and self._pieces[-1][0].times.base is self._room.times:
            last, before = self._pieces.pop()
            begin, latest = begin - len(last), max(np.int64(before), latest)
        self._pieces.append((self._room.cut(begin, self._used).fixed(), int(latest)))
        return copy.fixed()

    def pop(
        self, first: int, slots: int, asked: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], EventLists]:
        """The tuples in order, of the windows from `first` on and the slots that are `asked` for.

        The keys of those that have any, and the lists. All in these windows are dropped.
        """
        some = bool(self._pieces) and bool(asked.any())
        found = self._in_order(first, slots, asked) if some else self.nothing()
        self._from = (first + len(asked) // max(1, slots)) * self._size
        self._pieces = [piece for piece in self._pieces if piece[1] >= self._from]
        return found

    def nothing(self) -> tuple[NDArray[np.int64], EventLists]:
        """No keys and no lists."""
        none = np.empty(0, np.int64)
        masks = np.empty((0, len(self._ordered)), np.uint64)
        return none, EventLists(np.zeros(1, np.int64), none, masks)

    def _in_order(
        self, first: int, slots: int, asked: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], EventLists]:
        """A counting sort by window and slot, then each of these by time."""
        pieces = [piece for piece, _ in self._pieces]
        ends = np.cumsum([0, *(len(piece) for piece in pieces)])
        if ends[-1] > len(self._keys):
            self._keys = np.empty(2 * ends[-1], np.uint32)
        counts = np.zeros(len(asked) + 1, np.int64)
        for piece, begin in zip(pieces, ends[:-1], strict=True):
            _count(
                piece.slots, piece.times, piece.masks, piece.verdicts, self._ordered,
                first * self._size, self._size, slots, asked, self._keys[begin:], counts,
            )  # fmt: skip
        keys, starts = _to_places(counts)
        times = np.empty(starts[-1], np.int64)
        masks = np.empty((starts[-1], len(self._ordered)), np.uint64)
        for piece, begin in zip(pieces, ends[:-1], strict=True):
            _place(piece.times, piece.masks, self._ordered, self._keys[begin:], counts,
                   times, masks)  # fmt: skip
        _sort_each(starts, times, masks)
        return keys, EventLists(starts, times, masks)

    def state(self) -> dict[str, NDArray[np.generic]]:
        """The tuples of windows that were not handed on, as plain arrays."""
        parts = [self._room.cut(0, 0)]
        for piece, _ in self._pieces:
            masks = piece.masks & self._ordered
            wanted = masks.any(axis=1) & (piece.verdicts == TAKEN) & (piece.times >= self._from)
            parts.append(
                BufferPiece(
                    piece.slots[wanted], piece.times[wanted], masks[wanted], piece.verdicts[:0]
                )
            )
        return {
            "times": np.concatenate([part.times for part in parts]),
            "owners": np.concatenate([part.slots for part in parts]),
            "masks": np.concatenate([part.masks for part in parts]),
        }

    def restore(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Take up a state that `state` gave."""
        self._pieces, self._from = [], NONE
        times = np.array(state["times"], np.int64)
        self.add(
            BufferPiece(
                np.array(state["owners"], np.int32),
                times,
                np.array(state["masks"], np.uint64),
                np.full(len(times), TAKEN, np.uint8),
            )
        )


@compiled
def _survey(
    times: NDArray[np.int64],
    masks: NDArray[np.uint64],
    verdicts: NDArray[np.uint8],
    ordered: NDArray[np.uint64],
) -> tuple[int, np.int64]:
    """How many tuples were taken and are of these types, and the latest time that was taken."""
    wanted = np.uint64(0)
    if len(ordered) == 1:
        only = masks.reshape(-1)
        for i in range(len(only)):
            wanted += np.uint64(((only[i] & ordered[0]) != 0) & (verdicts[i] == TAKEN))
    else:
        for i in range(len(masks)):
            wanted += np.uint64(_gives(masks, i, ordered) & (verdicts[i] == TAKEN))
    latest = np.int64(NONE)
    for i in range(len(times)):
        latest = max(latest, times[i] if verdicts[i] == TAKEN else np.int64(NONE))
    return int(wanted), latest


@compiled
def _gives(masks: NDArray[np.uint64], row: int, ordered: NDArray[np.uint64]) -> bool:
    """Whether a tuple is of one of these types."""
    found = np.uint64(0)
    for word in range(len(ordered)):
        found |= masks[row, word] & ordered[word]
    return bool(found != 0)


@compiled
def _copy_wanted(
    slots: NDArray[np.int32],
    times: NDArray[np.int64],
    masks: NDArray[np.uint64],
    verdicts: NDArray[np.uint8],
    ordered: NDArray[np.uint64],
    to_slots: NDArray[np.int32],
    to_times: NDArray[np.int64],
    to_masks: NDArray[np.uint64],
) -> None:
    at = np.uint64(0)
    for i in range(len(times)):
        if verdicts[i] == TAKEN and _gives(masks, i, ordered):
            to_slots[at], to_times[at] = slots[i], times[i]
            for word in range(len(ordered)):
                to_masks[at, word] = masks[i, word] & ordered[word]
            at += np.uint64(1)


@compiled
def _count(
    slots: NDArray[np.int32],
    times: NDArray[np.int64],
    masks: NDArray[np.uint64],
    verdicts: NDArray[np.uint8],
    ordered: NDArray[np.uint64],
    start: int,
    size: int,
    width: int,
    asked: NDArray[np.bool_],
    keys: NDArray[np.uint32],
    counts: NDArray[np.int64],
) -> None:
    """The window and slot of each tuple as one number, the greatest for what is not asked for."""
    nothing = np.uint64(len(asked))
    span = np.uint64(len(asked) // width * size)
    window_start, window_key = np.int64(start), np.uint64(0)
    for i in range(len(times)):
        key = nothing
        within = np.uint64(times[i] - start) < span
        if within and verdicts[i] == TAKEN and _gives(masks, i, ordered):
            if np.uint64(times[i] - window_start) >= np.uint64(size):
                window = (times[i] - start) // size
                window_start, window_key = start + window * size, np.uint64(window * width)
            key = window_key + np.uint64(slots[i])
            key = key if asked[key] else nothing
        keys[np.uint64(i)] = np.uint32(key)
        counts[key] += 1


@compiled
def _to_places(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Turn counts into the place where each bucket begins; which hold something, and where.

    The last count is that of what is not asked for.
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
def _place(
    times: NDArray[np.int64],
    masks: NDArray[np.uint64],
    ordered: NDArray[np.uint64],
    keys: NDArray[np.uint32],
    places: NDArray[np.int64],
    to_times: NDArray[np.int64],
    to_masks: NDArray[np.uint64],
) -> None:
    """Put tuples into their buckets."""
    nothing = np.uint64(len(places) - 1)
    for i in range(len(times)):
        key = np.uint64(keys[np.uint64(i)])
        if key == nothing:
            continue
        place = np.uint64(places[key])
        places[key] += 1
        to_times[place] = times[i]
        for word in range(len(ordered)):
            to_masks[place, word] = masks[i, word] & ordered[word]


@compiled
def _merge_sort(times: NDArray[np.int64], masks: NDArray[np.uint64], begin: int, end: int) -> None:
    """Sort a bucket by time, equal times in the order they have."""
    # NumPy's sorts take Numba longer to compile than everything else here.
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
    """Sort each bucket by time: by insertion, since tuples arrive nearly in order."""
    words = masks.shape[1]
    for bucket in range(len(starts) - 1):
        begin, end = starts[bucket], starts[bucket + 1]
        moves, most = 0, _NEARLY_SORTED * (end - begin)
        for i in range(begin + 1, end):
            if times[i] >= times[i - 1]:
                continue
            if moves > most:  # far from sorted: insertion would take the square of the length
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
