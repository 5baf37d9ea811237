"""Decoding with memory: beliefs are Bayes's, and only releases and public events count."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import PrivacyError
from tacit.evaluation.baselines import (
    BudgetDistribution,
    EventLevel,
    PrivateTypes,
    Setting,
    make_memory_decoder,
    measure,
)
from tacit.evaluation.baselines.memory import PresenceChain, compute_beliefs, number_contexts
from tacit.patterns.tree import And, Or
from tests.evaluation.baselines.settings import Floats, Presence

STATES, STEPS, TYPES = 4, 4, 2


def laplace_below(bound: float) -> float:
    """How likely a Laplace variable of scale 1 is below a bound."""
    return math.exp(bound) / 2 if bound < 0 else 1 - math.exp(-bound) / 2


def slow_beliefs(
    values: Floats, spent: Floats, tested: Floats, bars: Floats, contexts: Floats,
    start: Floats, moves: Floats,
) -> Floats:  # fmt: skip
    """Sum over all paths of states, for one subject."""
    beliefs = np.zeros((STEPS, STATES))
    for last in range(STEPS):
        for path in product(range(STATES), repeat=last + 1):
            chance = 1.0
            for step, state in enumerate(path):
                bits = np.array([state & 1, state >> 1])
                if step == 0:
                    chance *= start[contexts[0], state]
                else:
                    pair = contexts[step - 1], contexts[step]
                    chance *= moves[pair][path[step - 1], state]
                if tested[step] > 0:
                    away = np.abs(values[step - 1] - bits).mean()
                    below = laplace_below((bars[step] - away) * TYPES * tested[step])
                    chance *= 1 - below if spent[step] > 0 else below
                if spent[step] > 0:
                    apart = np.abs(values[step] - bits).sum()
                    chance *= (spent[step] / 2) ** TYPES * math.exp(-spent[step] * apart)
            beliefs[last, path[-1]] += chance
    return np.asarray(beliefs / beliefs.sum(axis=1, keepdims=True))


@given(st.integers(0, 2**32), st.booleans())
def test_beliefs_are_those_of_a_sum_over_all_paths(seed: int, response: bool) -> None:
    """Randomised response has the likelihood of Laplace noise, up to a factor."""
    chance = np.random.default_rng(seed)
    values = chance.normal(0.5, 1.0, (1, STEPS, TYPES))
    if response:
        values = (values > 0.5).astype(np.float64)
    spent = np.where(chance.random((1, STEPS)) < 0.5, chance.random((1, STEPS)) * 4, 0.0)
    tested = np.where(chance.random((1, STEPS)) < 0.7, chance.random((1, STEPS)) * 4, 0.0)
    tested[0, 0] = 0
    bars = chance.random((1, STEPS))
    contexts = chance.integers(0, 2, (1, STEPS))
    start = chance.dirichlet(np.ones(STATES), 2)
    moves = chance.dirichlet(np.ones(STATES), (2, 2, STATES))
    beliefs = np.empty((1, STEPS, STATES))
    compute_beliefs(values, spent, tested, bars, contexts, start, moves, beliefs)
    slow = slow_beliefs(values[0], spent[0], tested[0], bars[0], contexts[0], start, moves)
    assert beliefs[0] == pytest.approx(slow, abs=1e-9)


def lasting(subjects: int, seed: int) -> Presence:
    """Private `x` lasts for many windows; public `z` comes and goes."""
    chance = np.random.default_rng(seed)
    turns = chance.random((subjects, 200)) < 0.04
    state = np.logical_xor.accumulate(turns, axis=1)
    return np.stack([state, chance.random((subjects, 200)) < 0.3], axis=-1)


HOME = Setting(("x", "z"), (frozenset("x"),), (Or("x", "z"),), lasting(60, 1))


@pytest.mark.soak
def test_memory_is_worth_much_where_events_last_and_nothing_where_they_do_not() -> None:
    baseline = PrivateTypes(EventLevel())
    fast = np.random.default_rng(3).random((60, 200, 2)) < 0.5
    gains = []
    for setting, test in ((HOME, lasting(60, 2)), (replace(HOME, history=fast), fast)):
        found = measure(
            baseline, setting, test, 1.0, np.random.default_rng(4), ("posterior", "memory")
        )
        gains.append(
            found["memory"].total().mre(0.5) / max(found["posterior"].total().mre(0.5), 1e-9)
        )
    assert gains[0] < 0.7
    assert gains[1] == pytest.approx(1.0, abs=0.05)


def test_a_decoder_sees_releases_and_public_events_alone() -> None:
    """The same release of other private events has the same answers."""
    decoder = make_memory_decoder(
        PrivateTypes(BudgetDistribution(4, "response")), HOME, 2.0, np.random.default_rng(1)
    )
    test = lasting(5, 7)
    release = PrivateTypes(BudgetDistribution(4, "response")).release(
        test, HOME, 2.0, np.random.default_rng(1)
    )
    first = decoder.posteriors(release)
    earlier = replace(
        release,
        **{
            name: getattr(release, name)[:, :50]
            for name in ("values", "grades", "spent", "tested", "bars")
        },
    )
    np.testing.assert_array_equal(decoder.posteriors(earlier), first[:, :, :50])


def test_contexts_are_a_function_of_public_events() -> None:
    presence = lasting(4, 3)
    other = presence.copy()
    other[..., 0] = ~other[..., 0]
    codes = np.array([0, 1])
    one, two = (number_contexts(part, HOME, codes) for part in (presence, other))
    np.testing.assert_array_equal(one, two)
    assert (one == 1 - presence[..., 1]).all(), "open where z is absent"


def test_a_baseline_with_noise_on_public_types_is_refused() -> None:
    with pytest.raises(PrivacyError, match="public types unchanged"):
        make_memory_decoder(EventLevel(), HOME, 1.0, np.random.default_rng(0))


def test_a_model_is_a_distribution_even_without_history() -> None:
    none = np.zeros((0, 5, 2), np.bool_)
    chain = PresenceChain.learn((0,), none, np.zeros((0, 5), np.int64), 1)
    assert chain.start.sum(axis=-1) == pytest.approx(np.ones(2))
    assert chain.moves.sum(axis=-1) == pytest.approx(np.ones((2, 2, 2)))


def test_many_private_types_have_a_chain_each() -> None:
    names = tuple("abcdefgh")
    chance = np.random.default_rng(1)
    history = chance.random((3, 400, 8)) < 0.6
    setting = Setting(names, (frozenset(names[:7]),), (And("a", "b", "h"),), history)
    decoder = make_memory_decoder(PrivateTypes(EventLevel()), setting, 700.0, chance)
    assert [chain.columns for chain in decoder.chains] == [(n,) for n in range(7)]
    test = chance.random((3, 50, 8)) < 0.6
    release = PrivateTypes(EventLevel()).release(test, setting, 700.0, chance)
    assert (decoder.answer(release)[0] == test[..., [0, 1, 7]].all(axis=-1)).all()
