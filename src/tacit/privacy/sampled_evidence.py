"""Evidence by simulation, for queries of more private elements than tables can hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PlanError
from tacit.kernels import compiled
from tacit.privacy.evidence import STRENGTH, Decode, DecoderCells, Floats, ratio
from tacit.privacy.quality import Confusion

Bits = NDArray[np.bool_]
Reader = Callable[[Bits, NDArray[np.int64]], Bits]
"""From noisy presence `[n][element]` and contexts `[n]` to literal answers `[n]`."""

_BLOCK = 1 << 16
"""Rows that are read at a time, so that memory stays small."""
_READINGS = 1 << 15
"""How many answers an outline is made of."""
_CONTEXTS = 16
"""How many contexts an outline keeps apart; the rarer ones are one."""
_LEVELS = (0.02, 0.1, 0.25, 0.4, 0.5)
"""Flip probabilities that noise is drawn with for an outline, where it is too much to list."""


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

    def outline(self, most_masks: int) -> NoiseOutline:
        """A coarse picture that is quick to look at under any flip probabilities."""
        generator = np.random.Generator(np.random.SFC64(self.seed))
        masks, chances = _masks(len(self.elements), most_masks, generator)
        contexts = _commonest(self.contexts, self.counts)
        groups = 2 * contexts + self.truth
        totals = np.zeros(2 * (int(contexts.max(initial=0)) + 1))
        np.add.at(totals, groups, self.counts)
        yes = np.zeros((len(totals), len(masks)))
        halves = [np.flatnonzero(self.truth == value) for value in (False, True)]
        for rows in halves:
            weight = self.counts[rows].sum()
            if weight > 0:
                times = max(1, _READINGS // len(masks) // 2)
                # Evenly spread over the rows, with a start of its own for each mask.
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
        """The windows to expect right, wrong and missed, as far as the draws tell."""
        if decode == "posterior":
            return self.cells(flips).confusion(threshold)
        (_, fp), (missed, tp) = self._answered(flips).sum(axis=0).tolist()
        return Confusion(tp, fp, missed)

    def posterior(self, flips: Floats) -> Floats:
        """`[context][answer]`: how likely the query is true, given its literal answer.

        In each context the answer's share over all contexts counts for `strength` windows.
        """
        return self.posterior_of(self._answered(flips))

    def confidence(self, flips: Floats) -> Floats:
        """`[context][answer]`: how likely a literal answer is right."""
        posterior = self.posterior(flips)
        return np.stack([1 - posterior[:, 0], posterior[:, 1]], axis=-1)

    def cells(self, flips: Floats) -> DecoderCells:
        """All contexts and literal answers."""
        seen = self._answered(flips)
        return DecoderCells(self.posterior_of(seen).ravel(), seen[:, 1].ravel(), seen[:, 0].ravel())

    def posterior_of(self, seen: Floats) -> Floats:
        """The posterior that `[context][truth][answer]` windows give."""
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
        """The heaviest rows, half of them true if there are as many; ties are broken by lot."""
        shuffled = np.random.Generator(np.random.SFC64(self.seed)).permutation(len(self.counts))
        order = shuffled[np.argsort(-self.counts[shuffled], kind="stable")]
        false, true = (order[self.truth[order] == value] for value in (False, True))
        half = self.most_rows // 2
        few = min(len(true), max(half, self.most_rows - len(false)))
        return np.concatenate([false[: self.most_rows - few], true[:few]])


@dataclass(frozen=True, slots=True, eq=False)
class WideEvidence(SampledEvidence):
    """Sampled evidence of a query that needs more of what is public than its context says.

    Rows are read by their *situation*, which is a context and the public atoms; a decoder
    knows the context alone.
    """

    homes: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """`[situation]`: the number of its context."""
    number: int = 1
    """How many contexts there are, seen or not."""

    def _answered(self, flips: NDArray[np.float64]) -> NDArray[np.float64]:
        seen = SampledEvidence._answered(self, flips)[: len(self.homes)]
        answered = np.zeros((self.number, 2, 2))
        np.add.at(answered, self.homes, seen)
        return answered


@dataclass(frozen=True, slots=True, eq=False)
class NoiseOutline:
    """What sampled evidence comes to for each of many noises: for searches that look often.

    Flips decide only how likely each noise is, so the query need not be read again.
    """

    masks: Bits
    """`[mask][element]`: which elements are flipped."""
    chances: Floats
    """`[mask]`: how likely the mask was to be drawn, or 1 where all masks are listed."""
    yes: Floats
    """`[context][truth][mask]`: the windows in which the literal answer is yes."""
    totals: Floats
    """`[context][truth]`: all windows."""
    evidence: SampledEvidence

    def claims(self, flips: Floats, decode: Decode, threshold: float) -> tuple[float, float]:
        """How many windows to expect claimed rightly and wrongly."""
        if flips.ndim == 2:
            # A picture of flips that are alike for what is there and what is not: their mean.
            present, counts = self.evidence.present, self.evidence.counts
            rates = (counts @ present + 0.5) / (counts.sum() + 1)
            flips = (1 - rates) * flips[:, 0] + rates * flips[:, 1]
        seen = _heard(flips, self.masks, self.chances, self.yes)
        if decode == "literal":
            fp, tp = seen.sum(axis=0).tolist()
            return tp, fp
        answered = np.stack([np.maximum(0.0, self.totals - seen), seen], axis=-1)
        said = self.evidence.posterior_of(answered) >= threshold
        return float(answered[:, 1][said].sum()), float(answered[:, 0][said].sum())


@compiled
def _heard(flips: Floats, masks: Bits, chances: Floats, yes: Floats) -> Floats:
    """`[context][truth]`: the windows to expect a yes in, each mask by how likely it is."""
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


def _masks(size: int, most: int, generator: np.random.Generator) -> tuple[Bits, Floats]:
    """All noises if they are few; else some, drawn at several levels, and how likely each was."""
    if 2**size <= most:
        listed = (np.arange(2**size)[:, None] >> np.arange(size)) & 1 > 0
        return listed, np.ones(len(listed))
    levels = np.resize(_LEVELS, most)[:, None]
    masks = generator.random((most, size)) < levels
    flipped = masks.sum(axis=1)[:, None]
    chances = (np.array(_LEVELS) ** flipped * (1 - np.array(_LEVELS)) ** (size - flipped)).mean(
        axis=1
    )
    # In units of a fair coin's, so that many elements do not make them vanish.
    return masks, chances * 2.0**size


def _commonest(contexts: NDArray[np.int64], counts: Floats) -> NDArray[np.int64]:
    """Contexts numbered by how common they are; the rare ones share the last number."""
    windows = np.bincount(contexts, counts)
    ranks = np.empty(len(windows), np.int64)
    ranks[np.argsort(-windows, kind="stable")] = np.arange(len(windows))
    return np.minimum(ranks, _CONTEXTS)[contexts]
