"""Reading queries literally from noisy presence: a noisy window is a window like any other.

Public events stay as they are. Of each private event type that comes out present there is one
event, real or not, at a time that is drawn for it. It has no attributes, so a condition that
looks at a private element's attributes counts as met.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tacit.patterns.booleans import to_columns
from tacit.patterns.lists import EventLists
from tacit.patterns.ternary import without_conditions
from tacit.patterns.tree import Pattern
from tacit.pipeline.flow import compiled_queries
from tacit.privacy.noise import Noise
from tacit.spec.specification import Specification
from tacit.windows.panes import Closed


class Reading:
    """Queries to be read from noisy windows of subjects with one policy."""

    def __init__(
        self, spec: Specification, patterns: Sequence[Pattern], private: AbstractSet[str]
    ) -> None:
        looser = [without_conditions(pattern, private) for pattern in patterns]
        self.queries = compiled_queries(spec, looser, walk=False)
        self.private = tuple(sorted(private))
        self._numbers = [spec.types[name] for name in self.private]
        self._types = len(spec.types)
        self._streams = [spec.events[name].stream for name in self.private]
        self._size = spec.windows.size

    def answer(
        self,
        closed: Closed,
        rows: Mapping[str, pl.DataFrame],
        noisy: NDArray[np.uint64],
        noise: Noise,
    ) -> NDArray[np.uint64]:
        """`bits[window][query][word]`, from `noisy[window][private type][word]`."""
        slots = closed.words.shape[1]
        columns = to_columns(closed.words, self._types)
        columns[:, self._numbers] = noisy
        seen = replace(closed, words=to_columns(columns, slots), states=None)
        if self.queries.matcher.ordered_types.any():
            seen = replace(seen, **self._invented_lists(closed, noisy, noise))
        if self.queries.conditions:
            rows = self._invented_rows(closed, rows, noisy, noise)
        return self.queries.answer(seen, rows)

    def _invented_lists(
        self, closed: Closed, noisy: NDArray[np.uint64], noise: Noise
    ) -> dict[str, Any]:
        """Public events at their times, and those that are invented at theirs."""
        lists, width = closed.lists, closed.words.shape[2]
        slots = closed.words.shape[1]
        masks = lists.masks & ~self._private_mask(width)
        keys = [np.repeat(closed.keys, np.diff(lists.starts))]
        times, found = [lists.times], [masks]
        ordered = self.queries.matcher.ordered_types
        for place, number in enumerate(self._numbers):
            word, bit = divmod(number, 64)
            if not ordered[word] >> np.uint64(bit) & np.uint64(1):
                continue
            here = _places(noisy[:, place], slots)
            new = np.zeros((len(here), width), np.uint64)
            new[:, word] = np.uint64(1 << bit)
            keys.append(here)
            found.append(new)
            times.append(self._moments(closed, here, slots, noise))
        key, time = np.concatenate(keys), np.concatenate(times)
        order = np.lexsort((time, key))
        key = key[order]
        begins = np.flatnonzero(np.append(True, key[1:] != key[:-1])[: len(key)])
        return {
            "keys": key[begins],
            "lists": EventLists(
                np.append(begins, len(key)), time[order], np.concatenate(found)[order]
            ),
        }

    def _invented_rows(
        self,
        closed: Closed,
        rows: Mapping[str, pl.DataFrame],
        noisy: NDArray[np.uint64],
        noise: Noise,
    ) -> dict[str, pl.DataFrame]:
        """The same for tuples whose attributes are compared."""
        width, slots = closed.words.shape[2], closed.words.shape[1]
        hidden = self._private_mask(width)
        taken = [
            (pl.col(f"mask{word}") & ~pl.lit(hidden[word], pl.UInt64)) for word in range(width)
        ]
        seen = {stream: frame.with_columns(taken) for stream, frame in rows.items()}
        wanted = {name for condition in self.queries.conditions for name in condition.event_types}
        for place, (name, number) in enumerate(zip(self.private, self._numbers, strict=True)):
            if name not in wanted:
                continue
            here = _places(noisy[:, place], slots)
            word, bit = divmod(number, 64)
            masks = {
                f"mask{n}": np.full(len(here), (n == word) << bit, np.uint64) for n in range(width)
            }
            before = max((int(f["row"].max() or 0) for f in seen.values()), default=-1)  # type: ignore[arg-type]
            frame = pl.DataFrame(
                {
                    "slot": (here % slots).astype(np.int32),
                    "row": np.arange(before + 1, before + 1 + len(here)),
                    "time": self._moments(closed, here, slots, noise),
                    **masks,
                    "bucket": here,
                }
            )
            stream = self._streams[place]
            # What an invented event has no value for is null.
            known = [seen[stream]] if stream in seen else []
            seen[stream] = pl.concat([*known, frame], how="diagonal")
        return seen

    def _moments(
        self, closed: Closed, here: NDArray[np.int64], slots: int, noise: Noise
    ) -> NDArray[np.int64]:
        begin = (closed.first + here // slots) * self._size
        return begin + noise.moments(len(here), self._size)

    def _private_mask(self, width: int) -> NDArray[np.uint64]:
        mask = np.zeros(width, np.uint64)
        for number in self._numbers:
            mask[number // 64] |= np.uint64(1 << number % 64)
        return mask


def _places(column: NDArray[np.uint64], slots: int) -> NDArray[np.int64]:
    """Where a bit column is set: the window's place times the number of slots, plus the slot."""
    octets = column.astype("<u8").view(np.uint8)
    bits = np.unpackbits(octets, axis=1, bitorder="little", count=slots)
    return np.flatnonzero(bits)
