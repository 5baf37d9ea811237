"""Evidence by simulation, for queries with too many private elements for tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PlanError
from tacit.kernels import compiled
from tacit.privacy.evidence import STRENGTH, Decode, DecoderCells, Floats, divide
from tacit.privacy.quality import Confusion

Bits = NDArray[np.bool_]
Reader = Callable[[Bits, NDArray[np.int64]], Bits]
"""Returns literal answers `[n]` for noisy presence `[n][element]` and contexts `[n]`."""

_BLOCK = 1 << 16
"""The number of rows evaluated at a time, to limit memory."""
_READINGS = 1 << 15
"""The number of answers evaluated for an outline."""
_CONTEXTS = 16
"""The number of contexts that an outline distinguishes; rarer ones are merged."""
_LEVELS = (0.02, 0.1, 0.25, 0.4, 0.5)
"""Flip probabilities of the masks drawn for an outline, if there are too many to list."""


@dataclass(frozen=True, slots=True, eq=False)
class SampledEvidence:
    """The windows of one query as rows; noise is simulated with a fixed seed.

    A decoder uses only the literal answer, since noisy presence has too many values. The same
    random numbers are used for all flip probabilities, so results for different ones are
    comparable. If there are many rows, the heaviest true and false ones represent the others.
    """

    elements: tuple[str, ...]
    contexts: NDArray[np.int64]
    """`[row]`: the number of the row's context."""
    present: Bits
    """`[row][element]`"""
    truth: Bits
    """`[row]`"""
    counts: Floats
    """`[row]`: the number of windows."""
    read: Reader
    strength: float = STRENGTH
    draws: int = 64
    """The number of noise draws for each row."""
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
            same = self.truth[chosen] == value
            if same.any() and weights[same].sum() > 0:
                weights[same] *= self.counts[self.truth == value].sum() / weights[same].sum()
        object.__setattr__(self, "_chosen", chosen)
        object.__setattr__(self, "_weights", weights)

    @property
    def positives(self) -> float:
        """The number of windows of history in which the query is true."""
        return float(self.counts[self.truth].sum())

    def outline(self, most_masks: int) -> NoiseOutline:
        """Build a coarse model that is quick to evaluate for any flip probabilities."""
        generator = np.random.Generator(np.random.SFC64(self.seed))
        masks, chances = _list_masks(len(self.elements), most_masks, generator)
        contexts = _rank_contexts(self.contexts, self.counts)
        groups = 2 * contexts + self.truth
        totals = np.zeros(2 * (int(contexts.max(initial=0)) + 1))
        np.add.at(totals, groups, self.counts)
        yes = np.zeros((len(totals), len(masks)))
        halves = [np.flatnonzero(self.truth == value) for value in (False, True)]
        for rows in halves:
            weight = self.counts[rows].sum()
            if weight > 0:
                times = max(1, _READINGS // len(masks) // 2)
                # Spread evenly over the rows, with a random start for each mask.
                spread = (generator.random((len(masks), 1)) + np.arange(times)) / times
                sums = np.cumsum(self.counts[rows])
                drawn = np.searchsorted(sums, spread.ravel() * sums[-1], side="right")
                chosen = rows[np.minimum(drawn, len(rows) - 1)]
                of = np.repeat(np.arange(len(masks)), times)
                answers = self.read(self.present[chosen] ^ masks[of], self.contexts[chosen])
                np.add.at(yes, (groups[chosen], of), answers * (weight / times))
        return NoiseOutline(
            masks, chances, yes.reshape(-1, 2, len(masks)), totals.reshape(-1, 2), self
        )

    def confusion(self, flips: Floats, decode: Decode, threshold: float = 0.5) -> Confusion[float]:
        """Estimate the expected counts from the draws."""
        if decode == "posterior":
            return self.cells(flips).confusion(threshold)
        (_, fp), (missed, tp) = self.count_outputs(flips).sum(axis=0).tolist()
        return Confusion(tp, fp, missed)

    def posterior(self, flips: Floats) -> Floats:
        """Return `[context][answer]`: the probability of the query, given its literal answer.

        In each context the answer's share over all contexts counts for `strength` windows.
        """
        return self.estimate_posterior(self.count_outputs(flips))

    def confidence(self, flips: Floats) -> Floats:
        """Return `[context][answer]`: how likely a literal answer is right."""
        posterior = self.posterior(flips)
        return np.stack([1 - posterior[:, 0], posterior[:, 1]], axis=-1)

    def cells(self, flips: Floats) -> DecoderCells:
        """Return a cell for each context and literal answer."""
        seen = self.count_outputs(flips)
        return DecoderCells(
            self.estimate_posterior(seen).ravel(), seen[:, 1].ravel(), seen[:, 0].ravel()
        )

    def estimate_posterior(self, seen: Floats) -> Floats:
        """Estimate the posterior from windows `[context][truth][answer]`."""
        pooled = seen.sum(axis=0)
        rate = pooled[1].sum() / pooled.sum() if pooled.sum() else 0.5
        share = (pooled[1] + rate) / (pooled.sum(axis=0) + 1)
        total = seen.sum(axis=1) + self.strength
        return divide(seen[:, 1] + self.strength * share, total, share)

    def count_outputs(self, flips: Floats) -> Floats:
        """Return `[context][truth][answer]`: the windows in which noise leads to an answer."""
        contexts, truth = self.contexts[self._chosen], self.truth[self._chosen]
        cells = int(self.contexts.max(initial=0)) + 1
        groups = 4 * contexts + 2 * truth
        seen = np.zeros(4 * cells)
        generator = np.random.Generator(np.random.SFC64(self.seed))
        block = max(1, _BLOCK // max(1, len(groups)))
        bounds = flips.astype(np.float32)
        if bounds.ndim == 2:
            bounds = np.where(self.present[self._chosen], bounds[:, 1], bounds[:, 0])
        for begin in range(0, self.draws, block):
            times = min(block, self.draws - begin)
            shape = (times, *self.present[self._chosen].shape)
            flipped = generator.random(shape, np.float32) < bounds
            noisy = (flipped ^ self.present[self._chosen]).reshape(-1, len(self.elements))
            answers = self.read(noisy, np.tile(contexts, times))
            seen += np.bincount(
                np.tile(groups, times) + answers,
                np.tile(self._weights / self.draws, times),
                4 * cells,
            )
        return seen.reshape(cells, 2, 2)

    def _heaviest(self) -> NDArray[np.intp]:
        """Return the heaviest rows, half of them true if possible; ties are broken at random."""
        shuffled = np.random.Generator(np.random.SFC64(self.seed)).permutation(len(self.counts))
        order = shuffled[np.argsort(-self.counts[shuffled], kind="stable")]
        false, true = (order[self.truth[order] == value] for value in (False, True))
        half = self.most_rows // 2
        few = min(len(true), max(half, self.most_rows - len(false)))
        return np.concatenate([false[: self.most_rows - few], true[:few]])


@dataclass(frozen=True, slots=True, eq=False)
class WideEvidence(SampledEvidence):
    """Sampled evidence of a query that depends on more public patterns than its context.

    Rows are evaluated by their *situation*: the context and the public atoms. A decoder gets
    only the context.
    """

    context_numbers: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """`[situation]`: the number of its context."""
    number: int = 1
    """The number of contexts, whether or not they were seen."""

    def count_outputs(self, flips: NDArray[np.float64]) -> NDArray[np.float64]:
        """Do the same, by context instead of situation."""
        seen = SampledEvidence.count_outputs(self, flips)[: len(self.context_numbers)]
        answered = np.zeros((self.number, 2, 2))
        np.add.at(answered, self.context_numbers, seen)
        return answered


@dataclass(frozen=True, slots=True, eq=False)
class NoiseOutline:
    """Precomputed answers of sampled evidence for many noise masks, for fast searches.

    Flip probabilities only change how likely each mask is, so the query is not evaluated again.
    """

    masks: Bits
    """`[mask][element]`: which elements are flipped."""
    chances: Floats
    """`[mask]`: the probability with which the mask was drawn, or 1 if all masks are listed."""
    yes: Floats
    """`[context][truth][mask]`: the windows in which the literal answer is yes."""
    totals: Floats
    """`[context][truth]`: all windows."""
    evidence: SampledEvidence

    def expect_claims(self, flips: Floats, decode: Decode, threshold: float) -> tuple[float, float]:
        """Return the expected numbers of true and false claims."""
        if flips.ndim == 2:
            # Approximate by one flip probability for present and absent elements: their mean.
            present, counts = self.evidence.present, self.evidence.counts
            rates = (counts @ present + 0.5) / (counts.sum() + 1)
            flips = (1 - rates) * flips[:, 0] + rates * flips[:, 1]
        seen = _expect_yes(flips, self.masks, self.chances, self.yes)
        if decode == "literal":
            fp, tp = seen.sum(axis=0).tolist()
            return tp, fp
        answered = np.stack([np.maximum(0.0, self.totals - seen), seen], axis=-1)
        yes = self.evidence.estimate_posterior(answered) >= threshold
        return float(answered[:, 1][yes].sum()), float(answered[:, 0][yes].sum())


@compiled
def _expect_yes(flips: Floats, masks: Bits, chances: Floats, yes: Floats) -> Floats:
    """Return `[context][truth]`: the expected number of windows with a yes."""
    seen = np.zeros(yes.shape[:2])
    total = 0.0
    for place in range(len(masks)):
        weight = 1 / chances[place]
        for element in range(len(flips)):
            weight *= flips[element] if masks[place, element] else 1 - flips[element]
        total += weight
        for context in range(yes.shape[0]):
            seen[context, 0] += weight * yes[context, 0, place]
            seen[context, 1] += weight * yes[context, 1, place]
    return seen / total if total > 0 else seen


def _list_masks(size: int, most: int, generator: np.random.Generator) -> tuple[Bits, Floats]:
    """List all masks if they are few; otherwise draw some. Also return their probabilities."""
    if 2**size <= most:
        listed = (np.arange(2**size)[:, None] >> np.arange(size)) & 1 > 0
        return listed, np.ones(len(listed))
    levels = np.resize(_LEVELS, most)[:, None]
    masks = generator.random((most, size)) < levels
    flipped = masks.sum(axis=1)[:, None]
    chances = (np.array(_LEVELS) ** flipped * (1 - np.array(_LEVELS)) ** (size - flipped)).mean(
        axis=1
    )
    # Relative to fair coins, so that many elements do not cause underflow.
    return masks, chances * 2.0**size


def _rank_contexts(contexts: NDArray[np.int64], counts: Floats) -> NDArray[np.int64]:
    """Number contexts by how common they are; rare ones share the last number."""
    windows = np.bincount(contexts, counts)
    ranks = np.empty(len(windows), np.int64)
    ranks[np.argsort(-windows, kind="stable")] = np.arange(len(windows))
    return np.minimum(ranks, _CONTEXTS)[contexts]
