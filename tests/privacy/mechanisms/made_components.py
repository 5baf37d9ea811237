"""Random components, priors and windows, built directly and not from queries."""

from __future__ import annotations

from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.patterns.residuals import Variable
from tacit.patterns.tree import Name
from tacit.privacy.components import Component, Part
from tacit.privacy.policies import PrivatePattern
from tacit.privacy.prior import LEAF, Prior

Bits = NDArray[np.bool_]
EPSILONS = (Fraction(1, 3), Fraction(1), Fraction(5, 2))


def make_component(
    rng: Random, variables: int, *, signals: int = 4, parts: int = 6, patterns: int = 3
) -> Component:
    """Parts of up to four variables with any truth tables; private patterns that may overlap."""
    names = [f"x{n}" for n in range(variables)]
    private = [
        PrivatePattern(
            f"p{n}",
            frozenset(rng.sample(names, rng.randint(1, variables))),
            rng.choice(EPSILONS),
        )
        for n in range(patterns)
    ]
    missing = set(names).difference(*(pattern.elements for pattern in private))
    if missing:
        private.append(PrivatePattern("rest", frozenset(missing), Fraction(2)))
    return Component(
        tuple(private),
        tuple(Variable(Name(name), frozenset({name})) for name in names),
        tuple(_make_part(rng, number, variables, signals) for number in range(parts)),
        tuple(Name(f"s{n}") for n in range(signals)),
    )


def _make_part(rng: Random, query: int, variables: int, signals: int) -> Part:
    own = tuple(rng.sample(range(variables), rng.randint(1, min(4, variables))))
    table = tuple(rng.randrange(2 + signals) for _ in range(1 << len(own)))
    return Part(query, Name(f"q{query}"), own, table)


def make_prior(component: Component, seed: int) -> Prior:
    """Three groups of contexts if there are two signals, and a few windows in each."""
    rng = np.random.default_rng(seed)
    width = len(component.signals)
    splits = [1, 0, LEAF, LEAF, LEAF] if width > 1 else [LEAF]
    groups = splits.count(LEAF)
    return Prior(
        rng.uniform(0.05, 0.8, len(component.variables)),
        width,
        np.array(splits),
        np.arange(groups + 1) * 5,
        rng.random((5 * groups, len(component.variables))) < 0.4,
        rng.integers(1, 9, 5 * groups).astype(np.float64),
        2.0,
    )


def make_windows(component: Component, seed: int, rows: int) -> tuple[Bits, Bits]:
    """Random signals and values, `[row][bit]`."""
    rng = np.random.default_rng(seed)
    signals = rng.random((rows, len(component.signals))) < 0.5
    return signals, rng.random((rows, len(component.variables))) < 0.5


def choose(values: Bits, variables: tuple[int, ...]) -> Any:
    """Return the number of a choice of some variables; for each row of values, if several."""
    return values[..., variables] @ (1 << np.arange(len(variables)))


def evaluate(component: Component, part: int, signals: Bits, values: Bits) -> Any:
    """Return whether a part is true; for each row of values, if several."""
    one = component.parts[part]
    return _tabulate(component, part, signals)[choose(values, one.variables)]


def is_open(component: Component, part: int, signals: Bits) -> bool:
    """Return whether variables decide a part in a context."""
    return len(set(_tabulate(component, part, signals).tolist())) == 2


def _tabulate(component: Component, part: int, signals: Bits) -> Bits:
    known = np.concatenate([[False, True], signals])
    return np.asarray(known[list(component.parts[part].cofactors)])
