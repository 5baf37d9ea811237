"""Confidence of answers: the posterior of each query, computed only on request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Shares = NDArray[np.float64]


class Certainty(ABC):
    """The noisy output for some windows and subjects, from which confidences are computed."""

    @abstractmethod
    def compute_confidence(
        self, query: int, windows: slice, slots: slice, answers: NDArray[np.bool_]
    ) -> Shares:
        """Return `[window][subject]`: how likely the answers to a query are right."""


class ExactCertainty(Certainty):
    """Answers that no private event can change."""

    def compute_confidence(
        self,
        query: int,  # noqa: ARG002 - all are alike
        windows: slice,  # noqa: ARG002
        slots: slice,  # noqa: ARG002
        answers: NDArray[np.bool_],
    ) -> Shares:
        """Return 1 for every answer."""
        return np.ones(answers.shape)


@dataclass(frozen=True, slots=True)
class CertaintyByPolicy(Certainty):
    """The certainty of several policies, each for its own subjects."""

    policies: NDArray[np.int32]
    """The number of each subject's policy."""
    parts: Sequence[Certainty]

    def compute_confidence(
        self, query: int, windows: slice, slots: slice, answers: NDArray[np.bool_]
    ) -> Shares:
        """Use the certainty of each subject's policy."""
        chosen = self.policies[slots]
        result = np.empty(answers.shape)
        for number, part in enumerate(self.parts):
            own = chosen == number
            if own.any():
                result[:, own] = part.compute_confidence(query, windows, slots, answers)[:, own]
        return result


@dataclass(frozen=True, slots=True)
class ReorderedCertainty(Certainty):
    """Subjects in another order."""

    order: NDArray[np.int64]
    """For each place, the slot of the subject in `whole`."""
    whole: Certainty

    def compute_confidence(
        self, query: int, windows: slice, slots: slice, answers: NDArray[np.bool_]
    ) -> Shares:
        """Look the subjects up in their original order."""
        places = self.order[slots]
        if not len(places):
            return np.ones(answers.shape)
        spread = np.zeros((len(answers), int(places.max()) + 1), np.bool_)
        spread[:, places] = answers
        return self.whole.compute_confidence(query, windows, slice(0, spread.shape[1]), spread)[
            :, places
        ]
