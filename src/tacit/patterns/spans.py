"""Sets of intervals, stored and combined by the compiled matcher of `intervals`.

A store is three arrays: first and last time of each interval (as numbers of distinct times),
the usage at its first and at its last time, and a link to the next interval in its bucket
while a set is being built. The sets of all nodes are consecutive in one store.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.kernels import compiled

Store: TypeAlias = tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64]]
Reach: TypeAlias = tuple[bool, bool]

# What concerns the node whose set is made: the fields of the types counted around it, the
# guard bits, whether absences stand beside it, the number of distinct times, the buckets.
Around: TypeAlias = tuple[NDArray[np.uint64], np.uint64, Reach, int, NDArray[np.int64]]

FAR = 1 << 62

# The kinds of nodes whose sets there are.
EVENT, EMPTY, EITHER, BOTH, ABSENT, ONLY_EMPTY, LIMIT, JOIN, AFTER, BEFORE = range(10)


@compiled
def new_store(size: int, words: int) -> Store:
    """Room for intervals whose usage takes this many words at each end."""
    return (
        np.empty((size, 2), np.int64),
        np.zeros((size, 2 * words), np.uint64),
        np.empty(size, np.int64),
    )


@compiled
def grown(store: Store, filled: int, more: int) -> Store:
    """Return the store, larger if `more` intervals would not fit."""
    if filled + more <= len(store[0]):
        return store
    larger = new_store(2 * (filled + more), store[1].shape[1] // 2)
    for place in range(filled):
        _move(store, place, larger, place)
        larger[2][place] = store[2][place]
    return larger


@compiled
def _move(source: Store, place: int, target: Store, slot: int) -> None:
    """Copy an interval from one store to another."""
    for side in range(2):
        target[0][slot, side] = source[0][place, side]
    for word in range(source[1].shape[1]):
        target[1][slot, word] = source[1][place, word]


@compiled
def fits(usage: NDArray[np.uint64], one: int, other: int, side: int, guard: np.uint64) -> bool:
    """Return whether an interval uses no more than another at one side.

    The guard bit above a field is borrowed from exactly where the other uses less.
    """
    words = usage.shape[1] // 2
    borrowed = np.uint64(0)
    for word in range(side * words, (side + 1) * words):
        borrowed |= guard & ~((usage[other, word] | guard) - usage[one, word])
    return bool(borrowed == 0)


@compiled
def dominates(store: Store, one: int, other: int, reach: Reach, guard: np.uint64) -> bool:
    """Return whether an interval is at least as good as another wherever the other can be used."""
    ends, usage, _ = store
    if ends[one, 0] != ends[other, 0]:
        if reach[0] or ends[one, 0] < ends[other, 0]:
            return False
    elif not fits(usage, one, other, 0, guard):
        return False
    if ends[one, 1] != ends[other, 1]:
        return not reach[1] and bool(ends[one, 1] < ends[other, 1])
    return fits(usage, one, other, 1, guard)


@compiled
def keep(store: Store, filled: int, around: Around) -> int:
    """Add the interval written after the last one, unless one in its bucket is as good.

    Those in the bucket that it is better than are marked as dropped.
    """
    ends, _, link = store
    _, guard, reach, count, heads = around
    bucket = bucket_of(ends[filled, 0], ends[filled, 1], reach, count, len(heads))
    before = -1
    place = heads[bucket]
    while place >= 0:
        following = link[place]
        if dominates(store, place, filled, reach, guard):
            return filled
        if dominates(store, filled, place, reach, guard):
            ends[place, 0] = -1
            if before < 0:
                heads[bucket] = following
            else:
                link[before] = following
        else:
            before = place
        place = following
    link[filled] = heads[bucket]
    heads[bucket] = filled
    return filled + 1


@compiled
def bucket_of(first: int, last: int, reach: Reach, count: int, buckets: int) -> int:
    """Intervals of which one may be better than the other are mostly in one bucket.

    The number of buckets is a power of two.
    """
    number = last if reach[1] else first
    if reach[0] and reach[1]:
        number += first * count
    return number & (buckets - 1)


@compiled
def seal(store: Store, begin: int, filled: int, around: Around) -> int:
    """Finish a set: close the gaps, order it by first time, drop intervals around others.

    Where nothing is counted, intervals with one end in common compare as well. All buckets
    are left empty.
    """
    ends = store[0]
    counted, _, reach, count, heads = around
    exact = not counted.any()
    for place in range(begin, filled):
        if ends[place, 0] >= 0:
            heads[bucket_of(ends[place, 0], ends[place, 1], reach, count, len(heads))] = -1
    tightest = np.full(count + 1, FAR, np.int64)
    if not reach[0] and not reach[1]:
        for place in range(begin, filled):
            if ends[place, 0] > 0:
                before = ends[place, 0] - 1
                tightest[before] = min(tightest[before], ends[place, 1])
        for moment in range(count - 2, -1, -1):
            tightest[moment] = min(tightest[moment], tightest[moment + 1])
    at = np.zeros(count + 1, np.int64)
    for place in range(begin, filled):
        if ends[place, 0] >= 0:
            limit = tightest[ends[place, 0]]
            if ends[place, 1] > limit or (exact and ends[place, 1] == limit):
                ends[place, 0] = -1
            else:
                at[ends[place, 0] + 1] += 1
    for moment in range(count):
        at[moment + 1] += at[moment]
    kept = at[count]
    ordered = new_store(kept, len(counted))
    for place in range(begin, filled):
        first = ends[place, 0]
        if first >= 0:
            _move(store, place, ordered, at[first])
            at[first] += 1
    for slot in range(kept):
        _move(ordered, slot, store, begin + slot)
    return begin + int(kept)


@compiled
def list_events(
    store: Store,
    filled: int,
    events: NDArray[np.int64],
    unit: NDArray[np.uint64],
    around: Around,
) -> tuple[Store, int]:
    """Return an interval for each time at which there are events of a type."""
    counted = around[0]
    store = grown(store, filled, len(events))
    ends, usage, _ = store
    for moment in range(len(events)):
        if events[moment]:
            ends[filled, 0] = moment
            ends[filled, 1] = moment
            for word in range(len(unit)):
                usage[filled, word] = unit[word] & counted[word]
                usage[filled, len(unit) + word] = unit[word] & counted[word]
            filled += 1
    return store, filled


@compiled
def write(
    store: Store,
    place: int,
    first: int,
    last: int,
    source: int,
    target: int,
    counted: NDArray[np.uint64],
) -> None:
    """Write an interval that uses at its first time what `source` does, at its last `target`."""
    ends, usage, _ = store
    words = len(counted)
    ends[place, 0] = first
    ends[place, 1] = last
    for word in range(words):
        usage[place, word] = usage[source, word] & counted[word]
        usage[place, words + word] = usage[target, words + word] & counted[word]


@compiled
def copy(
    store: Store,
    filled: int,
    part: NDArray[np.int64],
    moments: NDArray[np.int64],
    bounds: tuple[int, int, int],
    around: Around,
) -> tuple[Store, int]:
    """Return the intervals of a node that are not too long, begin in time and end late enough."""
    longest, latest_first, earliest_last = bounds
    store = grown(store, filled, part[1] - part[0] + 1)
    ends = store[0]
    for place in range(part[0], part[1]):
        first, last = ends[place, 0], ends[place, 1]
        if (
            first <= latest_first
            and last >= earliest_last
            and moments[last] - moments[first] <= longest
        ):
            write(store, filled, first, last, place, place, around[0])
            filled = keep(store, filled, around)
    return store, filled


@compiled
def limits(
    store: Store,
    absent: NDArray[np.int64],
    bounds: NDArray[np.int64],
    empty: NDArray[np.bool_],
    count: int,
) -> NDArray[np.int64]:
    """Return for each time (one on), the latest at which the next part may begin.

    Something unwanted that begins later than a part's last time must not end before the
    next part begins. Place 0 is the window's edge. A match without events is
    unwanted everywhere: nothing may begin.
    """
    latest = np.full(count + 1, FAR, np.int64)
    ends = store[0]
    for node in absent:
        if node < 0:
            break
        if empty[node]:
            latest[:] = -1
            return latest
        for place in range(bounds[node, 0], bounds[node, 1]):
            first = ends[place, 0]
            latest[first] = min(latest[first], ends[place, 1])
    for moment in range(count - 1, -1, -1):
        latest[moment] = min(latest[moment], latest[moment + 1])
    return latest


@compiled
def join(
    store: Store,
    filled: int,
    one: NDArray[np.int64],
    two: NDArray[np.int64],
    latest: NDArray[np.int64],
    room: NDArray[np.uint64],
    around: Around,
) -> tuple[Store, int]:
    """Return every interval of one followed by one of the other.

    The second ones are in order of first time. Where no absence follows, those that end
    later than one already found cannot be better, so the search stops.
    """
    counted, guard, reach, count, _ = around
    words = len(counted)
    at = np.zeros(count + 1, np.int64)
    soonest = np.full(two[1] - two[0] + 1, FAR, np.int64)
    for place in range(two[1] - 1, two[0] - 1, -1):
        soonest[place - two[0]] = min(soonest[place - two[0] + 1], store[0][place, 1])
        at[store[0][place, 0] + 1] += 1
    for moment in range(count):
        at[moment + 1] += at[moment]
    for left in range(one[0], one[1]):
        store = grown(store, filled, two[1] - two[0] + 1)
        ends, usage, _ = store
        end = ends[left, 1]
        best = FAR
        for right in range(two[0] + at[end], two[1]):
            begin = ends[right, 0]
            if begin > latest[end + 1] or (not reach[1] and best < soonest[right - two[0]]):
                break
            write(store, filled, ends[left, 0], ends[right, 1], left, right, counted)
            if begin > end:
                best = min(best, ends[right, 1])
            elif not _share(usage, left, right, room[end], guard):
                continue
            else:
                for word in range(words):
                    if ends[left, 0] == end:
                        usage[filled, word] += usage[right, word] & counted[word]
                    if ends[right, 1] == end:
                        usage[filled, words + word] += usage[left, words + word] & counted[word]
            filled = keep(store, filled, around)
    return store, filled


@compiled
def _share(
    usage: NDArray[np.uint64], left: int, right: int, room: NDArray[np.uint64], guard: np.uint64
) -> bool:
    """Return whether there are enough events for both, if one ends when the other begins."""
    words = len(room)
    for word in range(words):
        wanted = usage[left, words + word] + usage[right, word]
        if ((room[word] | guard) - wanted) & guard != guard:
            return False
    return True


@compiled
def both(
    store: Store,
    filled: int,
    one: NDArray[np.int64],
    two: NDArray[np.int64],
    width: int,
    around: Around,
) -> tuple[Store, int]:
    """Return every interval of one together with every one of the other; they may share events."""
    counted, guard, _, _, _ = around
    words = len(counted)
    for left in range(one[0], one[1]):
        store = grown(store, filled, two[1] - two[0] + 1)
        ends, usage, _ = store
        for right in range(two[0], two[1]):
            early = left if ends[left, 0] <= ends[right, 0] else right
            late = left if ends[left, 1] >= ends[right, 1] else right
            write(store, filled, ends[early, 0], ends[late, 1], early, late, counted)
            for word in range(words):
                if ends[left, 0] == ends[right, 0]:
                    usage[filled, word] = counted[word] & _larger(
                        usage[left, word], usage[right, word], guard, width
                    )
                if ends[left, 1] == ends[right, 1]:
                    usage[filled, words + word] = counted[word] & _larger(
                        usage[left, words + word], usage[right, words + word], guard, width
                    )
            filled = keep(store, filled, around)
    return store, filled


@compiled
def _larger(one: np.uint64, other: np.uint64, guard: np.uint64, width: int) -> np.uint64:
    """Return the larger of each field."""
    ahead = ((one | guard) - other) & guard
    chosen = ahead - (ahead >> np.uint64(width - 1))
    return (one & chosen) | (other & ~chosen)
