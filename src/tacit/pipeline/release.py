"""Turn closed windows into protected answers, with the mechanism of each subject's policy.

Nothing that depends on private events leaves a mechanism except through `Noise`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tacit.errors import PrivacyError
from tacit.pipeline.evaluators import Evaluator
from tacit.privacy.certainty import Certainty, CertaintyByPolicy
from tacit.privacy.mechanisms.mechanism import (
    Columns,
    Mechanism,
    PatternIndex,
    RunSetup,
    WindowBits,
    pack_slots,
)
from tacit.privacy.noise import Noise
from tacit.privacy.prices import Claim
from tacit.spec.queries import compile_queries
from tacit.spec.specification import Specification
from tacit.windows.panes import ClosedPanes


class Release(Evaluator):
    """Turns the bits of windows into protected answers, policy by policy."""

    protects = True

    def __init__(self, spec: Specification, mechanisms: Sequence[Mechanism], noise: Noise) -> None:
        queries = tuple(spec.query_patterns.values())
        index = PatternIndex()
        self.private = noise.private
        self.protectors = [
            mechanism.start(RunSetup(spec, queries, index, noise, f"policy{number}"))
            for number, mechanism in enumerate(mechanisms)
        ]
        limited = any(private.limit is not None for private in spec.private)
        replaced = limited or spec.windows.panes > 1
        self.public_only = [
            mechanism.public_only.start(queries, index) for mechanism in mechanisms if replaced
        ]
        """The replacement of each mechanism where private events must not be used: for subjects
        whose limit is reached, and for all subjects for a while after a reload.
        """
        self._priced: WindowBits | None = None
        """The windows that were priced last: they are answered next."""
        read = [own.queries for own in self.protectors if own.queries is not None]
        self._matched = compile_queries(spec, index.patterns, walk=not read)
        super().__init__(
            [query.name for query in spec.queries],
            [self._matched, *read],
            [query.consumer for query in spec.queries],
        )

    def price(
        self,
        closed: ClosedPanes,
        rows: Mapping[str, pl.DataFrame],
        policies: NDArray[np.int32],
        claims: Sequence[Claim],
    ) -> NDArray[np.int64]:
        """Compute what the answers cost each claim, from public events alone.

        A subject that is answered by `public_only` pays nothing.
        """
        windows = self._priced = self._match(closed, rows)
        if len(self.protectors) == 1 and int(policies.max(initial=0)) == 0:
            return self.protectors[0].price(windows, claims)
        prices = np.zeros((len(windows.bits), len(claims), windows.slots), np.int64)
        for number, protector in enumerate(self.protectors):
            own = policies == number
            if own.any():
                prices[:, :, own] = protector.price(windows, claims)[:, :, own]
        return prices

    def _match(self, closed: ClosedPanes, rows: Mapping[str, pl.DataFrame]) -> WindowBits:
        """Match all patterns, unless it was done for the price of these windows."""
        if self._priced is not None and self._priced.closed is closed:
            return self._priced
        return WindowBits(self._matched.answer(closed, rows), closed, rows)

    def answer(
        self, closed: ClosedPanes, rows: Mapping[str, pl.DataFrame], policies: NDArray[np.int32]
    ) -> tuple[Columns, Certainty]:
        """Compute the protected answers, with each subject's own policy."""
        windows = self._match(closed, rows)
        exhausted = int(policies.max(initial=0)) >= len(self.protectors)
        if exhausted and not self.public_only:
            raise PrivacyError("no private pattern has a limit, so no limit can be reached")
        used = [*self.protectors, *self.public_only] if exhausted else self.protectors
        if len(used) == 1:
            return used[0].protect(windows, None)
        parts = [one.protect(windows, policies == number) for number, one in enumerate(used)]
        result = np.zeros_like(parts[0][0])
        for number, (bits, _) in enumerate(parts):
            result |= bits & pack_slots(policies == number)
        return result, CertaintyByPolicy(policies, [certainty for _, certainty in parts])
