"""Evaluate queries literally on noisy windows.

Public events stay as they are. Each private event type that is present after noise gets one
synthetic event at a random time, whether or not it really occurred; with sliding windows, one in
each pane. Synthetic events have no attributes, so a condition on a private element's attributes
counts as met.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tacit.patterns.booleans import to_columns
from tacit.patterns.event_lists import EventLists
from tacit.patterns.ternary import drop_conditions
from tacit.patterns.tree import Pattern
from tacit.privacy.mechanisms.pane_noise import find_set_bits, place_in_windows
from tacit.privacy.noise import Noise
from tacit.spec.queries import compile_queries
from tacit.spec.specification import Specification
from tacit.windows.panes import ClosedPanes
from tacit.windows.sliding import combine_panes


class _SyntheticEvents(NamedTuple):
    """The synthetic events of one private type: their places and times."""

    stream: str
    word: int
    bit: np.uint64
    here: NDArray[np.int64]
    """The window's index times the number of slots, plus the slot."""
    times: NDArray[np.int64]


class NoisyWindows:
    """Evaluates queries on noisy windows of the subjects of one policy."""

    def __init__(
        self, spec: Specification, patterns: Sequence[Pattern], private: AbstractSet[str]
    ) -> None:
        looser = [drop_conditions(pattern, private) for pattern in patterns]
        self.queries = compile_queries(spec, looser, walk=False)
        self.private = tuple(sorted(private))
        self._numbers = [spec.types[name] for name in self.private]
        self._types = len(spec.types)
        self._streams = [spec.events[name].stream for name in self.private]
        self._size = spec.windows.size

    def answer(
        self,
        closed: ClosedPanes,
        rows: Mapping[str, pl.DataFrame],
        noisy: NDArray[np.uint64],
        noise: Noise,
    ) -> NDArray[np.uint64]:
        """Return `bits[window][query][word]`, from `noisy[window][private type][word]`."""
        return self._read(closed, rows, noisy, list(self._draw_synthetic(closed, noisy, noise)))

    def answer_panes(
        self,
        closed: ClosedPanes,
        rows: Mapping[str, pl.DataFrame],
        panes: NDArray[np.uint64],
        moments: NDArray[np.int64],
    ) -> NDArray[np.uint64]:
        """Do the same for sliding windows, from `panes[pane][private type][word]`.

        Each type has one event in every pane in which it is present, at the time that was drawn
        for that pane.
        """
        assert closed.panes is not None
        synthetic = [
            self._event(place, *place_in_windows(closed, moments, place)) for place in self.timed
        ]
        return self._read(closed, rows, combine_panes(panes, closed.panes.count), synthetic)

    def _read(
        self,
        closed: ClosedPanes,
        rows: Mapping[str, pl.DataFrame],
        noisy: NDArray[np.uint64],
        synthetic: Sequence[_SyntheticEvents],
    ) -> NDArray[np.uint64]:
        slots = closed.words.shape[1]
        columns = to_columns(closed.words, self._types)
        columns[:, self._numbers] = noisy
        seen = replace(closed, words=to_columns(columns, slots), states=None)
        ordered, compared = self.queries.matcher.ordered_types, self.queries.compared_types
        if ordered.any():
            timed = [event for event in synthetic if ordered[event.word] & event.bit]
            seen = replace(seen, **self._lists(closed, timed))
        if self.queries.conditions:
            timed = [event for event in synthetic if compared[event.word] & event.bit]
            rows = self._rows(closed, rows, timed)
        return self.queries.match(seen, rows)

    def _draw_synthetic(
        self, closed: ClosedPanes, noisy: NDArray[np.uint64], noise: Noise
    ) -> Iterator[_SyntheticEvents]:
        """Draw the events of private types whose times matter; all queries use the same."""
        slots = closed.words.shape[1]
        for place in self.timed:
            here = find_set_bits(noisy[:, place], slots)
            begin = (closed.first + here // slots) * self._size
            yield self._event(place, here, begin + noise.draw_times(len(here), self._size))

    @property
    def timed(self) -> list[int]:
        """The private types whose times matter: their places among all private types."""
        looked = self.queries.matcher.ordered_types | self.queries.compared_types
        return [
            place
            for place, number in enumerate(self._numbers)
            if looked[number // 64] >> np.uint64(number % 64) & np.uint64(1)
        ]

    def _event(
        self, place: int, here: NDArray[np.int64], times: NDArray[np.int64]
    ) -> _SyntheticEvents:
        word, bit = divmod(self._numbers[place], 64)
        return _SyntheticEvents(self._streams[place], word, np.uint64(1 << bit), here, times)

    def _lists(self, closed: ClosedPanes, synthetic: Sequence[_SyntheticEvents]) -> dict[str, Any]:
        """Return the event lists with public events and synthetic private ones."""
        lists, width = closed.lists, closed.words.shape[2]
        keys = [np.repeat(closed.keys, np.diff(lists.starts))]
        times, masks = [lists.times], [lists.masks & ~self._private_mask(width)]
        for event in synthetic:
            new = np.zeros((len(event.here), width), np.uint64)
            new[:, event.word] = event.bit
            keys.append(event.here)
            masks.append(new)
            times.append(event.times)
        key, time = np.concatenate(keys), np.concatenate(times)
        order = np.lexsort((time, key))
        key = key[order]
        begins = np.flatnonzero(np.append(True, key[1:] != key[:-1])[: len(key)])
        return {
            "keys": key[begins],
            "lists": EventLists(
                np.append(begins, len(key)), time[order], np.concatenate(masks)[order]
            ),
        }

    def _rows(
        self,
        closed: ClosedPanes,
        rows: Mapping[str, pl.DataFrame],
        synthetic: Sequence[_SyntheticEvents],
    ) -> dict[str, pl.DataFrame]:
        """Do the same for tuples whose attributes are compared."""
        slots, width = closed.words.shape[1:]
        hidden = self._private_mask(width)
        taken = [
            (pl.col(f"mask{word}") & ~pl.lit(hidden[word], pl.UInt64)) for word in range(width)
        ]
        left = pl.any_horizontal(pl.col(f"mask{word}") != 0 for word in range(width))
        seen = {stream: frame.with_columns(taken).filter(left) for stream, frame in rows.items()}
        before = max((int(f["row"].max() or 0) for f in rows.values()), default=0)  # type: ignore[arg-type]
        for event in synthetic:
            count = len(event.here)
            masks = np.zeros((width, count), np.uint64)
            masks[event.word] = event.bit
            frame = pl.DataFrame(
                {
                    "slot": (event.here % slots).astype(np.int32),
                    "row": np.arange(before + 1, before + 1 + count),
                    "time": event.times,
                    **{f"mask{word}": masks[word] for word in range(width)},
                    "bucket": event.here,
                }
            )
            before += count
            # A synthetic event has null attributes.
            known = [seen[event.stream]] if event.stream in seen else []
            seen[event.stream] = pl.concat([*known, frame], how="diagonal")
        return seen

    def _private_mask(self, width: int) -> NDArray[np.uint64]:
        mask = np.zeros(width, np.uint64)
        for number in self._numbers:
            mask[number // 64] |= np.uint64(1 << number % 64)
        return mask
