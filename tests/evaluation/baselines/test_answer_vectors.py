"""Randomised response on answers: exact ratios, groups and contexts, and what is left at 0."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.evaluation.baselines import (
    ANSWER_RESPONSES,
    AnswerResponse,
    PriorAlone,
    Setting,
    answer_vectors,
    measure,
)
from tacit.evaluation.baselines.answer_vectors import group_queries
from tacit.evaluation.baselines.decoding import compare, compute_true_answers
from tacit.patterns.tree import And, Name, Not, Or
from tests.evaluation.baselines.settings import setting, windows

each = pytest.mark.parametrize("response", ANSWER_RESPONSES, ids=lambda one: one.name)


@each
@given(vectors=st.sets(st.integers(0, 31), min_size=1, max_size=12), epsilon=st.floats(0.01, 20))
def test_no_released_vector_tells_two_true_ones_apart_by_more_than_epsilon(
    response: AnswerResponse, vectors: set[int], epsilon: float
) -> None:
    released, chances = response.channel(np.array(sorted(vectors)), epsilon)
    assert chances.shape == (len(vectors), len(released))
    assert chances.sum(axis=1) == pytest.approx(np.ones(len(vectors)))
    losses = np.log(chances[:, None] / chances[None])
    assert losses.max() <= epsilon * (1 + 1e-9)


def test_queries_are_grouped_by_the_private_patterns_that_they_touch() -> None:
    names = tuple("abcdef")
    private = (frozenset("ab"), frozenset("bc"), frozenset("d"))
    queries = (And("a", "f"), Name("c"), And("d", "f"), Name("e"), Not("d"))
    here = Setting(names, private, queries, np.zeros((1, 6), np.bool_))
    assert sorted(group.queries for group in group_queries(here)) == [(0, 1), (2, 4)]
    spanning = Setting(names, private, (*queries, Or("a", "d")), np.zeros((1, 6), np.bool_))
    assert sorted(group.queries for group in group_queries(spanning)) == [(0, 1, 2, 4, 5)]


def test_the_possible_vectors_are_those_of_any_private_events() -> None:
    names = tuple("abcd")
    queries = (And("a", "c"), Or("b", "d"), And("a", "b", "c"))
    here = Setting(names, (frozenset("ab"),), queries, np.zeros((1, 4), np.bool_))
    (group,) = group_queries(here)
    every = np.array(list(product((False, True), repeat=4)))
    seen = 0
    for possible, those in group.split_contexts(every):
        for window in every[those]:
            brute = {
                (a and window[2]) | (b or window[3]) << 1 | (a and b and window[2]) << 2
                for a, b in product((False, True), repeat=2)
            }
            assert set(possible.tolist()) == {int(vector) for vector in brute}
            seen += 1
    assert seen == len(every)


@each
def test_much_epsilon_gives_the_truth_and_hardly_any_gives_the_prior(
    response: AnswerResponse,
) -> None:
    here, test = setting(windows(3000, 1)), windows(3000, 5)
    truth = compute_true_answers(here, test)
    random = np.random.default_rng(1)
    for answers in answer_vectors(response, here, test, 300.0, random).values():
        assert (answers == truth).all()
    nothing = compare(truth, answer_vectors(response, here, test, 1e-6, random)["posterior"])
    prior = measure(PriorAlone(), here, test, 1.0, random)["posterior"]
    assert nothing.total().mre(0.5) == pytest.approx(prior.total().mre(0.5), abs=0.02)


@each
def test_draws_follow_the_channel(response: AnswerResponse) -> None:
    """One query, so the answer is kept with probability exp(epsilon)/(1 + exp(epsilon))."""
    test = np.random.default_rng(3).random((20_000, 1)) < 0.5
    here = Setting(("x",), (frozenset("x"),), (Name("x"),), test[:1000])
    answers = answer_vectors(response, here, test, 1.0, np.random.default_rng(1))["literal"]
    kept = (answers[0] == test[:, 0]).mean()
    assert kept == pytest.approx(1 / (1 + np.exp(-1)), abs=0.012)
