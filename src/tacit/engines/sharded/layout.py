"""The assignment of subjects to shards, by a hash of the name; the same on every machine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tacit.events.columns import read_text
from tacit.events.subjects import Subjects
from tacit.kernels import compiled


@dataclass(frozen=True)
class Layout:
    """A registry divided into a fixed number of shards."""

    subjects: Subjects
    shards: int

    @cached_property
    def shard(self) -> NDArray[np.int32]:
        """The number of each subject's shard, by slot."""
        text, ends = read_text(self.subjects.names)
        return _hashed(text, ends, self.shards)

    @cached_property
    def place(self) -> NDArray[np.int32]:
        """Each subject's slot within its shard."""
        return _places(self.shard, self.shards)

    @cached_property
    def nonempty(self) -> tuple[int, ...]:
        """The shards that have any subjects, in order."""
        return tuple(np.unique(self.shard).tolist())

    @cached_property
    def _by_shard(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """All slots, grouped by shard, and where each shard's slots start."""
        slots = np.argsort(self.shard, kind="stable")
        return slots, np.searchsorted(self.shard[slots], np.arange(self.shards + 1))

    def members(self, shard: int) -> NDArray[np.int64]:
        """Return the slots of a shard's subjects, in the order of their places."""
        slots, starts = self._by_shard
        return slots[starts[shard] : starts[shard + 1]]

    @cached_property
    def _joined(self) -> dict[tuple[int, ...], NDArray[np.int64]]:
        return {}

    def members_of(self, shards: tuple[int, ...]) -> NDArray[np.int64]:
        """Return the slots of the subjects of several shards, one shard after the other."""
        if shards not in self._joined:
            self._joined[shards] = np.concatenate([self.members(shard) for shard in shards])
        return self._joined[shards]


@compiled
def _hashed(text: NDArray[np.uint8], ends: NDArray[np.int64], shards: int) -> NDArray[np.int32]:
    """Hash each name with FNV-1a, and mix the bits: hashes of short names differ too little."""
    found = np.empty(len(ends) - 1, np.int32)
    for i in range(len(found)):
        key = np.uint64(14695981039346656037)
        for at in range(ends[i], ends[i + 1]):
            key = (key ^ np.uint64(text[at])) * np.uint64(1099511628211)
        key = (key ^ (key >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
        key ^= key >> np.uint64(33)
        found[i] = key % np.uint64(shards)
    return found


@compiled
def _places(shard: NDArray[np.int32], shards: int) -> NDArray[np.int32]:
    counts = np.zeros(shards, np.int32)
    places = np.empty(len(shard), np.int32)
    for i in range(len(shard)):
        places[i] = counts[shard[i]]
        counts[shard[i]] += 1
    return places
