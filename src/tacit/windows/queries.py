"""Match queries on closed windows: the true bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tacit.patterns.booleans import scatter, to_columns
from tacit.patterns.matcher import Matcher
from tacit.patterns.relational import Relational
from tacit.patterns.tree import Pattern
from tacit.windows.panes import ClosedPanes


class Queries:
    """Patterns over event types, compiled for evaluation on many windows at once."""

    def __init__(
        self,
        patterns: Sequence[Pattern],
        types: Sequence[str],
        streams: Mapping[str, str],
        *,
        walk: bool = True,
    ) -> None:
        self.types = types
        self.matcher = Matcher(patterns, types)
        self.automaton = self.matcher.automaton if walk else None
        """The automaton that is advanced as tuples arrive; None if tuples must be sorted first."""
        self.conditions = [
            Relational(pattern, types, streams) for pattern in self.matcher.conditional
        ]

    @property
    def attributes(self) -> dict[str, tuple[str, ...]]:
        """For each stream, the attributes that conditions compare."""
        found: dict[str, dict[str, None]] = {}
        for condition in self.conditions:
            for stream, columns in condition.attributes.items():
                found.setdefault(stream, {}).update(dict.fromkeys(columns))
        return {stream: tuple(columns) for stream, columns in found.items()}

    @property
    def compared_types(self) -> NDArray[np.uint64]:
        """The event types whose attributes conditions compare, as mask words."""
        words = np.zeros(len(self.matcher.ordered_types), dtype=np.uint64)
        for condition in self.conditions:
            for name in condition.event_types:
                word, bit = divmod(self.types.index(name), 64)
                words[word] |= np.uint64(1 << bit)
        return words

    def match(self, closed: ClosedPanes, rows: Mapping[str, pl.DataFrame]) -> NDArray[np.uint64]:
        """Return `bits[window][query][word]`, 64 subjects per word."""
        windows, slots, _ = closed.words.shape
        if self.matcher.uses_presence:
            columns = [to_columns(closed.words, len(self.types))]
        else:
            columns = [np.zeros((windows, len(self.types), -(-slots // 64)), np.uint64)]
        if closed.states is not None:
            columns.append(self._read_states(closed, closed.states))
        elif len(self.matcher.ordered_when_empty):
            found = self.matcher.match_ordered(closed.lists)
            default = self.matcher.ordered_when_empty
            columns.append(scatter(closed.keys, found, default, windows, slots))
        columns.extend(_column(condition, rows, windows, slots) for condition in self.conditions)
        return self.matcher.combine(np.concatenate(columns, axis=1))

    def _read_states(self, closed: ClosedPanes, states: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return the columns of ordered sub-patterns, from the automaton where it is reliable."""
        assert self.automaton is not None
        final = self.automaton.final
        if len(closed.keys):
            found = self.matcher.match_ordered(closed.lists).astype(np.uint64)
            states.reshape(-1)[closed.keys] = (found << final.astype(np.uint64)).sum(axis=1)
        return to_columns(states[:, :, np.newaxis], 64)[:, final]


def _column(
    condition: Relational, rows: Mapping[str, pl.DataFrame], windows: int, slots: int
) -> NDArray[np.uint64]:
    """Return the answers of one pattern with conditions as a bit column."""
    width = -(-slots // 64) * 64
    flags = np.full(windows * slots, condition.when_empty)
    for frame in rows.values():
        flags[frame["bucket"].to_numpy()] = False
    if rows:
        flags[condition.detect(rows)] = True
    padded = np.zeros((windows, width), dtype=np.bool_)
    padded[:, :slots] = flags.reshape(windows, slots)
    packed = np.packbits(padded, axis=1, bitorder="little")
    return packed.view("<u8").astype(np.uint64, copy=False)[:, np.newaxis, :]
