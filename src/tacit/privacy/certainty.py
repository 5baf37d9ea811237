"""How sure answers are: the posterior of each query, worked out only when it is asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Shares = NDArray[np.float64]


class Certainty(ABC):
    """What was drawn for some windows and subjects, and what it says about each query."""

    @abstractmethod
    def right(self, query: int, windows: slice, slots: slice, answers: NDArray[np.bool_]) -> Shares:
        """`[window][subject]`: how likely the answers to a query are right."""


class ExactCertainty(Certainty):
    """Answers that no private event can change."""

    def right(
        self,
        query: int,  # noqa: ARG002 - all are alike
        windows: slice,  # noqa: ARG002
        slots: slice,  # noqa: ARG002
        answers: NDArray[np.bool_],
    ) -> Shares:
        """All of them."""
        return np.ones(answers.shape)


@dataclass(frozen=True, slots=True)
class CertaintyByPolicy(Certainty):
    """Subjects of several policies, each with what was drawn for it."""

    policies: NDArray[np.int32]
    """The number of each subject's policy."""
    parts: Sequence[Certainty]

    def right(self, query: int, windows: slice, slots: slice, answers: NDArray[np.bool_]) -> Shares:
        """Each subject's by its own policy."""
        chosen = self.policies[slots]
        result = np.empty(answers.shape)
        for number, part in enumerate(self.parts):
            own = chosen == number
            if own.any():
                result[:, own] = part.right(query, windows, slots, answers)[:, own]
        return result


@dataclass(frozen=True, slots=True)
class ReorderedCertainty(Certainty):
    """Subjects in another order."""

    order: NDArray[np.int64]
    """Which of the subjects comes where."""
    whole: Certainty

    def right(self, query: int, windows: slice, slots: slice, answers: NDArray[np.bool_]) -> Shares:
        """Those of the subjects that stand there."""
        places = self.order[slots]
        if not len(places):
            return np.ones(answers.shape)
        spread = np.zeros((len(answers), int(places.max()) + 1), np.bool_)
        spread[:, places] = answers
        return self.whole.right(query, windows, slice(0, spread.shape[1]), spread)[:, places]
