"""Who pays for a window, where limits are paced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tacit.ledger.accounts import Accounts
from tacit.patterns.tree import elements
from tacit.privacy.count_memory import CountMemory
from tacit.privacy.pacing import Pacing, find_chances
from tacit.privacy.prices import NANO
from tacit.privacy.randomness import RandomSource
from tacit.spec.specification import Specification

Bits = NDArray[np.bool_]


class Pacer:
    """Decides for which subjects a window is worth its price.

    Nothing but public events, what was released before, and random numbers that are independent of
    all events, decides this.
    """

    def __init__(
        self, spec: Specification, pacings: Sequence[Pacing | None], source: RandomSource
    ) -> None:
        self._paced = frozenset(
            one.name for one in spec.private if one.limit is not None and one.spend == "paced"
        )
        self._pacings: Mapping[int, Pacing] = {
            number: pacing for number, pacing in enumerate(pacings) if pacing is not None
        }
        self._source = source

    @property
    def active(self) -> bool:
        """Whether any limit is paced."""
        return bool(self._paced and self._pacings)

    def find_declined(
        self,
        accounts: Accounts,
        start: int,
        prices: NDArray[np.int64],
        gains: NDArray[np.float64],
        policies: NDArray[np.int32],
        kept: NDArray[np.int64] | None = None,
    ) -> Bits:
        """Return the subjects that do not pay for a window, in the order of the accounts.

        `prices` are `[account][subject]`; `gains` and `policies` are by subject. `kept` is what is
        kept for counts, as `prices`.
        """
        chances = np.ones(len(policies))
        paced = [n for n, one in enumerate(accounts.private) if self._is_paced(one.name, one.limit)]
        for policy, pacing in self._pacings.items():
            members = policies == policy
            for number in paced:
                account = accounts.private[number]
                own = members & account.mask
                if own.any():
                    total = prices[paced].sum(axis=0)
                    for local, here, left in accounts.find_left(account, start):
                        chosen = np.ones(len(own), np.bool_) if here is None else here
                        found = find_chances(
                            pacing,
                            account.name,
                            left if kept is None else np.maximum(left - kept[number][chosen], 0),
                            gains[chosen],
                            total[chosen],
                            local,
                            account.horizon,
                        )
                        # One random number decides for all patterns that a window costs
                        # something: it is paid for whole.
                        least = np.minimum(chances[chosen], found)
                        paying = own[chosen] & (prices[number][chosen] > 0)
                        chances[chosen] = np.where(paying, least, chances[chosen])
        drawn = self._source.draw_octets(2 * len(chances)).view(np.uint16)
        return np.asarray(drawn >= chances * 65536)

    def _is_paced(self, name: str, limit: int | None) -> bool:
        return limit is not None and name in self._paced


class CountReserve:
    """What counts will spend until horizons end, so that answers leave it to them.

    It follows from the plan and the time.
    """

    def __init__(self, spec: Specification, memories: Mapping[str, CountMemory]) -> None:
        self._pane = spec.windows.pane
        self._paced = [
            (frozenset(elements(spec.count_patterns[name])), int(memory.spending.epsilon * NANO))
            for name, memory in memories.items()
            if memory.spending is not None
        ]

    def find_reserved(self, accounts: Accounts, start: int) -> NDArray[np.int64]:
        """Return `[account][subject]`: what later windows will need, in nano-epsilon."""
        found = np.zeros((len(accounts.private), len(accounts.ids)), np.int64)
        for number, account in enumerate(accounts.private):
            each = sum(price for types, price in self._paced if types & account.elements)
            if account.limit is None or not each:
                continue
            for local, own, _ in accounts.find_left(account, start):
                later = (account.horizon - local % account.horizon) // self._pane - 1
                kept = min(each * max(0, later), account.limit)
                found[number, slice(None) if own is None else own] = kept
        return found
