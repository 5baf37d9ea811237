"""Noise for sliding windows: drawn once per pane, and shared by all windows with that pane.

The result is a noisy stream: the presence of each private element in each pane, and a time inside
the pane for each that is present. Its windows are evaluated like any others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tacit.errors import StateError
from tacit.patterns.booleans import to_columns
from tacit.privacy.channels import Channel
from tacit.privacy.mechanisms.mechanism import Columns, pack_slots
from tacit.privacy.noise import Noise
from tacit.privacy.openness import reveal_panes
from tacit.windows.panes import ClosedPanes, PaneSequence

_PLACE, _PANE, _SLOT, _TIME = range(4)
_NO_MOMENTS: Final = np.empty((4, 0), np.int64)
_ALL: Final = ~np.uint64(0)


@dataclass(frozen=True, slots=True)
class PaneNoise:
    """Flips the presence of private elements pane by pane, for the subjects of one policy.

    Guarantee: pattern-level epsilon-DP per subject, pattern and occurrence.
    Neighbours: streams that differ by one occurrence: one event of each of the pattern's
    elements, all of them inside one window.
    Why: such an event is in one pane, and its element's bit there is flipped once. The draw is
    stored until no window contains the pane any more, so it is never repeated.
    Spends: the pattern's epsilon for each pane that a window reveals for the first time. A window
    reveals its panes if a query that depends on the pattern is open in it.
    """

    name: str
    """The key of its draws among those stored with the panes."""
    numbers: tuple[int, ...]
    """Each element's number among the event types."""
    channels: Sequence[Channel]
    types: int
    size: int
    """The length of a pane."""
    noise: Noise

    def flip(
        self, closed: ClosedPanes, own: NDArray[np.bool_] | None, revealed: Columns
    ) -> Columns:
        """Return `[pane][element][word]`, the noisy panes of these windows.

        Panes are empty for subjects that are not `own`. So if a subject's limit was reached, the
        pane stays empty, and later windows reveal nothing about it either.
        `revealed[window][element][word]` says whose panes the answers of a window may depend on.
        """
        paned = _require_panes(closed)
        slots = paned.words.shape[1]
        new = np.ascontiguousarray(paned.words[paned.count - 1 :])
        true = to_columns(new, self.types)[:, list(self.numbers)]
        lanes = None
        if own is not None:
            lanes = np.ascontiguousarray(np.broadcast_to(pack_slots(own), true[:, 0].shape))
        drawn = np.empty_like(true)
        for number, channel in enumerate(self.channels):
            drawn[:, number] = self.noise.flip(
                np.ascontiguousarray(true[:, number]), channel, lanes
            )
        if lanes is not None:
            drawn &= lanes[:, np.newaxis]
        panes = np.concatenate([self._earlier(paned, slots), drawn])
        paned.after[f"{self.name}.bits"] = panes[paned.windows :].copy()
        settled = self._settled(paned)
        if lanes is not None:
            revealed = revealed & lanes[:, np.newaxis]
            settled[paned.count - 1 :] |= ~lanes[:, np.newaxis]  # an empty pane reveals nothing
        reveal_panes(revealed & paned.registered, settled, paned.count, slots)
        paned.after[f"{self.name}.settled"] = settled[paned.windows :].copy()
        return panes

    def count_fresh(self, closed: ClosedPanes, revealed: Columns) -> NDArray[np.int64]:
        """Return `[window][element][slot]`: how many panes each window reveals first."""
        paned = _require_panes(closed)
        return reveal_panes(
            revealed & paned.registered, self._settled(paned), paned.count, paned.words.shape[1]
        )

    def _settled(self, paned: PaneSequence) -> Columns:
        """Return `[pane][element][word]`: the panes that were revealed, or have nothing to reveal.

        Panes before the schedule have nothing to reveal. Panes that an earlier version of Tacit
        has stored were charged when they were drawn.
        """
        words = -(-paned.words.shape[1] // 64)
        settled = np.zeros((len(paned.words), len(self.numbers), words), np.uint64)
        known = paned.before.get(f"{self.name}.settled")
        if known is None:
            settled[: paned.count - 1] = _ALL
        elif known.shape[:2] != (paned.count - 1, len(self.numbers)):
            raise StateError("the saved state of earlier panes does not fit the plan")
        else:
            settled[: paned.count - 1, :, : known.shape[2]] = known
        return settled

    def _earlier(self, paned: PaneSequence, slots: int) -> Columns:
        """Return the stored draws of earlier panes; panes before the schedule are empty."""
        empty = np.zeros((paned.count - 1, len(self.numbers), -(-slots // 64)), np.uint64)
        known = paned.before.get(f"{self.name}.bits")
        if known is not None:
            if known.shape[:2] != empty.shape[:2]:
                raise StateError("the saved draws of earlier panes do not fit the plan")
            empty[:, :, : known.shape[2]] = known
        elif paned.before:
            raise StateError("the saved draws of earlier panes are missing")
        return empty

    def draw_times(
        self, closed: ClosedPanes, panes: Columns, timed: Sequence[int]
    ) -> NDArray[np.int64]:
        """Draw the times of the columns that are present, in the format of `draw_pane_times`.

        All windows use the same times.
        """
        paned = _require_panes(closed)
        slots, earlier = paned.words.shape[1], paned.count - 1
        new = draw_pane_times(
            panes[earlier:], timed, paned.first + earlier, slots, self.size, self.noise
        )
        known = paned.before.get(f"{self.name}.moments", _NO_MOMENTS)
        table = np.concatenate([known, new], axis=1)
        paned.after[f"{self.name}.moments"] = table[:, table[_PANE] >= paned.first + paned.windows]
        return table


def draw_pane_times(
    panes: Columns, timed: Sequence[int], first: int, slots: int, size: int, noise: Noise
) -> NDArray[np.int64]:
    """Draw a time in its pane for each set bit of some columns.

    The result has four rows: column, pane, slot and time.
    """
    found = [_NO_MOMENTS]
    for number in timed:
        pane, slot = np.divmod(find_set_bits(panes[:, number], slots), slots)
        pane += first
        times = pane * size + noise.draw_times(len(pane), size)
        found.append(np.stack([np.full(len(pane), number), pane, slot, times]))
    return np.concatenate(found, axis=1)


def place_in_windows(
    closed: ClosedPanes, table: NDArray[np.int64], number: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the places (window index times slots, plus slot) and times of a column's events."""
    paned = _require_panes(closed)
    slots = paned.words.shape[1]
    own = table[:, table[_PLACE] == number]
    here, times = [], []
    for back in range(paned.count):
        window = own[_PANE] - paned.first - back
        inside = (window >= 0) & (window < paned.windows)
        here.append(window[inside] * slots + own[_SLOT, inside])
        times.append(own[_TIME, inside])
    return np.concatenate(here), np.concatenate(times)


def find_set_bits(column: Columns, slots: int) -> NDArray[np.int64]:
    """Return where a bit column is set: the window's index times the slots, plus the slot."""
    octets = column.astype("<u8").view(np.uint8)
    bits = np.unpackbits(octets, axis=1, bitorder="little", count=slots)
    return np.flatnonzero(bits)


def _require_panes(closed: ClosedPanes) -> PaneSequence:
    assert closed.panes is not None, "these are not sliding windows"
    return closed.panes
