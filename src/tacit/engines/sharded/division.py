"""Divide the open windows of several shards into those of each shard, and join them again.

A task evaluates all its shards at once, in one `WindowState`, where the subjects of one shard come
after those of the other. Its state is stored for each shard, so that shards can move between tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
Frames = dict[str, pl.DataFrame]

_BY_SLOT: Final = {
    "since": 0,
    "panes.ring": 1,
    "panes.states": 1,
    "panes.lasts": 1,
    "sliding.words": 1,
}
"""The arrays that have an axis of slots, and which."""
_SHARED: Final = ("sliding.end",)
_OWNED: Final = ("panes.times", "panes.masks")
_LISTS: Final = ("sliding.keys", "sliding.starts", "sliding.times", "sliding.masks")
_DRAWN: Final = "sliding.drawn."
_MOMENTS: Final = ".moments"
_SLOT: Final = 2
"""The row of a table of times that has the slots."""


@dataclass(frozen=True, slots=True)
class SlotRanges:
    """Where the slots of each shard begin and end in one sequence of slots."""

    edges: NDArray[np.int64]

    @classmethod
    def of(cls, sizes: Sequence[int]) -> SlotRanges:
        """Create the ranges of shards with so many subjects."""
        return cls(np.concatenate([[0], np.cumsum(np.array(sizes, np.int64))]))

    @property
    def total(self) -> int:
        """How many slots there are."""
        return int(self.edges[-1])

    def __len__(self) -> int:
        return len(self.edges) - 1

    def find(self, slots: NDArray[Any]) -> NDArray[np.int64]:
        """Return the place of the shard that each slot belongs to."""
        return np.searchsorted(self.edges, slots, "right") - 1

    def group(self, slots: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return an order of the slots by shard, stable, and where each shard begins in it."""
        owners = self.find(slots)
        order = np.argsort(owners, kind="stable")
        return order, np.searchsorted(owners[order], np.arange(len(self) + 1))


def divide_windows(
    arrays: Mapping[str, NDArray[Any]], frames: Mapping[str, pl.DataFrame], ranges: SlotRanges
) -> list[tuple[Arrays, Frames]]:
    """Divide the state of a `WindowState` into that of each shard."""
    if len(ranges) == 1:
        return [(dict(arrays), dict(frames))]
    parts: list[tuple[Arrays, Frames]] = [({}, {}) for _ in range(len(ranges))]
    edges = ranges.edges.tolist()
    for name, whole in arrays.items():
        if name in _BY_SLOT:
            for place, (own, _) in enumerate(parts):
                inner = slice(edges[place], edges[place + 1])
                own[name] = whole[inner] if _BY_SLOT[name] == 0 else whole[:, inner]
        elif name in _SHARED:
            for own, _ in parts:
                own[name] = whole
        elif name.startswith(_DRAWN):
            divide = _divide_moments if name.endswith(_MOMENTS) else _divide_bits
            for (own, _), part in zip(parts, divide(whole, ranges), strict=True):
                own[name] = part
    order, starts = ranges.group(arrays["panes.owners"])
    owners = arrays["panes.owners"][order]
    for place, (own, _) in enumerate(parts):
        inner = slice(starts[place], starts[place + 1])
        own["panes.owners"] = (owners[inner] - edges[place]).astype(np.int32)
        for name in _OWNED:
            own[name] = arrays[name][order[inner]]
    if "sliding.keys" in arrays:
        for (own, _), lists in zip(parts, _divide_lists(arrays, ranges), strict=True):
            own.update(lists)
    for name, frame in frames.items():
        order, starts = ranges.group(frame["slot"].to_numpy())
        ordered = frame[order]
        for place, (_, rows) in enumerate(parts):
            begin, end = int(starts[place]), int(starts[place + 1])
            if begin < end:
                less = (pl.col("slot") - edges[place]).cast(pl.Int32)
                rows[name] = ordered.slice(begin, end - begin).with_columns(less)
    return parts


def join_windows(
    parts: Sequence[tuple[Mapping[str, NDArray[Any]], Mapping[str, pl.DataFrame]]],
    ranges: SlotRanges,
) -> tuple[Arrays, Frames]:
    """Join the states of shards, in this order; all must have closed the same windows."""
    if len(parts) == 1:
        return dict(parts[0][0]), dict(parts[0][1])
    joined: Arrays = {}
    for name in parts[0][0]:
        every = [arrays[name] for arrays, _ in parts]
        if name in _BY_SLOT:
            joined[name] = np.concatenate(every, axis=_BY_SLOT[name])
        elif name in _SHARED:
            joined[name] = every[0]
        elif name in _OWNED:
            joined[name] = np.concatenate(every)
        elif name == "panes.owners":
            moved = [own + edge for own, edge in zip(every, ranges.edges, strict=False)]
            joined[name] = np.concatenate(moved).astype(np.int32)
        elif name.startswith(_DRAWN):
            join = _join_moments if name.endswith(_MOMENTS) else _join_bits
            joined[name] = join(every, ranges)
    if "sliding.keys" in parts[0][0]:
        joined |= _join_lists([arrays for arrays, _ in parts], ranges)
    return joined, _join_frames([frames for _, frames in parts], ranges)


def _divide_moments(whole: NDArray[np.int64], ranges: SlotRanges) -> list[NDArray[np.int64]]:
    order, starts = ranges.group(whole[_SLOT])
    parts = []
    for place in range(len(ranges)):
        part = whole[:, order[starts[place] : starts[place + 1]]]
        part[_SLOT] -= ranges.edges[place]
        parts.append(part)
    return parts


def _join_moments(parts: Sequence[NDArray[np.int64]], ranges: SlotRanges) -> NDArray[np.int64]:
    moved = []
    for part, edge in zip(parts, ranges.edges, strict=False):
        own = part.copy()
        own[_SLOT] += edge
        moved.append(own)
    return np.concatenate(moved, axis=1)


def _divide_bits(whole: NDArray[np.uint64], ranges: SlotRanges) -> list[NDArray[np.uint64]]:
    flags = _unpack(whole, ranges.total)
    edges = ranges.edges
    return [_pack(flags[..., edges[n] : edges[n + 1]]) for n in range(len(ranges))]


def _join_bits(parts: Sequence[NDArray[np.uint64]], ranges: SlotRanges) -> NDArray[np.uint64]:
    sizes = np.diff(ranges.edges).tolist()
    flags = [_unpack(part, size) for part, size in zip(parts, sizes, strict=True)]
    return _pack(np.concatenate(flags, axis=-1))


def _unpack(words: NDArray[np.uint64], slots: int) -> NDArray[np.uint8]:
    octets = np.ascontiguousarray(words).astype("<u8", copy=False).view(np.uint8)
    return np.unpackbits(octets, axis=-1, bitorder="little", count=slots)


def _pack(flags: NDArray[np.uint8]) -> NDArray[np.uint64]:
    octets = np.packbits(flags, axis=-1, bitorder="little")
    whole = np.zeros((*octets.shape[:-1], -(-flags.shape[-1] // 64) * 8), np.uint8)
    whole[..., : octets.shape[-1]] = octets
    return whole.view("<u8").astype(np.uint64, copy=False)


def _divide_lists(arrays: Mapping[str, NDArray[Any]], ranges: SlotRanges) -> list[Arrays]:
    """Divide the events of earlier panes, whose keys are pane times slots plus slot."""
    keys, starts, times, masks = (arrays[name] for name in _LISTS)
    panes, slots = np.divmod(keys, max(1, ranges.total))
    order, begins = ranges.group(slots)
    parts = []
    for place in range(len(ranges)):
        chosen = order[begins[place] : begins[place + 1]]
        edge, size = ranges.edges[place], ranges.edges[place + 1] - ranges.edges[place]
        lengths = starts[chosen + 1] - starts[chosen]
        rows = _list_rows(starts[chosen], lengths)
        found = (
            panes[chosen] * size + slots[chosen] - edge,
            np.concatenate([[0], np.cumsum(lengths)]),
            times[rows],
            masks[rows],
        )
        parts.append(dict(zip(_LISTS, found, strict=True)))
    return parts


def _join_lists(parts: Sequence[Mapping[str, NDArray[Any]]], ranges: SlotRanges) -> Arrays:
    keys, lengths = [], []
    for place, own in enumerate(parts):
        edge, size = ranges.edges[place], ranges.edges[place + 1] - ranges.edges[place]
        panes, slots = np.divmod(own["sliding.keys"], max(1, size))
        keys.append(panes * ranges.total + slots + edge)
        lengths.append(np.diff(own["sliding.starts"]))
    every, sizes = np.concatenate(keys), np.concatenate(lengths)
    order = np.argsort(every)
    rows = _list_rows((np.cumsum(sizes) - sizes)[order], sizes[order])
    found = (
        every[order],
        np.concatenate([[0], np.cumsum(sizes[order])]),
        np.concatenate([own["sliding.times"] for own in parts])[rows],
        np.concatenate([own["sliding.masks"] for own in parts])[rows],
    )
    return dict(zip(_LISTS, found, strict=True))


def _list_rows(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers `start, start + 1, ...` of all lists, one after the other."""
    begins = np.cumsum(lengths) - lengths
    return np.repeat(starts - begins, lengths) + np.arange(int(lengths.sum()))


def _join_frames(parts: Sequence[Mapping[str, pl.DataFrame]], ranges: SlotRanges) -> Frames:
    """Join rows; their numbers, which break ties between a subject's rows, become distinct."""
    found: dict[str, list[pl.DataFrame]] = {}
    used = 0
    for place, frames in enumerate(parts):
        own = [frame["row"].to_numpy() for frame in frames.values()]
        known, numbers = np.unique(np.concatenate([[], *own]), return_inverse=True)
        begin = 0
        for name, frame in frames.items():
            rows = used + numbers[begin : begin + len(frame)]
            begin += len(frame)
            found.setdefault(name, []).append(
                frame.with_columns(
                    (pl.col("slot") + int(ranges.edges[place])).cast(pl.Int32),
                    pl.Series("row", rows.astype(np.int64)),
                )
            )
        used += len(known)
    return {name: pl.concat(frames) for name, frames in found.items()}
