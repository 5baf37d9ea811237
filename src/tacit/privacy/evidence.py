"""Evidence: what history says about one query whose private elements come with noise.

With m private elements, a number x below 2**m says which of them are there: bit i stands for
element i. The flips turn the true x into a noisy y. Their chance depends on z = x XOR y alone:
it is the product of f_i over the bits that are set in z and of 1 - f_i over the others.

Where windows slide, noise is not alike for what is there and what is not (`sightings`). Flips
are then given as pairs, `[element]`: the chance of a false alarm, and that of a miss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PlanError
from tacit.privacy.quality import Confusion, micro_alpha

Decode = Literal["literal", "posterior"]
Floats = NDArray[np.float64]

MOST_ELEMENTS = 6
"""With more private elements than this, a query's tables are too large: see `sampled`."""
STRENGTH = 4.0
"""How many windows the base rates count for in each context."""


class DecoderCells(NamedTuple):
    """What a decoder can tell apart: how likely the query is true there, and what to expect."""

    posterior: Floats
    true: Floats
    """In how many windows of history the query is true and the noise leads here."""
    false: Floats

    def confusion(self, threshold: float) -> Confusion[float]:
        """What to expect where yes is said from a posterior on."""
        yes = self.posterior >= threshold
        tp, fp = float(self.true[yes].sum()), float(self.false[yes].sum())
        return Confusion(tp, fp, float(self.true[~yes].sum()))


class QueryEvidence(Protocol):
    """What is known of a query: evidence in tables, or in samples."""

    @property
    def elements(self) -> tuple[str, ...]:
        """The query's private elements, in the order of their bits."""

    @property
    def there(self) -> float:
        """In how many windows of history the query is true."""

    def cells(self, flips: Floats) -> DecoderCells:
        """What a posterior decoder can tell apart under these flip probabilities."""

    def confusion(self, flips: Floats, decode: Decode, threshold: float = 0.5) -> Confusion[float]:
        """The windows to expect right, wrong and missed under these flip probabilities."""


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """History's windows of one query, by context, truth and presence of private elements.

    `literal` is the mean answer when the query is read literally from noisy presence y:
    `[context][y]` for a query of presence alone, or `[context][truth][x][y]`.
    """

    elements: tuple[str, ...]
    counts: Floats
    """`[context][truth][x]`: how many windows."""
    literal: Floats
    strength: float = STRENGTH
    _told: Floats = field(init=False, repr=False)
    _expected: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not len(self.elements) <= MOST_ELEMENTS:
            raise PlanError(
                f"tables are for queries of at most {MOST_ELEMENTS} private elements;"
                f" got {len(self.elements)}"
            )
        size = 2 ** len(self.elements)
        contexts = len(self.counts)
        if self.counts.shape != (contexts, 2, size) or (
            self.literal.shape not in ((contexts, size), (contexts, 2, size, size))
        ):
            raise PlanError("evidence needs counts [context][truth][x] and answers to go with them")
        object.__setattr__(self, "_told", self._by_noise())
        object.__setattr__(self, "_expected", self.counts + self.strength * self._base())

    @classmethod
    def of_presence(
        cls,
        elements: tuple[str, ...],
        table: NDArray[np.bool_],
        windows: Floats,
        strength: float = STRENGTH,
    ) -> Evidence:
        """Evidence of a query that presence alone decides: `table` and `windows [context][x]`."""
        counts = np.stack([np.where(table, 0.0, windows), np.where(table, windows, 0.0)], axis=1)
        return cls(elements, counts, table.astype(np.float64), strength)

    def confusion(self, flips: Floats, decode: Decode, threshold: float = 0.5) -> Confusion[float]:
        """The windows to expect right, wrong and missed, in closed form."""
        if decode == "posterior":
            return self.cells(flips).confusion(threshold)
        if flips.ndim == 2:
            fp, tp = (self.read() * chances(flips)).sum(axis=(1, 2)).tolist()
        else:
            fp, tp = (float(told @ noise(flips)) for told in self._told)
        return Confusion(tp, fp, max(0.0, self.there - tp))

    def posterior(self, flips: Floats) -> Floats:
        """`[context][y]`: how likely the query is true, given its context and noisy presence.

        In each context the base rates count for `strength` windows beside those of history,
        so a context that was never seen has its posterior too.
        """
        seen = through(self._expected, flips)
        total = seen.sum(axis=1)
        return ratio(seen[:, 1], total, self.rate)

    def confidence(self, flips: Floats, decode: Decode) -> Floats:
        """`[context][y][answer]`: how likely an answer is right, once it was given.

        A literal answer that is drawn may tell more than the noisy presence that it came from.
        """
        if decode == "posterior" or self.literal.ndim == 2:
            posterior = self.posterior(flips)
            return np.stack([1 - posterior, posterior], axis=-1)
        joint = self._expected[..., None] * chances(flips)
        yes = (joint * self.literal).sum(axis=2)
        no = joint.sum(axis=2) - yes
        right = np.stack([no[:, 0], yes[:, 1]], axis=-1)
        total = np.stack([no.sum(axis=1), yes.sum(axis=1)], axis=-1)
        return ratio(right, total, np.array([1 - self.rate, self.rate]))

    def cells(self, flips: Floats) -> DecoderCells:
        """All contexts and noisy presences."""
        seen = through(self.counts, flips)
        return DecoderCells(self.posterior(flips).ravel(), seen[:, 1].ravel(), seen[:, 0].ravel())

    @property
    def there(self) -> float:
        """In how many windows of history the query is true."""
        return float(self.counts[:, 1].sum())

    @property
    def rate(self) -> float:
        """How often the query is true; a half if nothing was seen."""
        total = float(self.counts.sum())
        return self.there / total if total else 0.5

    @property
    def told(self) -> Floats:
        """`[truth][z]`: in how many windows a noise of z would make the literal answer yes."""
        return self._told

    def read(self) -> Floats:
        """`[truth][x][y]`: the windows of x in which y would make the literal answer yes."""
        if self.literal.ndim == 2:
            read: Floats = np.einsum("ctx,cy->txy", self.counts, self.literal)
        else:
            read = np.einsum("ctx,ctxy->txy", self.counts, self.literal)
        return read

    @property
    def expected(self) -> Floats:
        """`[context][truth][x]`: history's windows and those that the base rates stand for."""
        return self._expected

    def _by_noise(self) -> Floats:
        """Where chances depend on x XOR y, what is read for each of them is all that counts."""
        x = np.arange(self.counts.shape[2])
        told: Floats = self.read()[:, x, x[:, None] ^ x].sum(axis=2)
        return told

    def _base(self) -> Floats:
        """One window in each context, spread over truth and presence by base rates."""
        windows = self.counts.sum(axis=(0, 1))
        presence = np.ones(1)
        for place in range(len(self.elements)):
            there = windows.reshape(-1, 2, 2**place)[:, 1].sum()
            rate = (there + 0.5) / (windows.sum() + 1)
            presence = np.concatenate([presence * (1 - rate), presence * rate])
        return presence * np.stack([1 - self._truth(), self._truth()], axis=1)

    def _truth(self) -> Floats:
        """`[context][x]`: how likely the query is true, as far as other contexts tell."""
        if self.literal.ndim == 2:
            return self.literal
        windows = self.counts.sum(axis=0)
        share = (windows[1] + self.rate) / (windows.sum(axis=0) + 1)
        return np.broadcast_to(share, (len(self.counts), len(share)))


def noise(flips: Floats) -> Floats:
    """`[z]`: the chance that exactly the bits that are set in z are flipped."""
    chances = np.ones(1)
    for flip in flips:
        chances = np.concatenate([chances * (1 - flip), chances * flip])
    return chances


def through(windows: Floats, flips: Floats) -> Floats:
    """What becomes of `[..., x]` once the bits of x are flipped: `[..., y]`."""
    if flips.ndim == 2:
        return np.asarray(windows @ chances(flips))
    for place, flip in enumerate(flips):
        halves = windows.reshape(*windows.shape[:-1], -1, 2, 2**place)
        windows = ((1 - flip) * halves + flip * halves[..., ::-1, :]).reshape(windows.shape)
    return windows


def ratio(part: Floats, whole: Floats, empty: float | Floats) -> Floats:
    """Part of whole, or what is given where the whole is nothing."""
    shares = np.broadcast_to(np.asarray(empty, np.float64), whole.shape).copy()
    np.divide(part, whole, out=shares, where=whole > 0)
    return shares


def chances(flips: Floats) -> Floats:
    """`[x][y]`: the chance that x becomes y."""
    if flips.ndim == 1:
        x = np.arange(2 ** len(flips))
        return noise(flips)[x[:, None] ^ x]
    table = np.ones((1, 1))
    for alarm, miss in flips:
        table = np.kron([[1 - alarm, alarm], [miss, 1 - miss]], table)
    return table


def best_threshold(
    known: Sequence[tuple[QueryEvidence, Floats]],
    alphas: Sequence[float],
    exact: float = 0.0,
) -> tuple[float, float]:
    """The posterior from which on to say yes, for the best micro Q, and that Q.

    Of each query its evidence and flip probabilities; `exact` windows are claimed rightly in
    any case, by queries that touch no private element. A single threshold is best for the
    micro average, and all of them are looked at: with the cells in order of their posterior,
    running sums give every confusion there is.
    """
    return cut_cells(
        [evidence.cells(flips) for evidence, flips in known], micro_alpha(alphas), exact
    )


def cut_cells(
    found: Sequence[DecoderCells], alpha: float, exact: float = 0.0
) -> tuple[float, float]:
    """The posterior from which on to say yes in these cells, for the best micro Q, and that Q."""
    posterior, true, false = (
        np.concatenate([np.zeros(0), *(getattr(cells, part) for cells in found)])
        for part in DecoderCells._fields
    )
    # Posteriors that differ by their rounding alone must not fall on different sides of a cut.
    falling = -np.round(posterior, 12)
    order = np.argsort(falling, kind="stable")
    levels, begins = np.unique(falling[order], return_index=True)
    return _best_cut(
        -levels,
        exact + _sums(true[order], begins),
        _sums(false[order], begins),
        exact + float(true.sum()),
        alpha,
    )


def _sums(amounts: Floats, begins: NDArray[np.intp]) -> Floats:
    """The running sums up to each beginning, and the whole."""
    return np.concatenate([[0.0], np.cumsum(amounts)])[[*begins, len(amounts)]]


def _best_cut(
    levels: Floats, tp: Floats, fp: Floats, there: float, alpha: float
) -> tuple[float, float]:
    """The cut below the first n levels that gives the best Q; what is sure stays out of it.

    A posterior of 1 is always a yes, and one of 0 never.
    """
    first = int(np.searchsorted(-levels, -1.0, side="right"))
    last = max(first, int(np.searchsorted(-levels, 0.0)))
    quality = np.asarray(Confusion(tp, fp, np.maximum(0.0, there - tp)).quality(alpha))
    cut = first + int(np.argmax(quality[first : last + 1]))
    above = levels[cut - 1] if cut else 1.0
    below = levels[cut] if cut < len(levels) else 0.0
    middle = float(above + below) / 2
    return middle if middle > below else float(above), float(quality[cut])
