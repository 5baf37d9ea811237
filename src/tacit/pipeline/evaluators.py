"""What is made of closed windows: true answers, protected ones, or the statistics of history.

All of them ask for patterns, so each says which events must be kept until a window closes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tacit.patterns.bits import ChainBits
from tacit.privacy.certainty import Certainty
from tacit.windows.panes import ClosedPanes
from tacit.windows.queries import Queries


class Evaluator(ABC):
    """Makes bit columns of closed windows: one for each of `names`.

    `queries` are all patterns that are matched on the way.
    """

    private = True
    """Whether noise, if there is any, comes from where nobody can foretell it."""
    protects = False
    """Whether answers are protected: then nobody whom a private pattern names may be missing."""

    def __init__(
        self, names: Sequence[str], queries: Sequence[Queries], consumers: Sequence[str] = ()
    ) -> None:
        self.names = tuple(names)
        self.consumers = tuple(consumers)
        """Who asks for each of them; nobody where statistics are made."""
        self.queries = queries

    @abstractmethod
    def answer(
        self, closed: ClosedPanes, rows: Mapping[str, pl.DataFrame], policies: NDArray[np.int32]
    ) -> tuple[NDArray[np.uint64], Certainty | None]:
        """`bits[window][name][word]`, and how sure they are if they are protected.

        `policies` holds the number of each subject's policy; that of a subject whose limit is
        reached counts on from the number of policies.
        """

    @property
    def ordered_types(self) -> NDArray[np.uint64]:
        """The event types whose events are kept in order, as mask words."""
        words = [part.matcher.ordered_types for part in self.queries]
        return np.asarray(np.bitwise_or.reduce(words))

    @property
    def automaton(self) -> ChainBits | None:
        """What is walked as tuples come; None where some want all events in order."""
        return self.queries[0].automaton if len(self.queries) == 1 else None

    @property
    def attributes(self) -> dict[str, tuple[str, ...]]:
        """For each stream whose tuples conditions look at: the attributes that they compare."""
        found: dict[str, dict[str, None]] = {}
        for part in self.queries:
            for stream, columns in part.attributes.items():
                found.setdefault(stream, {}).update(dict.fromkeys(columns))
        return {stream: tuple(columns) for stream, columns in found.items()}

    @property
    def compared_types(self) -> NDArray[np.uint64]:
        """The event types whose tuples conditions look at, as mask words."""
        return np.asarray(np.bitwise_or.reduce([part.compared_types for part in self.queries]))


class Detector(Evaluator):
    """The true answers."""

    def __init__(
        self, names: Sequence[str], queries: Queries, consumers: Sequence[str] = ()
    ) -> None:
        super().__init__(names, [queries], consumers)

    def answer(
        self,
        closed: ClosedPanes,
        rows: Mapping[str, pl.DataFrame],
        policies: NDArray[np.int32],  # noqa: ARG002 - true answers look alike for all
    ) -> tuple[NDArray[np.uint64], None]:
        """Whatever was detected."""
        return self.queries[0].answer(closed, rows), None
