"""Evidence of all shapes for the tests of the planning room."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from tacit.privacy.evidence import Evidence

Floats = NDArray[np.float64]
NAMES = "abcdefgh"

flip = st.one_of(st.floats(1e-6, 0.5), st.sampled_from([0.1, 0.25, 0.5]))


def flips(size: int) -> st.SearchStrategy[Floats]:
    """Flip probabilities of so many elements."""
    return st.lists(flip, min_size=size, max_size=size).map(np.array)


@st.composite
def evidence(draw: st.DrawFn, names: str = NAMES, most: int = 3) -> Evidence:
    """A query of presence alone, or one whose literal answer depends on more."""
    elements = tuple(draw(st.permutations(names))[: draw(st.integers(1, most))])
    contexts, size = draw(st.integers(1, 3)), 2 ** len(elements)
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    windows = generator.poisson(draw(st.sampled_from([0.3, 5.0, 100.0])), (contexts, 2, size))
    strength = draw(st.sampled_from([0.5, 4.0]))
    if draw(st.booleans()):
        table = generator.random((contexts, size)) < 0.4
        return Evidence.of_presence(elements, table, windows[:, 0].astype(float), strength)
    literal = generator.random((contexts, 2, size, size))
    return Evidence(elements, windows.astype(float), literal, strength)


def kernel(flips: Floats) -> Floats:
    """`[x][y]`: the Kronecker product of the flips' tables, the last bit outermost."""
    product = np.ones((1, 1))
    for chance in flips:
        product = np.kron(np.array([[1 - chance, chance], [chance, 1 - chance]]), product)
    return product


def literal_of(known: Evidence, context: int, truth: int, x: int, y: int) -> float:
    """The mean literal answer, from either form."""
    if known.literal.ndim == 2:
        return float(known.literal[context, y])
    return float(known.literal[context, truth, x, y])
