"""Evidence by simulation, for queries of more private elements than tables can hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PlanError
from tacit.planning.evidence import STRENGTH, Cells, Decode, Floats, ratio
from tacit.planning.quality import Confusion

Bits = NDArray[np.bool_]
Reader = Callable[[Bits, NDArray[np.int64]], Bits]
"""From noisy presence `[n][element]` and contexts `[n]` to literal answers `[n]`."""

_BLOCK = 1 << 16
"""Rows that are read at a time, so that memory stays small."""


@dataclass(frozen=True, slots=True, eq=False)
class SampledEvidence:
    """History's windows of one query as rows; noise is drawn, always from the same seed.

    The literal answer is all that a decoder looks at: noisy presence as such has too many
    values. The same noise is used for all flip probabilities, so that figures for different
    ones compare well. Of many rows the heaviest of either truth stand for the others.
    """

    elements: tuple[str, ...]
    contexts: NDArray[np.int64]
    """`[row]`: the number of the row's context."""
    present: Bits
    """`[row][element]`"""
    truth: Bits
    """`[row]`"""
    counts: Floats
    """`[row]`: how many windows."""
    read: Reader
    strength: float = STRENGTH
    draws: int = 64
    """How often noise is drawn for each row."""
    most_rows: int = 4096
    seed: int = 1
    _chosen: NDArray[np.intp] = field(init=False, repr=False)
    _weights: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        rows = len(self.counts)
        if (self.contexts.shape, self.truth.shape, self.present.shape) != (
            (rows,),
            (rows,),
            (rows, len(self.elements)),
        ):
            raise PlanError("sampled evidence needs a context, presence and truth for each row")
        chosen = self._heaviest()
        weights = self.counts[chosen].astype(np.float64)
        for value in (False, True):
            kept = self.truth[chosen] == value
            if kept.any() and weights[kept].sum() > 0:
                weights[kept] *= self.counts[self.truth == value].sum() / weights[kept].sum()
        object.__setattr__(self, "_chosen", chosen)
        object.__setattr__(self, "_weights", weights)

    @property
    def there(self) -> float:
        """In how many windows of history the query is true."""
        return float(self.counts[self.truth].sum())

    def thinned(self, samples: int) -> SampledEvidence:
        """The same with no more than so many draws in all: quicker, and coarser."""
        rows = max(1, min(self.most_rows, samples, len(self.counts)))
        return replace(self, most_rows=rows, draws=max(1, min(self.draws, samples // rows)))

    def confusion(self, flips: Floats, decode: Decode, threshold: float = 0.5) -> Confusion:
        """The windows to expect right, wrong and missed, as far as the draws tell."""
        if decode == "posterior":
            return self.cells(flips).confusion(threshold)
        (_, fp), (missed, tp) = self._answered(flips).sum(axis=0).tolist()
        return Confusion(tp, fp, missed)

    def posterior(self, flips: Floats) -> Floats:
        """`[context][answer]`: how likely the query is true, given its literal answer.

        In each context the answer's share over all contexts counts for `strength` windows.
        """
        return self._posterior(self._answered(flips))

    def confidence(self, flips: Floats) -> Floats:
        """`[context][answer]`: how likely a literal answer is right."""
        posterior = self.posterior(flips)
        return np.stack([1 - posterior[:, 0], posterior[:, 1]], axis=-1)

    def cells(self, flips: Floats) -> Cells:
        """All contexts and literal answers."""
        seen = self._answered(flips)
        return Cells(self._posterior(seen).ravel(), seen[:, 1].ravel(), seen[:, 0].ravel())

    def _posterior(self, seen: Floats) -> Floats:
        pooled = seen.sum(axis=0)
        rate = pooled[1].sum() / pooled.sum() if pooled.sum() else 0.5
        share = (pooled[1] + rate) / (pooled.sum(axis=0) + 1)
        total = seen.sum(axis=1) + self.strength
        return ratio(seen[:, 1] + self.strength * share, total, share)

    def _answered(self, flips: Floats) -> Floats:
        """`[context][truth][answer]`: the windows in which the noise leads to an answer."""
        contexts, truth = self.contexts[self._chosen], self.truth[self._chosen]
        cells = int(self.contexts.max(initial=0)) + 1
        groups = 4 * contexts + 2 * truth
        seen = np.zeros(4 * cells)
        generator = np.random.Generator(np.random.SFC64(self.seed))
        block = max(1, _BLOCK // max(1, len(groups)))
        for begin in range(0, self.draws, block):
            times = min(block, self.draws - begin)
            shape = (times, *self.present[self._chosen].shape)
            flipped = generator.random(shape, np.float32) < flips.astype(np.float32)
            noisy = (flipped ^ self.present[self._chosen]).reshape(-1, len(self.elements))
            answers = self.read(noisy, np.tile(contexts, times))
            seen += np.bincount(
                np.tile(groups, times) + answers,
                np.tile(self._weights / self.draws, times),
                4 * cells,
            )
        return seen.reshape(cells, 2, 2)

    def _heaviest(self) -> NDArray[np.intp]:
        """The heaviest rows, half of them true if there are as many; ties are broken by lot."""
        shuffled = np.random.Generator(np.random.SFC64(self.seed)).permutation(len(self.counts))
        order = shuffled[np.argsort(-self.counts[shuffled], kind="stable")]
        false, true = (order[self.truth[order] == value] for value in (False, True))
        half = self.most_rows // 2
        few = min(len(true), max(half, self.most_rows - len(false)))
        return np.concatenate([false[: self.most_rows - few], true[:few]])
