"""Which queries are open in a window, for mechanisms that flip elements.

A query is open if its answer depends on private events, with all private types of the policy
unknown. This is decided once, from public events, for three purposes: a query that is not open is
answered by its decided value, an element that no open query depends on is not used, and only
elements that are used are charged.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacit.kernels import compiled
from tacit.patterns.booleans import GateGraph
from tacit.patterns.tree import Pattern
from tacit.privacy.affected_queries import AffectedQuery
from tacit.privacy.decoding import compile_table

Columns = NDArray[np.uint64]


class OpenQueries(NamedTuple):
    """The open queries of some windows, as bit columns: `[window][...][word]`."""

    opened: Columns
    """For each affected query, whether it is open."""
    true: Columns
    """For each affected query, whether it is true whatever private events do."""
    revealed: Columns
    """For each element, whether an open query depends on it."""


class Openness:
    """Decides which of the affected queries are open, from the bits of their signals."""

    def __init__(
        self,
        parts: Sequence[AffectedQuery],
        elements: Sequence[str],
        numbers: dict[Pattern, int],
    ) -> None:
        self._parts = len(parts)
        gates = GateGraph()
        columns: dict[Hashable, int] = dict(numbers.items())
        opened = [compile_table(gates, part.signals, part.decided < 0) for part in parts]
        true = [compile_table(gates, part.signals, part.decided == 1) for part in parts]
        revealed = [
            gates.any(
                [gate for gate, part in zip(opened, parts, strict=True) if name in part.elements]
            )
            for name in elements
        ]
        self._program = gates.program([*opened, *true, *revealed], columns)

    def decide(self, signals: Columns) -> OpenQueries:
        """Return what is open, given the bits of the signals."""
        found = self._program.run(signals)
        parts = self._parts
        return OpenQueries(found[:, :parts], found[:, parts : 2 * parts], found[:, 2 * parts :])


def reveal_panes(revealed: Columns, settled: Columns, panes: int, slots: int) -> NDArray[np.int64]:
    """Return `[window][element][slot]`: how many panes of a window are revealed for the first time.

    `revealed[window][element][word]` says whose elements the window uses; all of its panes are
    then revealed. `settled[pane][element][word]` says which panes were revealed before, or have
    nothing to reveal; it is updated. Window i has the panes from i on.
    """
    fresh = np.zeros((*revealed.shape[:2], slots), np.int64)
    _reveal(np.ascontiguousarray(revealed), settled, panes, fresh)
    return fresh


@compiled
def _reveal(
    revealed: NDArray[np.uint64],
    settled: NDArray[np.uint64],
    panes: int,
    fresh: NDArray[np.int64],
) -> None:
    windows, elements, words = revealed.shape
    slots = fresh.shape[2]
    one = np.uint64(1)
    for window in range(windows):
        for element in range(elements):
            for word in range(words):
                lanes = revealed[window, element, word]
                begin = 64 * word
                for pane in range(window, window + panes):
                    new = lanes & ~settled[pane, element, word]
                    settled[pane, element, word] |= lanes
                    if new != 0:
                        for bit in range(min(64, slots - begin)):
                            fresh[window, element, begin + bit] += np.int64(
                                (new >> np.uint64(bit)) & one
                            )
