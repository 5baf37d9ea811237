"""Who pays for a window, where limits are paced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tacit.ledger.accounts import Accounts
from tacit.privacy.pacing import Pacing, find_chances
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
    ) -> Bits:
        """Return the subjects that do not pay for a window, in the order of the accounts.

        `prices` are `[account][subject]`; `gains` and `policies` are by subject.
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
                            left,
                            gains[chosen],
                            total[chosen],
                            local,
                            account.horizon,
                        )
                        # One random number decides for all patterns: a window is paid for whole.
                        least = np.minimum(chances[chosen], found)
                        chances[chosen] = np.where(own[chosen], least, chances[chosen])
        drawn = self._source.draw_octets(2 * len(chances)).view(np.uint16)
        return np.asarray(drawn >= chances * 65536)

    def _is_paced(self, name: str, limit: int | None) -> bool:
        return limit is not None and name in self._paced
