"""Evidence: statistics of history for one query, to predict its quality under noise.

With m private elements, a number x below 2**m says which of them are present: bit i is element i.
The flips turn the true x into a noisy y. The probability of y depends only on z = x XOR y: it is
the product of f_i over the bits that are set in z, and of 1 - f_i over the others.

With sliding windows, noise differs between present and absent elements (see `pane_counts`). Flips
are then given as pairs, `[element]`: the probability of a false alarm, and that of a miss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PlanError
from tacit.privacy.quality import Confusion

Decode = Literal["literal", "posterior"]
Floats = NDArray[np.float64]

MOST_ELEMENTS = 6
"""With more private elements than this, tables are too large: see `sampled_evidence`."""
STRENGTH = 4.0
"""The number of windows that the base rates count for in each context."""


class DecoderCells(NamedTuple):
    """The cells that a decoder can distinguish, each with its posterior and window counts."""

    posterior: Floats
    true: Floats
    """The expected number of windows of history in this cell in which the query is true."""
    false: Floats

    def confusion(self, threshold: float) -> Confusion[float]:
        """Return the expected counts if the answer is yes from this posterior on."""
        yes = self.posterior >= threshold
        tp, fp = float(self.true[yes].sum()), float(self.false[yes].sum())
        return Confusion(tp, fp, float(self.true[~yes].sum()))


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """Counts of one query's windows, by context, truth and presence of private elements.

    `literal` is the mean answer if the query is evaluated on noisy presence y: `[context][y]`
    if presence alone decides the query, otherwise `[context][truth][x][y]`.
    """

    elements: tuple[str, ...]
    counts: Floats
    """`[context][truth][x]`: the number of windows."""
    literal: Floats
    strength: float = STRENGTH
    _yes_by_noise: Floats = field(init=False, repr=False)
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
            raise PlanError("evidence needs counts [context][truth][x] and answers of that shape")
        object.__setattr__(self, "_yes_by_noise", self._sum_by_noise())
        object.__setattr__(self, "_expected", self.counts + self.strength * self._base())

    @classmethod
    def of_presence(
        cls,
        elements: tuple[str, ...],
        table: NDArray[np.bool_],
        windows: Floats,
        strength: float = STRENGTH,
    ) -> Evidence:
        """Build evidence of a query that presence decides: `table` and `windows [context][x]`."""
        counts = np.stack([np.where(table, 0.0, windows), np.where(table, windows, 0.0)], axis=1)
        return cls(elements, counts, table.astype(np.float64), strength)

    def confusion(self, flips: Floats, decode: Decode, threshold: float = 0.5) -> Confusion[float]:
        """Compute the expected counts in closed form."""
        if decode == "posterior":
            return self.cells(flips).confusion(threshold)
        if flips.ndim == 2:
            fp, tp = (self.read() * transition_probabilities(flips)).sum(axis=(1, 2)).tolist()
        else:
            fp, tp = (float(yes @ noise_probabilities(flips)) for yes in self._yes_by_noise)
        return Confusion(tp, fp, max(0.0, self.positives - tp))

    def posterior(self, flips: Floats) -> Floats:
        """Return `[context][y]`: the probability of the query, given context and noisy presence.

        In each context the base rates count for `strength` windows in addition to history, so
        contexts that were never seen have a posterior too.
        """
        seen = apply_flips(self._expected, flips)
        total = seen.sum(axis=1)
        return divide(seen[:, 1], total, self.rate)

    def confidence(self, flips: Floats, decode: Decode) -> Floats:
        """Return `[context][y][answer]`: how likely an answer is right.

        A literal answer can carry more information than noisy presence: it also depends on times.
        """
        if decode == "posterior" or self.literal.ndim == 2:
            posterior = self.posterior(flips)
            return np.stack([1 - posterior, posterior], axis=-1)
        joint = self._expected[..., None] * transition_probabilities(flips)
        yes = (joint * self.literal).sum(axis=2)
        no = joint.sum(axis=2) - yes
        right = np.stack([no[:, 0], yes[:, 1]], axis=-1)
        total = np.stack([no.sum(axis=1), yes.sum(axis=1)], axis=-1)
        return divide(right, total, np.array([1 - self.rate, self.rate]))

    def count_outputs(self, flips: Floats) -> Floats:
        """Return `[context][truth][y]`: the expected number of windows with noisy presence y."""
        return apply_flips(self.counts, flips)

    def cells(self, flips: Floats) -> DecoderCells:
        """Return a cell for each context and noisy presence."""
        seen = self.count_outputs(flips)
        return DecoderCells(self.posterior(flips).ravel(), seen[:, 1].ravel(), seen[:, 0].ravel())

    @property
    def positives(self) -> float:
        """The number of windows of history in which the query is true."""
        return float(self.counts[:, 1].sum())

    @property
    def rate(self) -> float:
        """How often the query is true; 1/2 without any window."""
        total = float(self.counts.sum())
        return self.positives / total if total else 0.5

    @property
    def yes_by_noise(self) -> Floats:
        """`[truth][z]`: the number of windows in which noise z makes the literal answer yes."""
        return self._yes_by_noise

    def read(self) -> Floats:
        """Return `[truth][x][y]`: the windows of x in which y makes the literal answer yes."""
        if self.literal.ndim == 2:
            read: Floats = np.einsum("ctx,cy->txy", self.counts, self.literal)
        else:
            read = np.einsum("ctx,ctxy->txy", self.counts, self.literal)
        return read

    @property
    def expected(self) -> Floats:
        """`[context][truth][x]`: windows of history plus those added by the base rates."""
        return self._expected

    def _sum_by_noise(self) -> Floats:
        """Sum the yes counts over all x and y with the same x XOR y."""
        x = np.arange(self.counts.shape[2])
        sums: Floats = self.read()[:, x, x[:, None] ^ x].sum(axis=2)
        return sums

    def _base(self) -> Floats:
        """Spread one window in each context over truth and presence, by base rates."""
        windows = self.counts.sum(axis=(0, 1))
        presence = np.ones(1)
        for place in range(len(self.elements)):
            there = windows.reshape(-1, 2, 2**place)[:, 1].sum()
            rate = (there + 0.5) / (windows.sum() + 1)
            presence = np.concatenate([presence * (1 - rate), presence * rate])
        return presence * np.stack([1 - self._truth(), self._truth()], axis=1)

    def _truth(self) -> Floats:
        """Return `[context][x]`: the probability of the query, estimated over all contexts."""
        if self.literal.ndim == 2:
            return self.literal
        windows = self.counts.sum(axis=0)
        share = (windows[1] + self.rate) / (windows.sum(axis=0) + 1)
        return np.broadcast_to(share, (len(self.counts), len(share)))


def noise_probabilities(flips: Floats) -> Floats:
    """Return `[z]`: the probability that exactly the bits set in z are flipped."""
    chances = np.ones(1)
    for flip in flips:
        chances = np.concatenate([chances * (1 - flip), chances * flip])
    return chances


def apply_flips(windows: Floats, flips: Floats) -> Floats:
    """Return the expected counts `[..., y]` after the bits of x in `[..., x]` are flipped."""
    if flips.ndim == 2:
        return np.asarray(windows @ transition_probabilities(flips))
    for place, flip in enumerate(flips):
        halves = windows.reshape(*windows.shape[:-1], -1, 2, 2**place)
        windows = ((1 - flip) * halves + flip * halves[..., ::-1, :]).reshape(windows.shape)
    return windows


def divide(part: Floats, whole: Floats, empty: float | Floats) -> Floats:
    """Divide part by whole; return `empty` where the whole is 0."""
    shares = np.broadcast_to(np.asarray(empty, np.float64), whole.shape).copy()
    np.divide(part, whole, out=shares, where=whole > 0)
    return shares


def transition_probabilities(flips: Floats) -> Floats:
    """Return `[x][y]`: the probability that x becomes y."""
    if flips.ndim == 1:
        x = np.arange(2 ** len(flips))
        return noise_probabilities(flips)[x[:, None] ^ x]
    table = np.ones((1, 1))
    for alarm, miss in flips:
        table = np.kron([[1 - alarm, alarm], [miss, 1 - miss]], table)
    return table


def cut_cells(
    found: Sequence[DecoderCells], alpha: float, exact: float = 0.0
) -> tuple[float, float]:
    """Return the posterior threshold with the best micro Q for these cells, and that Q.

    `exact` is the number of true positives of queries without private elements. A single
    threshold is best for the micro average. All thresholds are compared: with the cells sorted
    by posterior, running sums give the confusion of each.
    """
    posterior, true, false = (
        np.concatenate([np.zeros(0), *(getattr(cells, part) for cells in found)])
        for part in DecoderCells._fields
    )
    # Posteriors that differ only by rounding must not fall on different sides of a cut.
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
    """Return the running sums before each beginning, and the total."""
    return np.concatenate([[0.0], np.cumsum(amounts)])[[*begins, len(amounts)]]


def _best_cut(
    levels: Floats, tp: Floats, fp: Floats, there: float, alpha: float
) -> tuple[float, float]:
    """Return the threshold below the first n levels with the best Q, and that Q.

    A posterior of 1 is always answered yes, and a posterior of 0 always no.
    """
    first = int(np.searchsorted(-levels, -1.0, side="right"))
    last = max(first, int(np.searchsorted(-levels, 0.0)))
    quality = np.asarray(Confusion(tp, fp, np.maximum(0.0, there - tp)).quality(alpha))
    cut = first + int(np.argmax(quality[first : last + 1]))
    above = levels[cut - 1] if cut else 1.0
    below = levels[cut] if cut < len(levels) else 0.0
    middle = float(above + below) / 2
    return middle if middle > below else float(above), float(quality[cut])
