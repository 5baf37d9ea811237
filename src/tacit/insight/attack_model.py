"""The attacker's model: a hidden Markov chain over the windows of a day.

States are the values that a private pattern can have in a window, whether it occurred among them.
States and public events together are a Markov chain: the public events of a window depend on the
last window's state and public events, and its state on the last state and its own public events.
This is counted from history. Public events that only last say nothing new in this model. Released
symbols are emissions of a state.
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
MOST_GROUPS: Final = 64
"""The most groups of situations, the rare one among them."""
FOLDS: Final = 5
"""Subjects are attacked in this many parts, each with a model counted from the others."""
STRENGTHS: Final = (3.0, 30.0, 300.0, 3000.0)
"""How many windows what is usual may count as; what predicts the other parts best is used."""


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
class AttackChain:
    """The chain of states, given the group of each window's public events."""

    start: Floats
    """`[group][state]`: the probability of each state, if nothing else is known."""
    public: Floats
    """`[last group][last state][group]`: the probability of the public events of a window."""
    moves: Floats
    """`[group][last state][state]`"""
    occurred: Bits
    """`[state]`"""

    def score(self, sequences: AttackSequences) -> tuple[float, float, float]:
        """Return how likely true states, public events and transitions are, as logarithms."""
        states, groups = sequences.states, sequences.groups
        earlier = sequences.transitions
        last, now = states[earlier], states[earlier + 1]
        before, after = groups[earlier], groups[earlier + 1]
        return (
            float(np.log(self.start[groups, states]).sum()),
            float(np.log(self.public[before, last, after]).sum()),
            float(np.log(self.moves[after, last, now]).sum()),
        )


@dataclass(frozen=True, slots=True, eq=False)
class AttackSequences:
    """Windows in sequences, one for each day of a subject."""

    states: Whole
    groups: Whole
    bounds: Whole
    """Where each sequence begins, and the end of the last."""

    @property
    def transitions(self) -> Whole:
        """The windows that another one of the same sequence follows."""
        inner = np.ones(len(self.states), np.bool_)
        inner[self.bounds[1:] - 1] = False
        return np.flatnonzero(inner)

    def choose(self, chosen: Bits) -> tuple[AttackSequences, Whole]:
        """Return some of the sequences, and the numbers of their windows."""
        lengths = np.diff(self.bounds)
        own = np.flatnonzero(chosen.repeat(lengths))
        bounds = np.append(0, np.cumsum(lengths[chosen]))
        return AttackSequences(self.states[own], self.groups[own], bounds), own


class Strengths(NamedTuple):
    """How many windows what is usual counts as: for states, public events and transitions."""

    start: float
    public: float
    moves: float


class Model:
    """Chains for parts of the subjects, each counted from the other parts.

    A model that was counted from the windows that it guesses would remember them. The strengths of
    smoothing are those with which chains predict the windows that they were not counted from.
    """

    def __init__(self, sequences: AttackSequences, subjects: Whole, occurred: Bits) -> None:
        """Count the chains; `subjects[sequence]` are numbers."""
        _, places = np.unique(subjects, return_inverse=True)
        number = min(FOLDS, int(places.max(initial=0)) + 1)
        groups = int(sequences.groups.max(initial=0)) + 1
        self.occurred = occurred
        self.groups = sequences.groups
        self._windows, self._sequences = len(sequences.groups), len(sequences.bounds) - 1
        folds = [
            _SequenceFold.of(sequences, places % number == fold, number > 1)
            for fold in range(number)
        ]
        scores = np.zeros((len(STRENGTHS), 3))
        for place, strength in enumerate(STRENGTHS):
            alike = Strengths(strength, strength, strength)
            for fold in folds:
                chain = count_chain(fold.training, groups, occurred, alike)
                scores[place] += chain.score(fold.own)
        best = Strengths(*(STRENGTHS[place] for place in scores.argmax(axis=0).tolist()))
        self._parts = [(count_chain(fold.training, groups, occurred, best), fold) for fold in folds]

    def prior(self) -> Floats:
        """Return `[window][state]`: how likely each state is, given the window's public events."""
        prior = np.empty((self._windows, len(self.occurred)))
        for chain, fold in self._parts:
            prior[fold.windows] = chain.start[fold.own.groups]
        return prior

    def infer(self, likely: Floats | None) -> Beliefs:
        """Compute beliefs from public events and the likelihoods `[window][state]` of symbols."""
        found = Beliefs(np.empty(self._windows), np.empty(self._sequences))
        for chain, fold in self._parts:
            seen = None if likely is None else likely[fold.windows]
            beliefs = infer(chain, fold.own.groups, seen, fold.own.bounds)
            found.windows[fold.windows], found.ever[fold.chosen] = beliefs
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _SequenceFold:
    """The sequences of some subjects, and those that their model is counted from."""

    training: AttackSequences
    own: AttackSequences
    windows: Whole
    """The numbers of its windows."""
    chosen: Bits
    """`[sequence]`"""

    @classmethod
    def of(cls, sequences: AttackSequences, chosen: Bits, several: bool) -> _SequenceFold:
        training, _ = sequences.choose(~chosen if several else chosen)
        return cls(training, *sequences.choose(chosen), chosen)


def count_chain(
    sequences: AttackSequences, number: int, occurred: Bits, strengths: Strengths
) -> AttackChain:
    """Count a chain from sequences with this number of groups.

    Where a state has few windows in a group, the usual transitions count too: for public events
    those of the group, whatever the state; for states those of all groups, tilted towards the
    states that are common in the group.
    """
    states, groups, earlier = sequences.states, sequences.groups, sequences.transitions
    size = len(occurred)
    usual = (np.bincount(states, minlength=size) + 0.5) / (len(states) + 0.5 * size)
    start = np.zeros((number, size))
    np.add.at(start, (groups, states), 1.0)
    start += strengths.start * usual
    start = start / start.sum(axis=1, keepdims=True)
    moves = np.zeros((number, size, size))
    np.add.at(moves, (groups[earlier + 1], states[earlier], states[earlier + 1]), 1.0)
    overall = moves.sum(axis=0) + usual
    tilted = overall * (start / usual)[:, np.newaxis]
    moves += strengths.moves * tilted / tilted.sum(axis=2, keepdims=True)
    public = np.zeros((number, size, number))
    np.add.at(public, (groups[earlier], states[earlier], groups[earlier + 1]), 1.0)
    common = (np.bincount(groups, minlength=number) + 0.5) / (len(groups) + 0.5 * number)
    following = public.sum(axis=1) + common
    public += strengths.public * (following / following.sum(axis=1, keepdims=True))[:, np.newaxis]
    return AttackChain(
        start,
        public / public.sum(axis=2, keepdims=True),
        moves / moves.sum(axis=2, keepdims=True),
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
    common = np.argsort(-counts, kind="stable")[: MOST_GROUPS - 1]
    common = np.sort(common[counts[common] >= RARE])
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


def infer(chain: AttackChain, groups: Whole, likely: Floats | None, bounds: Whole) -> Beliefs:
    """Compute beliefs from public events and the likelihoods `[window][state]` of symbols.

    Without symbols, from public events alone.
    """
    windows = np.zeros(len(groups))
    ever = np.zeros(len(bounds) - 1)
    seen = np.ones((1, len(chain.occurred))) if likely is None else likely
    _infer(
        chain.start,
        chain.public,
        chain.moves,
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
    public: Floats,
    moves: Floats,
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
    size = len(occurred)
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
                value = likely[begin + t, state] if released else 1.0
                emitted[t, state] = value
                group = groups[begin + t]
                if t == 0:
                    before = alone = start[group, state]
                else:
                    before, alone = 0.0, 0.0
                    for last in range(size):
                        move = public[groups[begin + t - 1], last, group]
                        move *= moves[group, last, state]
                        before += forward[t - 1, last] * move
                        alone += without[last] * move
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
                value, group = 0.0, groups[begin + t]
                for later in range(size):
                    value += moves[group, state, later] * emitted[t, later] * backward[later]
                value *= public[groups[begin + t - 1], state, group]
                step[state] = value
                scale += value
            for state in range(size):
                backward[state] = step[state] / scale
