"""Small settings and slow, obvious mechanisms for the tests of baselines."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from tacit.evaluation.baselines import Setting
from tacit.patterns.tree import And, Not, Or

Floats = NDArray[np.float64]
Presence = NDArray[np.bool_]

TYPES = ("a", "b", "c", "d")
PRIVATE = (frozenset("ab"), frozenset("bcd"))
QUERIES = (And("a", "d"), Or("b", Not("c")), And("d", "b", Not("a")))


def windows(count: int, seed: int, subjects: int | None = None) -> Presence:
    """Windows of four event types, that are more or less frequent."""
    shape = (count, len(TYPES)) if subjects is None else (subjects, count, len(TYPES))
    drawn = np.random.default_rng(seed).random(shape)
    return np.asarray(drawn < [0.5, 0.2, 0.7, 0.4])


def setting(history: Presence | None = None) -> Setting:
    """Two private patterns of two and three elements that share one, and three queries."""
    return Setting(TYPES, PRIVATE, QUERIES, windows(400, 1) if history is None else history)


@st.composite
def streams(draw: st.DrawFn) -> Presence:
    """One or two subjects with any windows: constant, alternating or at random."""
    subjects, steps, types = draw(
        st.tuples(st.integers(1, 2), st.integers(1, 40), st.integers(1, 3))
    )
    kind = draw(st.sampled_from(["still", "alternating", "random"]))
    chance = np.random.default_rng(draw(st.integers(0, 2**32)))
    if kind == "random":
        return np.asarray(chance.random((subjects, steps, types)) < 0.5)
    turns = np.arange(steps) % 2 if kind == "alternating" else np.zeros(steps)
    return np.broadcast_to(turns[None, :, None] > 0, (subjects, steps, types)).copy()


def scripted(data: st.DataObject, shape: tuple[int, ...], width: float) -> Floats:
    """Noise of any width: none at all, or wild."""
    chance = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    noise: Floats = chance.laplace(size=shape) * width
    return noise


def rejects(sample: Floats, scale: float) -> bool:
    """Whether a sample is hardly Laplace noise of this scale, by its shape or by its width."""
    from scipy.stats import kstest, laplace

    shape = kstest(sample, laplace(scale=scale).cdf).pvalue < 1e-4
    width = abs(np.abs(sample).mean() / scale - 1) > 4 / np.sqrt(len(sample))
    return bool(shape or width)
