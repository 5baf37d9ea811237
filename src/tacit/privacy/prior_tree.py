"""Fit priors to history: grow the tree that groups contexts, and choose its size and smoothing.

A tree is grown one split at a time. Each split is the one that raises the likelihood of history
most, as if variables were independent in each group. The number of groups and the strength of
smoothing are those with the largest likelihood of windows that were held out: each fold of history
is predicted by a tree that was grown on the others. A tie goes to fewer groups, then to more
smoothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacit.patterns.tree import Name
from tacit.privacy.components import Component
from tacit.privacy.context_counts import ContextCounts
from tacit.privacy.prior import LEAF, Bits, Floats, Prior, Whole

STRENGTHS: Final = (1024.0, 256.0, 64.0, 16.0, 4.0, 1.0)
"""Candidates for the number of windows that a larger group counts for in a smaller one."""
MOST_GROUPS: Final = 256
_LEAST: Final = 8.0
"""The least number of windows of a group."""
_PATIENCE: Final = 8
"""Growing stops if this many splits, and as many as were useful, have not helped."""
_TIE: Final = 1.0
"""Log-likelihoods of all of history that differ by less than this are considered equal."""
_ROWS: Final = 4096
"""The number of a node's rows that a split is chosen by."""
_WORK: Final = 1 << 27
"""The number of multiplications for the choice of one split."""
_JUDGED: Final = 1 << 16
"""The number of values of held-out windows that are predicted, for each fold."""
_LISTED: Final = 12
"""Up to this many variables, all combinations of their values are listed."""
_JOINT: Final = 6
"""Up to this many variables, their values are predicted jointly."""


class FittedPriors(NamedTuple):
    """The prior of all of history, and for each fold that of the other folds."""

    whole: Prior
    without: tuple[Prior, ...]


def fit_prior(component: Component, history: ContextCounts) -> FittedPriors:
    """Fit the priors of one component."""
    rates = _rates(component, history.signals, history.values, history.windows)
    folds = history.folds if history.folds > 1 else 0
    trials = [_Trial(component, history, np.arange(history.folds) == fold) for fold in range(folds)]
    size, strength = _choose(trials)
    tree = _PriorTree(history.signals, history.values, history.windows)
    for _ in zip(range(size - 1), tree.grow(), strict=False):
        pass
    return FittedPriors(
        tree.build(rates, strength, size),
        tuple(trial.tree.build(trial.rates, strength, size) for trial in trials),
    )


def _choose(trials: list[_Trial]) -> tuple[int, float]:
    """Return the number of groups and the strength that predict held-out windows best."""
    if not trials:
        return 1, STRENGTHS[0]
    best = 1
    size = 1
    while True:
        total = np.sum([trial.likelihood(size) for trial in trials], axis=0)
        if size == 1:
            table = [total]
        else:
            table.append(total)
        if total.max() > table[best - 1].max() + _TIE:
            best = size
        size += 1
        if size > MOST_GROUPS or size > 2 * best + _PATIENCE:
            break
        grown = [trial.split() for trial in trials]
        if not any(grown):
            break
    found = table[best - 1]
    return best, STRENGTHS[int(np.argmax(found >= found.max() - _TIE))]


@dataclass(slots=True)
class _PriorNode:
    """A node of a growing tree."""

    rows: Whole
    split: int = LEAF
    branches: tuple[_PriorNode, _PriorNode] | None = None
    """Without and with the signal; kept even where a smaller tree has a leaf."""
    born: int = 0
    """The number of groups of the tree when this node was split."""


class _PriorTree:
    """A tree over signals, grown best split first."""

    def __init__(self, signals: Bits, values: Bits, windows: Floats) -> None:
        self.signals, self.values, self.windows = signals, values, windows
        self.root = _PriorNode(np.arange(len(windows)))

    def grow(self) -> Iterator[_PriorNode]:
        """Split a node after each `next`, as long as any split raises the likelihood."""
        waiting = [self._proposal(self.root)]
        groups = 1
        while waiting:
            place = max(range(len(waiting)), key=lambda n: waiting[n][0])
            gain, signal, node = waiting.pop(place)
            if gain <= 0:
                return
            there = self.signals[node.rows, signal]
            node.split, node.born = signal, groups
            node.branches = _PriorNode(node.rows[~there]), _PriorNode(node.rows[there])
            groups += 1
            yield node
            waiting += [self._proposal(branch) for branch in node.branches]

    def _proposal(self, node: _PriorNode) -> tuple[float, int, _PriorNode]:
        """Return the best split of a node: its gain in log-likelihood, and its signal."""
        width, variables = self.signals.shape[1], self.values.shape[1]
        rows = node.rows
        total = float(self.windows[rows].sum())
        if not width or total < 2 * _LEAST:
            return 0.0, LEAF, node
        most = max(256, min(_ROWS, _WORK // (width * max(1, variables))))
        if len(rows) > most:
            rows = rows[np.arange(most) * len(rows) // most]
        signals = self.signals[rows].astype(np.float32)
        windows = self.windows[rows].astype(np.float32)
        scale = total / float(windows.sum())
        held = np.column_stack([windows, self.values[rows] * windows[:, None]])
        with_signal = (signals.T @ held).astype(np.float64) * scale
        both = held.sum(axis=0).astype(np.float64) * scale
        without = np.maximum(0.0, both - with_signal)
        gains = _fit(with_signal) + _fit(without) - _fit(both[np.newaxis])
        large = np.minimum(with_signal[:, 0], without[:, 0]) >= _LEAST
        gains = np.where(large, gains, 0.0)
        best = int(np.argmax(gains))
        return float(gains[best]), best, node

    def build(self, rates: Floats, strength: float, groups: int) -> Prior:
        """Return the prior of the tree as it was with at most this many groups."""
        splits: list[int] = []
        sizes, values, counts = [0], [], []
        pending = [self.root]
        while pending:
            node = pending.pop()
            if node.branches is not None and node.born < groups:
                splits.append(node.split)
                pending += reversed(node.branches)
                continue
            splits.append(LEAF)
            found, windows = _merge(self.values[node.rows], self.windows[node.rows])
            sizes.append(len(windows))
            values.append(found)
            counts.append(windows)
        return Prior(
            rates,
            self.signals.shape[1],
            np.array(splits),
            np.cumsum(sizes),
            np.concatenate(values),
            np.concatenate(counts),
            strength,
        )


class _Trial:
    """A tree grown without one fold, and how well it predicts that fold."""

    def __init__(self, component: Component, history: ContextCounts, held_out: Bits) -> None:
        known = history.counts[:, ~held_out].sum(axis=1)
        rows = np.flatnonzero(known)
        self.tree = _PriorTree(history.signals[rows], history.values[rows], known[rows])
        self.rates = _rates(component, self.tree.signals, self.tree.values, self.tree.windows)
        new = history.counts[:, held_out].sum(axis=1)
        judged = np.flatnonzero(new)
        variables = history.values.shape[1]
        most = max(256, _JUDGED // max(1, variables))
        if len(judged) > most:
            judged = judged[np.arange(most) * len(judged) // most]
        self._signals = history.signals[judged]
        self._weights = new[judged] * (new.sum() / max(1.0, new[judged].sum()))
        self._targets, self._seen = self._number(history.values[judged])
        base = np.where(history.values[judged], self.rates, 1 - self.rates)
        if variables <= _JOINT:
            base = base.prod(axis=1, keepdims=True)
        self._base = np.broadcast_to(base, (len(STRENGTHS), *base.shape)).copy()
        self._places = {id(self.tree.root): np.arange(len(judged))}
        self._logarithms = np.empty(self._base.shape[:2])
        """`[strength][row]`: the log-likelihood of each held-out row."""
        self._predict(self.tree.root)
        self._total = self._weights @ self._logarithms.T
        self._growing = self.tree.grow()
        self._likelihoods = [self._total.copy()]

    def _number(self, values: Bits) -> tuple[Whole, Whole]:
        """Return the targets of prediction as numbers: of held-out rows, and of the tree's rows."""
        known = self.tree.values
        if values.shape[1] <= _JOINT:
            powers = 1 << np.arange(values.shape[1])
            return (values @ powers)[:, None], (known @ powers)[:, None]
        return values.astype(np.int64), known.astype(np.int64)

    def _predict(self, node: _PriorNode) -> None:
        """Update the predictions of the held-out windows in a node by its own windows."""
        places = self._places[id(node)]
        windows = self.tree.windows[node.rows]
        total = windows.sum()
        strengths = np.array(STRENGTHS)[:, None, None]
        size = 1 << self.tree.values.shape[1] if self._targets.shape[1] == 1 else 2
        seen = self._seen[node.rows]
        offsets = np.arange(seen.shape[1]) * size
        counts = np.bincount(
            (seen + offsets).ravel(),
            np.repeat(windows, seen.shape[1]),
            size * seen.shape[1],
        )
        found = counts[self._targets[places] + offsets]
        mixed = (found + strengths * self._base[:, places]) / (total + strengths)
        self._base[:, places] = mixed
        self._logarithms[:, places] = np.log(mixed).sum(axis=2)

    def split(self) -> bool:
        """Take one more split; return whether there was any."""
        node = next(self._growing, None)
        if node is None or node.branches is None:
            return False
        places = self._places[id(node)]
        weights = self._weights[places]
        before = weights @ self._logarithms[:, places].T
        there = self._signals[places, node.split]
        for branch, own in zip(node.branches, (places[~there], places[there]), strict=True):
            self._places[id(branch)] = own
            self._predict(branch)
        after = weights @ self._logarithms[:, places].T
        self._total = self._total + after - before
        self._likelihoods.append(self._total)
        return True

    def likelihood(self, groups: int) -> Floats:
        """Return the held-out log-likelihood with this many groups, for each strength."""
        found: Floats = self._likelihoods[min(groups, len(self._likelihoods)) - 1]
        return found


def _fit(sums: Floats) -> Floats:
    """Return the log-likelihood of independent variables at their own rates.

    `sums[n]` are the number of windows, and how many of them have each variable.
    """
    windows, true = sums[:, :1], np.minimum(sums[:, 1:], sums[:, :1])
    rate = np.divide(true, windows, out=np.full_like(true, 0.5), where=windows > 0)
    rate = np.clip(rate, 1e-9, 1 - 1e-9)
    found: Floats = (true * np.log(rate) + (windows - true) * np.log(1 - rate)).sum(axis=1)
    return found


def _merge(values: Bits, windows: Floats) -> tuple[Bits, Floats]:
    """Merge equal rows."""
    if not len(windows):
        return values, windows
    if (size := values.shape[1]) <= _LISTED:
        powers = 1 << np.arange(size)[::-1]
        sums = np.bincount(values @ powers, windows, 1 << size)
        found = np.flatnonzero(sums)
        return (found[:, None] & powers) > 0, sums[found].astype(np.float64)
    keys = np.packbits(values, axis=1)
    _, first, places = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    return values[first], np.bincount(places.ravel(), windows, len(first)).astype(np.float64)


def _rates(component: Component, signals: Bits, values: Bits, windows: Floats) -> Floats:
    """Return how often each variable is true; for a sub-pattern, only where it is open."""
    rates = (windows @ values + 0.5) / (windows.sum() + 1.0)
    for number, variable in enumerate(component.variables):
        if not isinstance(variable.atom, Name):
            # Half a window of each kind is added, so that nothing is impossible.
            free = _free(component, number, signals)
            true = windows[free & values[:, number]].sum()
            rates[number] = (true + 0.5) / (windows[free].sum() + 1.0)
    return np.asarray(rates)


def _free(component: Component, number: int, signals: Bits) -> NDArray[np.bool_]:
    """Return the rows in whose context a variable makes a difference."""
    free = np.zeros(len(signals), np.bool_)
    ends = np.zeros((len(signals), 1), np.bool_), np.ones((len(signals), 1), np.bool_)
    known = np.concatenate([*ends, signals], axis=1)
    for part in component.parts:
        if number not in part.variables:
            continue
        bit = 1 << part.variables.index(number)
        for choice, cofactor in enumerate(part.cofactors):
            if not choice & bit:
                free |= known[:, cofactor] != known[:, part.cofactors[choice | bit]]
    return free
