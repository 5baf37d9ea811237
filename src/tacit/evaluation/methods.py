"""The methods to compare: the three PPMs and every baseline, each in both decodings."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacit.evaluation import measurement
from tacit.evaluation.baselines import BASELINES, Setting
from tacit.evaluation.baselines import measure as measure_baseline
from tacit.evaluation.measurement import compute_mre, compute_statistics
from tacit.evaluation.synthetic import LARGEST_EPSILON, Presence
from tacit.planning.planner import make_plan
from tacit.privacy.evidence import Decode
from tacit.privacy.noise import Noise
from tacit.privacy.randomness import SeededSource
from tacit.spec.mechanisms import MECHANISMS
from tacit.spec.specification import Specification

Floats = NDArray[np.float64]

DECODES: Final[tuple[Decode, ...]] = ("literal", "posterior")


class Method(NamedTuple):
    """A mechanism or baseline, and how its noisy output is decoded."""

    name: str
    decode: Decode

    def __str__(self) -> str:
        return f"{self.name}, {self.decode}"


PPMS: Final = tuple(Method(name, decode) for name in MECHANISMS for decode in DECODES)
METHODS: Final = PPMS + tuple(
    Method(baseline.name, decode) for baseline in BASELINES for decode in DECODES
)
WITHOUT_EPSILON: Final = frozenset(one.name for one in BASELINES if not one.uses_epsilon)
"""Baselines that are the same for every epsilon."""


def measure_errors(
    spec: Specification,
    history: Presence,
    test: Presence,
    epsilons: Sequence[Fraction],
    seed: int,
) -> Floats:
    """Measure the MRE of every method on one data set, `[epsilon][method]`.

    Windows are `[window][event type]` of one subject, or `[subject][window][event type]`. Every
    private pattern of the specification has the largest epsilon. Every method draws its noise
    from the same seed.
    """
    types = history.shape[-1]
    statistics = compute_statistics(spec, history.reshape(-1, types))
    windows = test.reshape(-1, types)
    setting = Setting.of(spec, history)
    alphas = [query.alpha for query in spec.queries]
    errors = np.empty((len(epsilons), len(METHODS)))
    for place, epsilon in enumerate(epsilons):
        found: dict[Method, float] = {}
        for method in PPMS:
            share = epsilon / Fraction(LARGEST_EPSILON)
            plan = make_plan(spec, statistics, method.name, method.decode, share)
            counts = measurement.measure(plan, windows, Noise(SeededSource(seed)))
            found[method] = compute_mre(counts, alphas)
        for baseline in BASELINES:
            random = np.random.default_rng([seed, 6])
            both = measure_baseline(baseline, setting, test, epsilon, random)
            for decode, counted in both.items():
                found[Method(baseline.name, decode)] = compute_mre(counted, alphas)
        errors[place] = [found[method] for method in METHODS]
    return errors
