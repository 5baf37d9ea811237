"""Measure the quality of the three mechanisms on Algorithm 2 data, as ratios of mean errors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from benchmarks.jobs import Setting
from benchmarks.report import Finding
from tacit.evaluation.measurement import compute_mre, compute_statistics, measure
from tacit.evaluation.synthetic import LARGEST_EPSILON, draw_data_set
from tacit.planning.planner import make_plan
from tacit.privacy.noise import Noise
from tacit.privacy.randomness import SeededSource

EPSILONS = ("0.1", "0.5", "1", "2", "3", "5", "7", "10")
METHODS = (
    ("uniform", "literal"),
    ("adaptive", "literal"),
    ("uniform", "posterior"),
    ("adaptive", "posterior"),
    ("optimal", "posterior"),
)
_TARGETS = {"1": 0.80, "2": 0.60, "3": 0.45, "5": 0.20}
"""The ratio of optimal's error to that of adaptive with literal decoding, as in the paper."""


def quality(setting: Setting) -> Iterator[Finding]:
    """Plan on 1000 windows and test on 1000 others, for many data sets and epsilons."""
    sets = 100 if setting.rounds > 2 else 8
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        errors = np.array(list(pool.map(_errors, range(sets))))
    mean = errors.mean(axis=0)
    for place, epsilon in enumerate(EPSILONS):
        uniform, adaptive, read_uniform, read_adaptive, optimal = mean[place]
        note = ", ".join(
            f"{name} {decode} {error:.4f}"
            for (name, decode), error in zip(METHODS, mean[place], strict=True)
        )
        yield Finding(
            f"Error of optimal, epsilon {epsilon} per subject, private pattern and window",
            f"of adaptive's, {sets} data sets",
            optimal / adaptive,
            target=_TARGETS.get(epsilon),
            bound="at most",
            note=note,
        )
        yield Finding(
            f"Error of optimal, epsilon {epsilon}",
            "of the best other's, either decoding",
            optimal / min(uniform, adaptive, read_uniform, read_adaptive),
            target=1.02,
            bound="at most",
        )
        for decode, ratio in (
            ("literal", adaptive / uniform),
            ("posterior", read_adaptive / read_uniform),
        ):
            yield Finding(
                f"Error of adaptive, epsilon {epsilon}, {decode}",
                "of uniform's",
                ratio,
                target=1.0,
                bound="at most",
            )


def _errors(seed: int) -> NDArray[np.float64]:
    """Compute the relative errors on one data set, `[epsilon][method]`."""
    drawn = draw_data_set(seed)
    statistics = compute_statistics(drawn.spec, drawn.history)
    alphas = [query.alpha for query in drawn.spec.queries]
    errors = np.empty((len(EPSILONS), len(METHODS)))
    for row, epsilon in enumerate(EPSILONS):
        share = Fraction(epsilon) / Fraction(LARGEST_EPSILON)
        for column, (mechanism, decode) in enumerate(METHODS):
            plan = make_plan(drawn.spec, statistics, mechanism, decode, share)
            found = measure(plan, drawn.test, Noise(SeededSource(seed)))
            errors[row, column] = compute_mre(found, alphas)
    return errors
