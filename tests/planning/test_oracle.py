"""`optimal` as a whole against the joint linear programme over all private events and queries."""

from __future__ import annotations

from dataclasses import replace
from math import exp

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from tacit.evaluation.measurement import compute_statistics
from tacit.events.streams import Stream
from tacit.events.types import EventType
from tacit.patterns.tree import And, Name, Not, Or, Pattern, elements
from tacit.privacy.mechanisms.optimal.mechanism import Optimal
from tacit.privacy.prior import Prior
from tacit.spec.specification import Private, Query, Specification
from tacit.windows.schedule import Windows
from tests.longer import longer

Bits = NDArray[np.bool_]
Floats = NDArray[np.float64]

PRIVATE = ("a", "b", "c", "d")
PUBLIC = ("x", "y")
LEVELS = 4


def random_pattern(random: np.random.Generator, names: tuple[str, ...], most: int) -> Pattern:
    """An AND or an OR of some names, some of them negated."""
    chosen = random.choice(names, int(random.integers(1, most + 1)), replace=False)
    parts = [Not(name) if random.random() < 0.2 else Name(str(name)) for name in chosen]
    if len(parts) == 1:
        return parts[0]
    return And(*parts) if random.random() < 0.6 else Or(*parts)


def random_specification(random: np.random.Generator) -> Specification:
    """Up to three private patterns that may overlap, and up to four queries."""
    types = PRIVATE + PUBLIC
    return Specification(
        streams={"s": Stream(subject="subject", time="time")},
        windows=Windows(size="1 min"),
        events={name: EventType(stream="s", where=f"kind = {n}") for n, name in enumerate(types)},
        private=tuple(
            Private(pattern=random_pattern(random, PRIVATE, 3), epsilon=int(random.integers(1, 4)))
            for _ in range(random.integers(1, 4))
        ),
        queries=tuple(
            Query(name=f"q{n}", consumer="all", pattern=random_pattern(random, types, 4))
            for n in range(random.integers(1, 5))
        ),
    )


def all_windows(rates: NDArray[np.int64]) -> Bits:
    """Windows in which each type is there so many times out of `LEVELS`, independently."""
    grid = np.indices((LEVELS,) * len(rates)).reshape(len(rates), -1)
    return np.asarray((grid < rates[:, np.newaxis]).T)


def truth(pattern: Pattern, world: dict[str, Bits]) -> Bits:
    """Where a pattern holds."""
    match pattern:
        case Name(name):
            return world[name]
        case Not(part):
            return ~truth(part, world)
        case And(parts):
            return np.asarray(np.logical_and.reduce([truth(part, world) for part in parts]))
        case Or(parts):
            return np.asarray(np.logical_or.reduce([truth(part, world) for part in parts]))
    raise AssertionError(pattern)


def best_worth(spec: Specification, answers: Bits, likely: Floats, caution: float) -> float:
    """The joint programme: any probability of any vector of answers for any private events.

    `answers[query][choice]` and `likely[choice]` are those of one context; bit i of a choice is
    the i-th private type's.
    """
    choices, queries = answers.shape[1], len(answers)
    vectors = (np.arange(1 << queries)[:, np.newaxis] >> np.arange(queries)) & 1
    gains = np.where(answers, 1 - caution, -caution).T @ vectors.T * likely[:, np.newaxis]
    number = np.arange(choices * len(vectors)).reshape(choices, len(vectors))
    pairs, limits = [], []
    for private, pattern in zip(spec.private, spec.private_patterns, strict=True):
        inside = sum(1 << PRIVATE.index(name) for name in elements(pattern))
        for one in range(choices):
            for other in range(choices):
                if one != other and one | inside == other | inside:
                    pairs += list(zip(number[one], number[other], strict=True))
                    limits += [exp(float(private.epsilon))] * len(vectors)
    high, low = np.array(pairs).T
    rows = np.arange(len(pairs))
    lawful = coo_matrix(
        (
            np.concatenate([np.ones(len(pairs)), -np.array(limits)]),
            (np.tile(rows, 2), np.concatenate([high, low])),
        ),
        shape=(len(pairs), number.size),
    )
    certain = coo_matrix(
        (np.ones(number.size), (np.repeat(np.arange(choices), len(vectors)), number.ravel()))
    )
    solved = linprog(
        -gains.ravel(),
        A_ub=lawful,
        b_ub=np.zeros(len(pairs)),
        A_eq=certain,
        b_eq=np.ones(choices),
        method="highs",
    )
    return float(-solved.fun)


def oracle(spec: Specification, windows: Bits, caution: float) -> tuple[float, float]:
    """What can be had of open queries in a window at best, and what decided ones give."""
    choices = np.arange(1 << len(PRIVATE))
    values = {name: (choices >> n) & 1 == 1 for n, name in enumerate(PRIVATE)}
    contexts = windows[:, len(PRIVATE) :]
    best = decided = 0.0
    for context in np.unique(contexts, axis=0):
        own = windows[(contexts == context).all(axis=1), : len(PRIVATE)]
        likely = np.bincount(own @ (1 << np.arange(len(PRIVATE))), minlength=len(choices))
        world = values | {name: np.full(len(choices), context[n]) for n, name in enumerate(PUBLIC)}
        answers = np.array([truth(query, world) for query in spec.query_patterns.values()])
        private = {name for pattern in spec.private_patterns for name in elements(pattern)}
        # Types that no private pattern has are public, although they are called like private ones.
        free = sum(1 << n for n, name in enumerate(PRIVATE) if name not in private)
        for fixed in np.unique(choices & free):
            group = choices[choices & free == fixed]
            is_open = [n for n, row in enumerate(answers) if 0 < row[group].sum() < len(group)]
            sure = [n for n, row in enumerate(answers) if row[group].all()]
            decided += float(likely[group].sum()) * (1 - caution) * len(sure)
            if is_open:
                chosen = np.where(np.isin(choices, group), likely, 0).astype(np.float64)
                best += best_worth(spec, answers[is_open], chosen, caution)
    return best / len(windows), decided / len(windows)


def worth_of_optimal(spec: Specification, windows: Bits, caution: float) -> float:
    """What `optimal` gains in a window if it says yes from a posterior of the caution on."""
    (statistics,) = compute_statistics(spec, windows)
    # These are all windows there are, so nothing is smoothed or held out.
    priors = tuple(
        Prior.from_contexts(prior.rates, seen.signals, seen.values, seen.windows, 1e-9)
        for prior, seen in zip(statistics.priors, statistics.contexts, strict=True)
    )
    exact = replace(statistics, priors=priors, folds=())
    weights = np.tile([1 - caution, caution], (len(statistics.positives), 1))
    planned = Optimal._design(exact, exact.fine, weights, literal=False)
    found = planned.count_posteriors(exact).confusion(np.full(len(weights), caution)).total()
    return ((1 - caution) * found.tp - caution * found.fp) / len(windows)


@pytest.mark.parametrize("seed", [*range(15), *longer(*range(15, 60))])
def test_optimal_is_worth_nearly_as_much_as_the_best_of_all_lawful_mechanisms(seed: int) -> None:
    random = np.random.default_rng(seed)
    spec = random_specification(random)
    windows = all_windows(random.integers(1, LEVELS, len(PRIVATE + PUBLIC)))
    caution = float(random.choice([0.2, 0.35, 0.5]))
    best, decided = oracle(spec, windows, caution)
    ours = worth_of_optimal(spec, windows, caution)
    assert ours - decided >= 0.95 * best - 1e-4
    assert ours - decided <= 1.01 * best + 1e-4  # more would not be lawful


def test_the_programme_knows_randomised_response() -> None:
    types = PRIVATE + PUBLIC
    spec = Specification(
        streams={"s": Stream(subject="subject", time="time")},
        windows=Windows(size="1 min"),
        events={name: EventType(stream="s", where=f"kind = {n}") for n, name in enumerate(types)},
        private=(Private(pattern=Name("a"), epsilon=1),),
        queries=(Query(name="q", consumer="all", pattern=Name("a")),),
    )
    windows = all_windows(np.full(len(types), 2))
    best, _ = oracle(spec, windows, 0.5)
    assert abs(best - 0.25 * (exp(1) - 1) / (exp(1) + 1)) < 1e-6
