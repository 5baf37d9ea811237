"""Draws that depend on nothing but their position: the window, the subject and the channel.

With them nothing random is left in a protected run, and whatever differs between two runs got
past the channels. A symbol is chosen without a look at the channel's row, and a noisy bit
without a look at the true one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from tacit.pipeline.protected_evaluator import ProtectedEvaluator
from tacit.privacy.channels import Channel
from tacit.privacy.count_channels import CountChannel
from tacit.privacy.noise import Noise
from tacit.privacy.randomness import SeededSource
from tacit.privacy.sampling import Sampler

Words = NDArray[np.uint64]


class Position:
    """Where draws are being made: the first of the windows, and how many draws came before."""

    def __init__(self) -> None:
        self.window = 0
        self.call = 0

    def at(self, window: int) -> None:
        """Windows from this one on are being answered."""
        self.window, self.call = window, 0

    def next_call(self) -> int:
        """The number of this draw among those for the same windows."""
        self.call += 1
        return self.call


_HERE = Position()


def mix(*parts: Any) -> Words:
    """A number that looks random, from numbers (or arrays of them)."""
    found: Words = np.array(0x9E3779B97F4A7C15, np.uint64)
    with np.errstate(over="ignore"):
        for part in parts:
            found = (found ^ np.asarray(part).astype(np.uint64)) * np.uint64(0xBF58476D1CE4E5B9)
            found = (found ^ (found >> np.uint64(29))) * np.uint64(0x94D049BB133111EB)
            found = found ^ (found >> np.uint64(32))
    return found


class FixedSampler(Sampler):
    """Chooses symbols by how many were drawn before.

    A sampler belongs to one policy and component and draws for windows and subjects in their
    order; which of them it draws for, and from which channels, depends on public events alone.
    """

    def __init__(self, number: int, noise: Noise) -> None:
        super().__init__((), noise.source)
        self._number = number
        self._drawn = 0

    def sample(self, rows: NDArray[np.integer[Any]]) -> NDArray[np.int32]:
        """Any symbol that the channel has."""
        flat = rows.reshape(-1)
        places = np.searchsorted(self.offsets, flat, "right") - 1
        chance = mix(self._number, self._drawn + np.arange(len(flat)))
        self._drawn += len(flat)
        symbols = np.empty(len(flat), np.int32)
        for place in np.unique(places):
            own = np.flatnonzero(self.channels[place].table.any(axis=0))
            here = places == place
            symbols[here] = own[chance[here] % np.uint64(len(own))]
        return symbols.reshape(rows.shape)


class FixedSource(SeededSource):
    """What decides who pays is the same in every run; it passes for private."""

    private = True
    counts_drawn = 0


class FixedNoise(Noise):
    """Takes all draws from their positions; they pass for private ones."""

    def __init__(self, source: object = None) -> None:
        super().__init__(FixedSource(0))
        self._samplers = 0

    def new_sampler(self) -> Sampler:
        """Symbols by position."""
        self._samplers += 1
        return FixedSampler(self._samplers, self)

    def flip(self, words: Words, channel: Channel, lanes: Words | None = None) -> Words:
        """Noisy bits by position: a word of subjects for each window."""
        windows = _HERE.window + np.arange(len(words))
        numbers = np.arange(words.shape[1])
        drawn = mix(_HERE.next_call(), windows[:, np.newaxis], numbers)
        return drawn if lanes is None else (drawn & lanes) | (words & ~lanes)

    def draw_times(self, count: int, span: int) -> NDArray[np.int64]:
        """The same moment for all: how many there are before one depends on earlier windows."""
        return np.full(count, int(mix(_HERE.next_call())) % span, np.int64)


def fixed_counts(
    _: CountChannel, counts: NDArray[np.int64], source: FixedSource
) -> NDArray[np.int64]:
    """Any counts, by how many were drawn before: that depends on public events alone."""
    drawn = mix(source.counts_drawn + np.arange(counts.size)) % np.uint64(100)
    source.counts_drawn += counts.size
    return drawn.astype(np.int64).reshape(counts.shape)


@contextmanager
def fixed_draws() -> Iterator[None]:
    """Replace all draws of the command line."""
    answer = ProtectedEvaluator.answer

    def placed(self: ProtectedEvaluator, closed: Any, *given: Any) -> Any:
        _HERE.at(closed.first)
        return answer(self, closed, *given)

    with (
        patch("tacit.engines.setup.Noise", FixedNoise),
        patch.object(ProtectedEvaluator, "answer", placed),
        patch.object(CountChannel, "draw", fixed_counts),
    ):
        yield
