"""Unprotected: true answers, where no query depends on anything private."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PlanError
from tacit.patterns.tree import Pattern
from tacit.privacy.affected_queries import touched
from tacit.privacy.certainty import Certainty, ExactCertainty
from tacit.privacy.channel_audit import Ratio
from tacit.privacy.mechanisms.mechanism import (
    Columns,
    Floats,
    Mechanism,
    NamedChannel,
    PlanGoal,
    Protector,
    RunSetup,
    WindowBits,
)
from tacit.privacy.mechanisms.public_only import PublicOnly, PublicTables
from tacit.privacy.policies import Policy
from tacit.privacy.quality import Confusion
from tacit.privacy.statistics import Statistics


@dataclass(frozen=True, eq=False)
class Unprotected(Mechanism):
    """Give the true answers: no query of the policy's subjects touches a private element.

    Guarantee: pattern-level 0-DP per subject, pattern and window.
    Neighbours: windows that differ anywhere inside a private pattern's elements.
    Why: every query is a function of public events, on which neighbours agree. A plan that says
    so is refused where a query touches a private element.
    Spends: nothing.
    Paper: not there; it treats public events the same way.
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
        """All answers are right."""
        positives = statistics.positives
        return cls(), Confusion(positives, 0 * positives, 0 * positives)

    def start(self, run: RunSetup) -> Protector:
        """The true answers."""
        return _TrueAnswers(run.index.columns(run.queries))

    @property
    def public_only(self) -> PublicOnly:
        """The same answers."""
        return PublicTables(frozenset(), (), (), 0.5)

    def to_dict(self) -> dict[str, Any]:
        """Nothing is needed."""
        return {}

    @classmethod
    def from_dict(
        cls,
        plain: Mapping[str, Any],  # noqa: ARG003
        policy: Policy,
        queries: Sequence[Pattern],
        panes: int,
    ) -> Unprotected:
        """Refuse a plan that leaves something unprotected."""
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
        """Whether no query touches anything private."""
        return not touched(policy, queries)

    def widest_ratio(
        self,
        changing: frozenset[str],  # noqa: ARG002 - no answer depends on them
    ) -> Ratio:
        """Nothing can be told apart."""
        return Fraction(1)

    def channels(self) -> Iterator[NamedChannel]:
        """None."""
        return iter(())


class _TrueAnswers(Protector):
    def __init__(self, columns: Sequence[int]) -> None:
        self._columns = list(columns)

    def protect(
        self,
        windows: WindowBits,
        own: NDArray[np.bool_] | None,  # noqa: ARG002 - the same for all
    ) -> tuple[Columns, Certainty]:
        """No private event can change them."""
        return windows.bits[:, self._columns], ExactCertainty()
