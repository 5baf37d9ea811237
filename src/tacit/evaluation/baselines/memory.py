"""Decoding with memory: a hidden Markov model over what a baseline has released.

The state of a subject is the presence of private event types in a window. Given the releases so
far, its distribution is the forward pass

    belief(z) ~ P(release | z) * sum over z' of P(z | z', contexts) * previous belief(z')

where a window's context is which queries are open, given its public events. This uses released
values and public events alone, so it is post-processing and costs no privacy.

A release of epsilon e per event has a likelihood proportional to exp(-e * |value - bit|), for
Laplace noise and for randomised response alike. That a window was tested and published, or not,
also counts: the noise of the test is known, and so is the distance that it was compared with.

The transition model comes from history. Counts by both contexts are smoothed with those by the
present context, these with those by none, and these with base rates. Each time the coarser model
counts as a number of windows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PrivacyError
from tacit.evaluation.baselines.releases import Amount, Baseline, NoisyPresence
from tacit.evaluation.baselines.setting import Floats, Presence, QueryTable, Setting
from tacit.kernels import compiled
from tacit.privacy.evidence import DecoderCells, cut_cells
from tacit.privacy.quality import micro_alpha

_MOST_JOINT: Final = 6
"""With more private types the state would exceed 64 values: then each type has its own chain."""
_MOST_CONTEXTS: Final = 32
_STRENGTH: Final = 50.0
"""The number of windows that the coarser model counts for, in each context and state."""
_ENOUGH: Final = 20_000
"""The baseline is run on history until this many windows are decoded, to choose a threshold."""


@dataclass(frozen=True, slots=True, eq=False)
class PresenceChain:
    """How the presence of some private event types changes from window to window."""

    columns: tuple[int, ...]
    """The numbers of the event types; bit i of a state is the presence of the i-th."""
    start: Floats
    """`[context][state]`"""
    moves: Floats
    """`[context before][context][state before][state]`"""

    @classmethod
    def learn(
        cls, columns: tuple[int, ...], streams: Presence, contexts: NDArray[np.int64], known: int
    ) -> PresenceChain:
        """Estimate the model from history `[subject][window][event type]`."""
        size, kinds = 1 << len(columns), known + 1
        states = _number(streams, columns)
        counts = np.zeros(kinds * kinds * size * size)
        if states.shape[1] > 1:
            before = contexts[:, :-1] * kinds + contexts[:, 1:]
            cells = (before * size + states[:, :-1]) * size + states[:, 1:]
            counts = np.bincount(cells.ravel(), minlength=len(counts)).astype(np.float64)
        moved = counts.reshape(kinds, kinds, size, size)
        seen = np.bincount((contexts * size + states).ravel(), minlength=kinds * size)
        seen = seen.reshape(kinds, size)
        base = _smooth(seen.sum(axis=0), np.full(size, 1 / size))
        plain = _smooth(moved.sum(axis=(0, 1)), base)
        return cls(columns, _smooth(seen, base), _smooth(moved, _smooth(moved.sum(axis=0), plain)))

    def follow(
        self, release: NoisyPresence, setting: Setting, contexts: NDArray[np.int64]
    ) -> Floats:
        """Compute the beliefs `[subject][window][state]` after each release."""
        shape = contexts.shape
        values = release.values.reshape(*shape, -1)[..., list(self.columns)].astype(np.float64)
        spent, tested = release.spent.reshape(shape), release.tested.reshape(shape)
        whole = len(self.columns) == len(setting.private_columns)
        if release.bars is None or not whole:
            # A test compares all private types at once; a chain of one cannot use it.
            tested, bars = np.zeros(shape), np.zeros(shape)
        else:
            bars = release.bars.reshape(shape)
        beliefs = np.empty((*shape, self.start.shape[1]))
        parts = [np.ascontiguousarray(part) for part in (values, spent, tested, bars)]
        compute_beliefs(
            parts[0], parts[1], parts[2], parts[3], contexts, self.start, self.moves, beliefs
        )
        return beliefs


@dataclass(frozen=True, slots=True, eq=False)
class MemoryDecoder:
    """Answers yes if a query is likely enough, given all releases up to its window."""

    setting: Setting
    codes: NDArray[np.int64]
    """The known contexts, each as a number."""
    chains: tuple[PresenceChain, ...]
    threshold: float = 0.5

    def answer(self, release: NoisyPresence) -> NDArray[np.bool_]:
        """Return the answers `[query][window]`, or `[query][subject][window]`."""
        likely = self.posteriors(release) >= self.threshold
        return likely.reshape(len(likely), *release.grades.shape)

    def posteriors(self, release: NoisyPresence) -> Floats:
        """Compute the probability of each query, `[query][subject][window]`."""
        bits = self.setting.streams(release.bits)
        contexts = number_contexts(bits, self.setting, self.codes)
        beliefs = [chain.follow(release, self.setting, contexts) for chain in self.chains]
        found = [self._posterior(asked, bits, beliefs) for asked in self.setting.asked]
        return np.stack(found) if found else np.zeros((0, *bits.shape[:2]))

    def _posterior(self, asked: QueryTable, bits: Presence, beliefs: list[Floats]) -> Floats:
        public = asked.read(bits) & ~asked.private_mask(self.setting)
        total = np.zeros(bits.shape[:2])
        for places, chance in self._choices(asked, beliefs):
            total += chance * asked.table[public | places]
        # Decided queries have exactly 0 or 1.
        return np.round(total, 12)

    def _choices(
        self, asked: QueryTable, beliefs: list[Floats]
    ) -> Iterator[tuple[int, Floats | float]]:
        """Yield each presence of the query's private elements, and its probability."""
        involved = [
            (chain, belief)
            for chain, belief in zip(self.chains, beliefs, strict=True)
            if not set(chain.columns).isdisjoint(asked.columns)
        ]
        for states in product(*(range(belief.shape[-1]) for _, belief in involved)):
            places, chance = 0, np.ones(1)
            for (chain, belief), state in zip(involved, states, strict=True):
                chance = chance * belief[..., state]
                for place, column in enumerate(chain.columns):
                    if state >> place & 1 and column in asked.columns:
                        places |= 1 << asked.columns.index(column)
            yield places, chance


def make_memory_decoder(
    baseline: Baseline, setting: Setting, epsilon: Amount, random: np.random.Generator
) -> MemoryDecoder:
    """Make a decoder from history; its threshold gives the best Q there, on the baseline's noise.

    The baseline must release public event types unchanged.
    """
    history = setting.streams(setting.history)
    codes = _find_contexts(history, setting)
    contexts = number_contexts(history, setting, codes)
    private = tuple(setting.private_columns.tolist())
    groups = [private] if len(private) <= _MOST_JOINT else [(column,) for column in private]
    chains = tuple(PresenceChain.learn(g, history, contexts, len(codes)) for g in groups)
    decoder = MemoryDecoder(setting, codes, chains)
    truth = [asked.table[asked.read(history)].ravel() for asked in setting.asked]
    cells = []
    for _ in range(-(-_ENOUGH // max(1, history[..., 0].size)) if baseline.uses_epsilon else 1):
        tried = baseline.release(setting.history, setting, epsilon, random)
        if (tried.bits != setting.history)[..., _public_columns(setting)].any():
            raise PrivacyError("memory needs a baseline that releases public types unchanged")
        cells += [
            DecoderCells(likely.ravel(), true.astype(np.float64), (~true).astype(np.float64))
            for likely, true in zip(decoder.posteriors(tried), truth, strict=True)
        ]
    threshold, _ = cut_cells(cells, micro_alpha(setting.alphas))
    return MemoryDecoder(setting, codes, chains, threshold)


def _public_columns(setting: Setting) -> NDArray[np.int64]:
    return np.delete(np.arange(len(setting.types)), setting.private_columns)


def number_contexts(
    streams: Presence, setting: Setting, codes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the number of each window's context, `[subject][window]`; one for all unknown ones."""
    found = _encode_contexts(streams, setting)
    places = np.minimum(np.searchsorted(codes, found), max(0, len(codes) - 1))
    known = codes[places] == found if len(codes) else np.zeros(found.shape, np.bool_)
    return np.where(known, places, len(codes)).astype(np.int64)


def _find_contexts(streams: Presence, setting: Setting) -> NDArray[np.int64]:
    """Return the most common contexts of history."""
    codes, counts = np.unique(_encode_contexts(streams, setting), return_counts=True)
    common = np.argsort(-counts, kind="stable")[:_MOST_CONTEXTS]
    return np.asarray(np.sort(codes[common]), np.int64)


def _encode_contexts(streams: Presence, setting: Setting) -> NDArray[np.int64]:
    """Encode which queries are open in each window; queries beyond 62 are left out."""
    codes = np.zeros(streams.shape[:2], np.int64)
    for number, asked in enumerate(setting.asked[:62]):
        codes |= asked.find_open(setting)[asked.read(streams)].astype(np.int64) << number
    return codes


def _number(streams: Presence, columns: tuple[int, ...]) -> NDArray[np.int64]:
    states = np.zeros(streams.shape[:2], np.int64)
    for place, column in enumerate(columns):
        states |= streams[..., column].astype(np.int64) << place
    return states


def _smooth(counts: NDArray[np.number], base: Floats) -> Floats:
    """Turn counts into probabilities; the base counts as a few more windows."""
    return np.asarray(
        (counts + _STRENGTH * base) / (counts.sum(axis=-1, keepdims=True) + _STRENGTH), np.float64
    )


@compiled
def compute_beliefs(
    values: NDArray[np.float64],
    spent: NDArray[np.float64],
    tested: NDArray[np.float64],
    bars: NDArray[np.float64],
    contexts: NDArray[np.int64],
    start: NDArray[np.float64],
    moves: NDArray[np.float64],
    beliefs: NDArray[np.float64],
) -> None:
    """Run the forward pass of each subject; `values` is `[subject][window][type]`."""
    subjects, windows, types = values.shape
    states = beliefs.shape[2]
    likely = np.empty(states)
    for subject in range(subjects):
        for step in range(windows):
            here = beliefs[subject, step]
            context = contexts[subject, step]
            for state in range(states):
                chance = 0.0
                if step == 0:
                    chance = start[context, state]
                else:
                    last = contexts[subject, step - 1]
                    for before in range(states):
                        move = moves[last, context, before, state]
                        chance += beliefs[subject, step - 1, before] * move
                here[state] = chance
            most = -np.inf
            for state in range(states):
                away, moved = 0.0, 0.0
                for kind in range(types):
                    bit = float((state >> kind) & 1)
                    away += abs(values[subject, step, kind] - bit)
                    if step > 0:
                        moved += abs(values[subject, step - 1, kind] - bit)
                found = -spent[subject, step] * away
                if tested[subject, step] > 0:
                    short = (bars[subject, step] * types - moved) * tested[subject, step]
                    found += log_test(short, spent[subject, step] > 0)
                likely[state] = found
                most = max(most, found)
            total = 0.0
            for state in range(states):
                here[state] *= np.exp(likely[state] - most)
                total += here[state]
            for state in range(states):
                here[state] /= total


@compiled
def log_test(short: float, published: bool) -> float:
    """Compute the log-probability that Laplace noise of scale 1 is above `short`, or not."""
    if published == (short > 0):
        return float(np.log(0.5) - abs(short))
    return float(np.log1p(-0.5 * np.exp(-abs(short))))
