"""The attacker's model: a hidden Markov chain over the windows of a day.

States are the values that a private pattern can have in a window, whether it occurred among them.
Public events and released symbols are emissions of a state. The chain is counted from history.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.kernels import compiled

Bits: TypeAlias = NDArray[np.bool_]
Floats: TypeAlias = NDArray[np.float64]
Whole: TypeAlias = NDArray[np.int64]

MOST_STATES: Final = 64
"""The most states; rarer values share one, for each of occurred and not."""
RARE: Final = 30
"""Situations with fewer windows than this are one, so that the prior does not memorise them."""
_SMALL: Final = 0.5
"""The weight of what is usual, added to every count."""


@dataclass(frozen=True, eq=False)
class States:
    """Values of a private pattern, grouped into states."""

    values: Bits
    """`[value][own pattern]`"""
    weights: Floats
    """`[value][state]`: the share of each value in its state."""
    occurred: Bits
    """`[state]`"""
    state: Whole
    """`[value]`: its state."""


def find_states(values: Bits, occurred: Bits, numbers: Whole) -> States:
    """Group values `[value]` into states, given the number of the value in each window."""
    counts = np.bincount(numbers, minlength=len(values)).astype(np.float64)
    state = np.arange(len(values))
    if len(values) > MOST_STATES:
        common = np.argsort(-counts, kind="stable")[: MOST_STATES - 2]
        state = np.where(occurred, MOST_STATES - 1, MOST_STATES - 2)
        state[common] = np.arange(len(common))
        state = np.unique(state, return_inverse=True)[1].ravel()
    weights = np.zeros((len(values), int(state.max(initial=-1)) + 1))
    weights[np.arange(len(values)), state] = counts
    happened = np.zeros(weights.shape[1], np.bool_)
    happened[state] = occurred
    return States(values, weights / weights.sum(axis=0), happened, state)


@dataclass(frozen=True, eq=False)
class Chain:
    """The chain of states, and how likely public events are in each state."""

    start: Floats
    """`[state]`"""
    moves: Floats
    """`[state][next state]`"""
    public: Floats
    """`[state][group]`: the probability of a group of situations."""
    occurred: Bits
    """`[state]`"""

    def prior(self, group: Whole) -> Floats:
        """Return `[window][state]`: the probability of each state, given the public events."""
        joint = self.start[:, np.newaxis] * self.public
        return np.asarray((joint / joint.sum(axis=0)).T[group])


def count_chain(states: Whole, groups: Whole, bounds: Whole, occurred: Bits) -> Chain:
    """Count a chain from windows in sequences, which begin and end at `bounds`."""
    size, number = len(occurred), int(groups.max(initial=0)) + 1
    start = np.bincount(states, minlength=size) / len(states)
    # A transition leads from each window of a sequence but its last to the next one.
    inner = np.ones(len(states), np.bool_)
    inner[bounds[1:] - 1] = False
    earlier = np.flatnonzero(inner)
    moves = np.zeros((size, size))
    np.add.at(moves, (states[earlier], states[earlier + 1]), 1.0)
    moves += _SMALL * start
    public = np.zeros((size, number))
    np.add.at(public, (states, groups), 1.0)
    usual = np.bincount(groups, minlength=number) / len(groups)
    public += 1e-6 * usual
    return Chain(
        start,
        moves / moves.sum(axis=1, keepdims=True),
        public / public.sum(axis=1, keepdims=True),
        occurred,
    )


def group_situations(fine: Whole, coarse: Whole) -> Whole:
    """Number the groups of public events in which the prior is counted.

    A window is grouped by its fine situation; where that is rare, by its coarse one; and rare
    groups are one.

    >>> coarse = np.array([0] * 31 + [1, 2])
    >>> group_situations(np.arange(33), coarse).tolist()[-3:]
    [0, 1, 1]
    """
    rare = np.bincount(fine)[fine] < RARE
    joined = np.where(rare, coarse, coarse.max(initial=0) + 1 + fine)
    counts = np.bincount(joined)
    common = np.flatnonzero(counts >= RARE)
    numbers = np.full(len(counts), len(common))
    numbers[common] = np.arange(len(common))
    return np.asarray(np.unique(numbers[joined], return_inverse=True)[1].ravel())


def find_telling(public: Bits, occurred: Bits, most: int) -> Whole:
    """Return the columns of `public[window][event type]` that tell most about the pattern."""
    rates, rate = public.mean(axis=0), occurred.mean()
    both = public[occurred].mean(axis=0) * rate if occurred.any() else rates * 0
    spread = np.sqrt(rates * (1 - rates) * rate * (1 - rate))
    strength = np.abs(both - rates * rate) / np.maximum(spread, 1e-12)
    strongest = np.argsort(-strength, kind="stable")[:most]
    return np.sort(strongest[spread[strongest] > 0])


class Beliefs(NamedTuple):
    """What an attacker believes."""

    windows: Floats
    """`[window]`: the probability that the pattern occurred, given the whole sequence."""
    ever: Floats
    """`[sequence]`: the probability that it occurred at least once."""


def infer(chain: Chain, groups: Whole, likely: Floats | None, bounds: Whole) -> Beliefs:
    """Compute beliefs from public events and the likelihoods `[window][state]` of symbols.

    Without symbols, from public events alone.
    """
    windows = np.zeros(len(groups))
    ever = np.zeros(len(bounds) - 1)
    seen = np.ones((1, len(chain.start))) if likely is None else likely
    _infer(
        chain.start,
        chain.moves,
        np.ascontiguousarray(chain.public.T),
        chain.occurred,
        groups,
        seen,
        likely is not None,
        bounds,
        windows,
        ever,
    )
    return Beliefs(windows, ever)


@compiled
def _infer(
    start: Floats,
    moves: Floats,
    public: Floats,
    occurred: Bits,
    groups: Whole,
    likely: Floats,
    released: bool,
    bounds: Whole,
    windows: Floats,
    ever: Floats,
) -> None:
    """Run the chain forwards and backwards over each sequence.

    A second forward pass follows only the states without the pattern: the ratio of the two is the
    probability that it never occurred.
    """
    size = len(start)
    longest = 0
    for sequence in range(len(bounds) - 1):
        longest = max(longest, bounds[sequence + 1] - bounds[sequence])
    emitted, forward = np.zeros((2, longest, size))
    without, backward, step = np.zeros((3, size))
    for sequence in range(len(bounds) - 1):
        begin, length = bounds[sequence], bounds[sequence + 1] - bounds[sequence]
        never = 0.0  # the logarithm of the ratio
        for t in range(length):
            total, rest = 0.0, 0.0
            for state in range(size):
                value = public[groups[begin + t], state]
                if released:
                    value *= likely[begin + t, state]
                emitted[t, state] = value
                if t == 0:
                    before, alone = start[state], start[state]
                else:
                    before, alone = 0.0, 0.0
                    for last in range(size):
                        before += forward[t - 1, last] * moves[last, state]
                        alone += without[last] * moves[last, state]
                forward[t, state] = before * value
                step[state] = 0.0 if occurred[state] else alone * value
                total += forward[t, state]
                rest += step[state]
            for state in range(size):
                forward[t, state] /= total
                without[state] = step[state] / rest if rest > 0.0 else 0.0
            never = never + np.log(rest / total) if rest > 0.0 else -np.inf
        ever[sequence] = -np.expm1(min(never, 0.0))
        for state in range(size):
            backward[state] = 1.0
        for t in range(length - 1, -1, -1):
            total, found = 0.0, 0.0
            for state in range(size):
                value = forward[t, state] * backward[state]
                total += value
                if occurred[state]:
                    found += value
            windows[begin + t] = found / total
            if t == 0:
                break
            scale = 0.0
            for state in range(size):
                value = 0.0
                for later in range(size):
                    value += moves[state, later] * emitted[t, later] * backward[later]
                step[state] = value
                scale += value
            for state in range(size):
                backward[state] = step[state] / scale
