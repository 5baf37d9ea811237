"""A buffer for the tuples that ordered patterns need, until their windows are popped.

A large batch is not copied: its arrays are referenced until all their windows are closed. A small
batch, or one with few relevant tuples, is copied into arrays of the buffer. Only requested windows
are sorted: bucketed by window and slot, then sorted by time inside each bucket.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tacit.buffers import allocate
from tacit.events.columns import freeze
from tacit.events.masks import EventMasks
from tacit.kernels import compiled
from tacit.patterns.event_lists import EventLists
from tacit.windows.clock import NONE, TAKEN
from tacit.windows.runs import NO_RUNS, RUN, count_runs, find_run

_LARGE = 1 << 13
"""The number of tuples from which on a batch is not copied."""
_SAMPLE = 1 << 12
"""It is not copied if at least half of so many tuples at its beginning are relevant."""
_ROOM = 1 << 16
"""The number of tuples for which the buffer allocates memory at once."""
_NEARLY_SORTED = 4
"""The number of moves per tuple after which insertion sort is given up."""
_BLOCK = 16
"""The number of tuples in a bucket that are sorted by insertion before blocks are merged."""


@dataclass(frozen=True, slots=True)
class BufferPiece:
    """Tuples in order of arrival. Readers skip those that were refused or are not relevant."""

    slots: NDArray[np.int32]
    times: NDArray[np.int64]
    masks: EventMasks
    verdicts: NDArray[np.uint8]
    runs: NDArray[np.int64]
    """The window that contains all tuples of a run, as in `Verdicts`; NONE if it is not known."""
    offset: int = 0
    """How many tuples of its first run are before this piece."""

    @classmethod
    def allocate(cls, length: int, words: int) -> BufferPiece:
        """Allocate tuples that are all accepted."""
        return cls(
            np.empty(length, np.int32),
            np.empty(length, np.int64),
            EventMasks(np.empty((length, words), np.uint64)),
            np.full(length, TAKEN, np.uint8),
            NO_RUNS,
        )

    def __len__(self) -> int:
        return len(self.times)

    def cut(self, begin: int, end: int) -> BufferPiece:
        """Return the tuples from `begin` to `end`, without copying them."""
        if begin == 0 and end == len(self.times):
            return self
        part, first = slice(begin, end), begin + self.offset
        return BufferPiece(
            self.slots[part],
            self.times[part],
            self.masks[part],
            self.verdicts[part],
            self.runs[first // RUN : -(-(end + self.offset) // RUN)],
            first % RUN,
        )

    def freeze(self) -> BufferPiece:
        """Return the piece with read-only slots and times, as most sources give them.

        Writable arrays would make the kernels compile once more.
        """
        if not (self.slots.flags.writeable or self.times.flags.writeable):
            return self
        return replace(self, slots=freeze(self.slots), times=freeze(self.times))


class EventBuffer:
    """Tuples of open windows; `ordered` are the relevant event types, as mask words."""

    def __init__(self, size: int, ordered: NDArray[np.uint64]) -> None:
        self._size = size
        self._ordered = ordered
        self._pieces: list[tuple[BufferPiece, int]] = []
        """The pieces in order of arrival, each with the latest window of its tuples."""
        self._room = BufferPiece.allocate(0, len(ordered))
        self._read = self._room.freeze()
        """The same memory, read-only."""
        self._used = 0
        self._from: int = NONE
        """The first window that was not popped."""
        self._chosen = np.empty((2, 0), np.uint32)
        """Room for the tuples that are sorted: the number of each in its piece, and its key."""

    def add(self, piece: BufferPiece) -> BufferPiece:
        """Add tuples; return all of them, or those that are relevant if they are few."""
        piece = piece.freeze()
        latest = int(
            _find_latest(piece.times, piece.verdicts, piece.runs, piece.offset, self._size)
        )
        if len(piece) >= _LARGE:
            sample = piece.cut(0, min(len(piece), _SAMPLE))
            if 2 * self._count(sample) >= len(sample):
                # A copy of the runs, since the clock judges the rest of the last one later.
                self._pieces.append((replace(piece, runs=piece.runs.copy()), latest))
                return piece
        relevant = self._count(piece)
        if not relevant:
            return piece.cut(0, 0)
        if self._used + relevant > len(self._room):
            self._room = BufferPiece.allocate(max(_ROOM, relevant), len(self._ordered))
            self._read, self._used = self._room.freeze(), 0
        room, begin, self._used = self._room, self._used, self._used + relevant
        _copy_relevant(
            piece.slots, piece.times, piece.masks.codes, piece.masks.table, piece.verdicts,
            self._ordered, room.slots[begin:], room.times[begin:], room.masks.table[begin:],
        )  # fmt: skip
        added = piece if 2 * relevant >= len(piece) else self._read.cut(begin, self._used)
        if self._pieces and self._pieces[-1][0].times.base is room.times:
            last, before = self._pieces.pop()
            begin, latest = begin - len(last), max(before, latest)
        self._pieces.append((self._read.cut(begin, self._used), latest))
        return added

    def _count(self, piece: BufferPiece) -> int:
        """Return how many accepted tuples are relevant."""
        masks = piece.masks
        return int(_count_relevant(masks.codes, masks.table, piece.verdicts, self._ordered))

    def pop(
        self, first: int, slots: int, requested: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], EventLists]:
        """Return the sorted tuples of the windows from `first` on, where they are `requested`.

        The result has the keys of the windows and slots that have any, and their lists. All
        tuples in these windows are dropped.
        """
        some = bool(self._pieces) and bool(requested.any())
        found = self._sort(first, slots, requested) if some else self.no_events()
        self._from = first + len(requested) // max(1, slots)
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
        most = sum(map(len, pieces))
        if most > len(self._chosen[0]):
            self._chosen = np.empty((2, 2 * most), np.uint32)
        counts = np.zeros(len(requested), np.int64)
        wanted = np.asarray(requested.reshape(-1, slots).any(axis=0))
        ends = [0]
        for piece in pieces:
            found = _choose(
                piece.slots, piece.times, piece.masks.codes, piece.masks.table, piece.verdicts,
                piece.runs, piece.offset, self._ordered, first, self._size, wanted, requested,
                self._chosen, ends[-1], counts,
            )  # fmt: skip
            ends.append(ends[-1] + int(found))
        keys, starts = _to_starts(counts)
        times = allocate(int(starts[-1]), np.int64)
        masks = allocate((int(starts[-1]), len(self._ordered)), np.uint64)
        for piece, (begin, end) in zip(pieces, pairwise(ends), strict=True):
            _fill_buckets(
                piece.times, piece.masks.codes, piece.masks.table, self._ordered,
                self._chosen, begin, end, counts, times, masks,
            )  # fmt: skip
        _sort_each(starts, times, masks)
        return keys, EventLists(starts, times, masks)

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Return the tuples of windows that were not popped, as plain arrays."""
        parts = [self._room.cut(0, 0)]
        for piece, _ in self._pieces:
            masks = piece.masks.dense & self._ordered
            waiting = piece.times // self._size >= self._from
            relevant = masks.any(axis=1) & (piece.verdicts == TAKEN) & waiting
            parts.append(
                BufferPiece(
                    piece.slots[relevant],
                    piece.times[relevant],
                    EventMasks(masks[relevant]),
                    piece.verdicts[:0],
                    NO_RUNS,
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
                NO_RUNS,
            )
        )


@compiled
def _find_latest(
    times: NDArray[np.int64],
    verdicts: NDArray[np.uint8],
    runs: NDArray[np.int64],
    offset: int,
    size: int,
) -> np.int64:
    """Return the latest window of accepted tuples; NONE if there are none."""
    latest = np.int64(NONE)
    for run in range(count_runs(len(times), offset)):
        if run < len(runs) and runs[run] != NONE:
            latest = max(latest, runs[run])
            continue
        begin, end = find_run(run, len(times), offset)
        moments, judged, last = times[begin:end], verdicts[begin:end], np.int64(NONE)
        for i in range(len(moments)):
            last = max(last, moments[i] if judged[i] == TAKEN else np.int64(NONE))
        if last != NONE:
            latest = max(latest, last // size)
    return latest


@compiled
def _count_relevant(
    codes: NDArray[np.uint8],
    masks: NDArray[np.uint64],
    verdicts: NDArray[np.uint8],
    ordered: NDArray[np.uint64],
) -> int:
    """Return how many accepted tuples have one of these types."""
    relevant = np.uint64(0)
    for i in range(len(verdicts)):
        row = np.int64(codes[i]) if len(codes) else i
        relevant += np.uint64(_is_relevant(masks, row, ordered) & (verdicts[i] == TAKEN))
    return int(relevant)


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
def _choose(
    slots: NDArray[np.int32],
    times: NDArray[np.int64],
    codes: NDArray[np.uint8],
    masks: NDArray[np.uint64],
    verdicts: NDArray[np.uint8],
    runs: NDArray[np.int64],
    offset: int,
    ordered: NDArray[np.uint64],
    first: int,
    size: int,
    wanted: NDArray[np.bool_],
    requested: NDArray[np.bool_],
    chosen: NDArray[np.uint32],
    place: int,
    counts: NDArray[np.int64],
) -> np.uint64:
    """Choose the tuples that are requested; write their numbers and keys from `place` on.

    They are counted by key. A key is the window and the slot as one number. `wanted` are the slots
    that are requested in any window: often few, so that most tuples are skipped first. Returns how
    many tuples were chosen.
    """
    found, width = np.uint64(0), len(wanted)
    numbers, keys = chosen[0, place:], chosen[1, place:]
    windows, start = len(requested) // width, first * size
    span = np.uint64(windows * size)
    window_start, window_key = np.int64(start), np.uint64(0)
    for run in range(count_runs(len(times), offset)):
        known = run < len(runs) and runs[run] != NONE
        if known and not first <= runs[run] < first + windows:
            continue
        begin, end = find_run(run, len(times), offset)
        for i in range(np.uint64(begin), np.uint64(end)):
            if verdicts[i] != TAKEN or not wanted[np.uint64(slots[i])]:
                continue
            if np.uint64(times[i] - window_start) >= np.uint64(size):
                if np.uint64(times[i] - start) >= span:
                    continue
                window = (times[i] - start) // size
                window_start, window_key = start + window * size, np.uint64(window * width)
            key = window_key + np.uint64(slots[i])
            row = np.int64(codes[i]) if len(codes) else np.int64(i)
            if requested[key] and _is_relevant(masks, row, ordered):
                numbers[found], keys[found] = np.uint32(i), np.uint32(key)
                found += np.uint64(1)
                counts[key] += 1
    return found


@compiled
def _to_starts(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Turn counts into the beginnings of buckets; return the nonempty buckets and their starts."""
    filled = 0
    for number in range(len(counts)):
        filled += counts[number] > 0
    keys = np.empty(filled, np.int64)
    starts = np.empty(filled + 1, np.int64)
    bucket, total = np.uint64(0), np.int64(0)
    for number in range(len(counts)):
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
    chosen: NDArray[np.uint32],
    begin: int,
    end: int,
    places: NDArray[np.int64],
    to_times: NDArray[np.int64],
    to_masks: NDArray[np.uint64],
) -> None:
    """Write the tuples that were chosen from `begin` to `end` into their buckets."""
    numbers, keys = chosen[0, begin:end], chosen[1, begin:end]
    for n in range(len(numbers)):
        i, key = np.uint64(numbers[n]), np.uint64(keys[n])
        place = np.uint64(places[key])
        places[key] += 1
        to_times[place] = times[i]
        row = np.int64(codes[i]) if len(codes) else np.int64(i)
        for word in range(len(ordered)):
            to_masks[place, word] = masks[row, word] & ordered[word]


@compiled
def _merge_sort(times: NDArray[np.int64], masks: NDArray[np.uint64], begin: int, end: int) -> None:
    """Sort a bucket by time, stably: short blocks by insertion, then merge them without branches.

    Times move with their places; masks are moved once, at the end.
    """
    # Numba takes longer to compile NumPy's sorts than everything else here.
    length, words = end - begin, masks.shape[1]
    moments, places = times[begin:end].copy(), np.arange(length)
    for block in range(0, length, _BLOCK):
        for i in range(block + 1, min(block + _BLOCK, length)):
            moment, at = moments[i], i
            while at > block and moments[at - 1] > moment:
                moments[at], places[at] = moments[at - 1], places[at - 1]
                at -= 1
            moments[at], places[at] = moment, i
    merged, origins = np.empty_like(moments), np.empty_like(places)
    width = _BLOCK
    while width < length:
        for left in range(0, length, 2 * width):
            middle, right = min(left + width, length), min(left + 2 * width, length)
            one, two, to = left, middle, left
            while one < middle and two < right:
                first = moments[one] <= moments[two]
                merged[to] = moments[one] if first else moments[two]
                origins[to] = places[one] if first else places[two]
                one += first
                two += not first
                to += 1
            for rest in range(one, middle):
                merged[to + rest - one], origins[to + rest - one] = moments[rest], places[rest]
            for rest in range(two, right):
                merged[rest], origins[rest] = moments[rest], places[rest]
        moments, merged = merged, moments
        places, origins = origins, places
        width *= 2
    before = masks[begin:end].copy()
    for i in range(length):
        times[begin + i] = moments[i]
        for word in range(words):
            masks[begin + i, word] = before[places[i], word]


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
