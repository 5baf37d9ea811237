"""The share of limits that shards keep for counts whose spending follows from released counts."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from tacit.ledger.accounts import Accounts
from tacit.patterns.tree import elements
from tacit.pipeline.versions import SpecVersion
from tacit.privacy.mechanisms.counts import price_count
from tacit.privacy.prices import NANO
from tacit.privacy.sequences import to_local


class CountShare:
    """What counts may spend of a limit in one horizon, at most.

    Shards answer windows before the collector has drawn the counts of earlier ones, so they cannot
    know what counts have spent. They leave them the most that they may spend, which follows from
    the plan and the time. So answers and counts never exceed a limit together.
    """

    def __init__(self, version: SpecVersion) -> None:
        spec, plan = version.spec, version.plan
        spending = {
            name: memory.spending
            for name, memory in plan.count_memories.items()
            if memory.spending is not None
        }
        self.paced = bool(spending)
        """Whether the spending on counts follows from released counts."""
        self._pane, self._zone = spec.windows.pane, spec.zone
        self._prices = [
            (
                frozenset(elements(pattern)),
                int(spending[name].epsilon * NANO)
                if name in spending
                else price_count(plan.counts.get(name, Fraction(0))),
            )
            for name, pattern in spec.count_patterns.items()
        ]
        """The elements of each count, and what it costs a window, in nano-epsilon."""
        self._horizons = {one.horizon for one in spending.values()}
        self._longest = max((one.longest for one in spending.values()), default=1)
        """The most windows that one draw is for."""

    def find_kept(self, accounts: Accounts, start: int, first: int) -> NDArray[np.int64]:
        """Return `[account][subject]`: the share of the horizon of a window, in nano-epsilon.

        `start` is when the window starts, and `first` when the first window of the job does.
        """
        found = np.zeros((len(accounts.private), len(accounts.ids)), np.int64)
        for number, account in enumerate(accounts.private):
            each = sum(price for types, price in self._prices if types & account.elements)
            if account.limit is None or not each:
                continue
            for local, own, _ in accounts.find_left(account, start):
                windows = self._count_windows(local, start, first, account.horizon)
                kept = min(each * windows, account.limit)
                found[number, slice(None) if own is None else own] = kept
        return found

    def _count_windows(self, local: int, start: int, first: int, horizon: int) -> int:
        """Return for how many windows counts may be drawn in the horizon of a window, at most.

        `local` is the window's start in the time of the horizon.
        """
        passed = local % horizon
        before = min(passed, start - first) // self._pane
        left = -(-(horizon - passed) // self._pane)
        around = np.array([start - horizon, start, start + horizon])
        offsets = to_local(around, self._zone) - around
        # If clocks change, a horizon can be longer by this.
        changed = -(-int(offsets.max() - offsets.min()) // self._pane)
        # A draw for several windows ends with the horizon of its spending, in the time of counts.
        within = start + offsets[1] == local and all(horizon % own == 0 for own in self._horizons)
        return before + left + changed + (0 if within else self._longest - 1)
