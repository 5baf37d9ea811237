"""Unprotected: true answers, if no query depends on private elements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PlanError
from tacit.patterns.tree import Pattern
from tacit.privacy.affected_queries import find_affected
from tacit.privacy.certainty import Certainty, ExactCertainty
from tacit.privacy.channel_audit import Ratio
from tacit.privacy.mechanisms.mechanism import (
    Columns,
    Floats,
    Mechanism,
    NamedChannel,
    PlanGoal,
    Prices,
    Protector,
    RunSetup,
    WindowBits,
)
from tacit.privacy.mechanisms.public_only import PublicOnly, PublicTables
from tacit.privacy.policies import Policy
from tacit.privacy.prices import Claim
from tacit.privacy.quality import Confusion
from tacit.privacy.statistics import Statistics


@dataclass(frozen=True, eq=False)
class Unprotected(Mechanism):
    """Give the true answers: no query depends on a private element of the policy.

    Guarantee: pattern-level 0-DP per subject, pattern and window.
    Neighbours: windows that differ anywhere inside a private pattern's elements.
    Why: every query is a function of public events, on which neighbours agree. A plan with this
    mechanism is refused if a query depends on a private element.
    Spends: nothing.
    Paper: not included; the paper treats public events the same way.
    Proof: docs/guarantee.md#decided-queries
    """

    name: ClassVar[str] = "unprotected"
    kind: ClassVar[str] = "open"
    needs = "nothing"

    @classmethod
    def plan(
        cls,
        statistics: Statistics,
        goal: PlanGoal,  # noqa: ARG003 - there is nothing to choose
    ) -> tuple[Unprotected, Confusion[Floats]]:
        """Return the mechanism, and what to expect of it."""
        return cls(), cls().expect(statistics)

    def expect(self, statistics: Statistics) -> Confusion[Floats]:
        """Expect all answers to be right."""
        positives = statistics.positives
        return Confusion(positives, 0 * positives, 0 * positives)

    def start(self, run: RunSetup) -> Protector:
        """Return a protector that gives the true answers."""
        return _TrueProtector(run.index.columns(run.queries))

    @property
    def public_only(self) -> PublicOnly:
        """The same answers."""
        return PublicTables(frozenset(), (), (), np.empty(0))

    def to_dict(self) -> dict[str, Any]:
        """Return no data: none is needed."""
        return {}

    @classmethod
    def from_dict(
        cls,
        plain: Mapping[str, Any],  # noqa: ARG003
        policy: Policy,
        queries: Sequence[Pattern],
        panes: int,
    ) -> Unprotected:
        """Raise PlanError if a private pattern would be unprotected."""
        found = cls()
        if not found.fits(policy, queries, panes):
            raise PlanError("the plan leaves private patterns unprotected; make a new plan")
        return found

    def fits(
        self,
        policy: Policy,
        queries: Sequence[Pattern],
        panes: int,  # noqa: ARG002
    ) -> bool:
        """Return whether no query depends on private elements."""
        return not find_affected(policy, queries)

    def widest_ratio(
        self,
        changing: frozenset[str],  # noqa: ARG002 - no answer depends on them
    ) -> Ratio:
        """Return 1: no answer depends on private elements."""
        return Fraction(1)

    def channels(self) -> Iterator[NamedChannel]:
        """Yield nothing: there are no channels."""
        return iter(())


class _TrueProtector(Protector):
    def __init__(self, columns: Sequence[int]) -> None:
        self._columns = list(columns)

    def protect(
        self,
        windows: WindowBits,
        own: NDArray[np.bool_] | None,  # noqa: ARG002 - the same for all
    ) -> tuple[Columns, Certainty]:
        """Return the true answers, which no private event can change."""
        return windows.bits[:, self._columns], ExactCertainty()

    def price(self, windows: WindowBits, claims: Sequence[Claim]) -> Prices:
        """Return 0: no answer depends on private events."""
        return np.zeros((len(windows.bits), len(claims), windows.slots), np.int64)
