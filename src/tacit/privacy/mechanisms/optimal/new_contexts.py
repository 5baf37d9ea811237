"""Design the channels of contexts that are new in a run, within a budget of work.

Within the budget, a new context is designed when it first occurs. Beyond it, windows are served by
the book, and contexts that occur again are designed in the background, to be used from the next
window on that has new contexts. The budget grows with the number of windows, not with time. So
which channels are used depends on public events only, and not on how fast the machine is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacit.privacy.keys import KeyTable
from tacit.privacy.mechanisms.optimal.blocks import ComponentChannels, Context
from tacit.privacy.prior import Bits

Words = NDArray[np.uint64]

_FIRST: Final = 64.0
"""The number of contexts that are designed at the beginning of a run."""
_PER_WINDOW: Final = 1 / 256
"""The number of contexts that may be designed for each subject and window."""
_BEHIND: Final = 8
"""The largest number of contexts that are designed in the background at a time."""
_PARTS: Final = 50
"""All these numbers are for components of at most so many parts; more parts are more work."""
_REMEMBERED: Final = 1 << 16
"""The number of contexts without channels of their own that are remembered."""


class DesignedContexts(NamedTuple):
    """Contexts with their channels, and the packed signals that they are for."""

    keys: Words
    contexts: list[Context]


class NewContexts:
    """Decides which new contexts get channels of their own, and designs them."""

    def __init__(self, channels: ComponentChannels) -> None:
        self._channels = channels
        self._signals = len(channels.component.signals)
        self._cost = -(-len(channels.component.parts) // _PARTS)
        self._spent = 0
        self._passed = 0
        self._forget()
        self._behind: _BackgroundDesign | None = None

    def _forget(self) -> None:
        self._met = KeyTable(max(1, -(-self._signals // 64)))
        self._times = np.empty(0, np.int64)
        """`[context met]`: the number of windows that it occurred in; 0 if it stays in the book."""

    def pass_windows(self, rows: int) -> None:
        """Count windows and subjects for which nothing is new, or that were dealt with."""
        self._passed += rows

    def collect(self) -> DesignedContexts | None:
        """Wait for the contexts that are being designed in the background, and return them."""
        if self._behind is None:
            return None
        behind, self._behind = self._behind, None
        behind.thread.join()
        if behind.error is not None:
            raise behind.error
        # In a process that was forked meanwhile, the thread does not exist.
        return _select_small(behind.keys[: len(behind.contexts)], behind.contexts)

    def design(self, signals: Words, subjects: int) -> DesignedContexts | None:
        """Design some of the contexts that are new in a window; others follow in the background.

        `subjects` are those of this window and all windows before it that were not passed yet.
        """
        keys = _rank_rows(signals)
        open_keys = keys[self._meet(keys)]
        allowed = _FIRST + _PER_WINDOW * (self._passed + subjects) - self._spent
        now = open_keys[: max(0, int(allowed / self._cost))]
        self._spent += self._cost * len(now)
        made = [self._design(key) for key in now]
        self._settle(now)
        later = open_keys[len(now) :]
        again = later[self._times[self._met.look_up(later)] > 1][: -(-_BEHIND // self._cost)]
        if len(again):
            self._settle(again)
            self._start(again)
        return _select_small(now, made)

    def _meet(self, keys: Words) -> Bits:
        """Count these contexts once more; return which of them may get channels of their own."""
        if len(self._met) > _REMEMBERED:
            self._forget()
        numbers = self._met.look_up(keys)
        new = numbers < 0
        self._met.add(keys[new])
        self._times = np.append(self._times, np.ones(int(new.sum()), np.int64))
        self._times[numbers[~new]] += self._times[numbers[~new]] > 0
        return np.asarray(new | (self._times[numbers] > 0))

    def _settle(self, keys: Words) -> None:
        """Do not consider these contexts again."""
        self._times[self._met.look_up(keys)] = 0

    def _start(self, keys: Words) -> None:
        self._behind = _BackgroundDesign(keys, self._design)

    def _design(self, key: Words) -> Context | None:
        octets = key.astype("<u8").view(np.uint8)
        signals = np.unpackbits(octets, bitorder="little", count=self._signals)
        return self._channels.context(signals.astype(np.bool_))


class _BackgroundDesign:
    """Designs contexts in a thread."""

    def __init__(self, keys: Words, design: Callable[[Words], Context | None]) -> None:
        self.keys = keys
        self.contexts: list[Context | None] = []
        self.error: Exception | None = None
        self._design = design
        self.thread = threading.Thread(target=self._work, name="tacit-contexts", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        try:
            for key in self.keys:
                self.contexts.append(self._design(key))
        except Exception as error:
            self.error = error


def _select_small(keys: Words, contexts: list[Context | None]) -> DesignedContexts | None:
    """Leave out contexts that have too many classes for channels of their own."""
    designed = [context for context in contexts if context is not None]
    if not designed:
        return None
    return DesignedContexts(keys[[context is not None for context in contexts]], designed)


def _rank_rows(signals: Words) -> Words:
    """Return the distinct rows, most frequent first."""
    flat = np.ascontiguousarray(signals).view(f"V{8 * signals.shape[1]}").ravel()
    _, firsts, counts = np.unique(flat, return_index=True, return_counts=True)
    return np.asarray(signals[firsts[np.argsort(-counts, kind="stable")]])
