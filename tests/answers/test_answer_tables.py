"""Weights of answers: their expected value is the truth, for every class of private events."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tacit
from tacit.evaluation.trips import Trips
from tacit.privacy.answer_tables import AnswerTable, weigh_answers

SPEC = files("tacit.evaluation").joinpath("taxi.yaml").read_text("utf-8")


def find_expected(table: AnswerTable) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """By class: the expected weight, its variance, and what is claimed of it; None if none is."""
    found = weigh_answers([table])
    if not len(found.levels):
        return None
    place = np.searchsorted(found.levels, table.levels)
    weights, variances = found.weights[place], found.variances[place]
    mean = table.probabilities @ weights
    return mean, table.probabilities @ weights**2 - mean**2, table.probabilities @ variances


@given(st.floats(0.01, 0.45), st.floats(0.01, 0.45), st.integers(1, 14))
def test_weights_of_two_flipped_elements_are_unbiased_for_any_query(
    first: float, second: float, query: int
) -> None:
    one, two = (np.array([[1 - p, p], [p, 1 - p]]) for p in (first, second))
    truth = (query >> np.arange(4)) & 1 == 1
    levels = np.array([0.6, 0.7, 0.8, 0.9])
    table = AnswerTable(np.kron(one, two), truth, np.array([False, True, False, True]), levels)
    expected = find_expected(table)
    assert expected is not None
    mean, variance, claimed = expected
    np.testing.assert_allclose(mean, truth, atol=1e-6)
    np.testing.assert_allclose(claimed, variance, atol=1e-5 * max(1, variance.max()))


def test_levels_that_do_not_tell_classes_apart_have_no_weights() -> None:
    """Two classes with the same truth and other answers: two levels cannot solve three rows."""
    probabilities = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]])
    truth = np.array([False, False, True])
    table = AnswerTable(probabilities, truth, np.array([False, True]), np.array([0.8, 0.7]))
    assert find_expected(table) is None


def test_a_level_that_two_contexts_share_must_suit_both() -> None:
    detected, confidence = np.array([False, True]), np.array([0.8, 0.7])
    truth = np.array([False, True])
    sharp = AnswerTable(np.array([[0.9, 0.1], [0.1, 0.9]]), truth, detected, confidence)
    blunt = AnswerTable(np.array([[0.7, 0.3], [0.3, 0.7]]), truth, detected, confidence)
    assert len(weigh_answers([sharp, sharp]).levels) == 2
    assert len(weigh_answers([sharp, blunt]).levels) == 0
    apart = blunt._replace(confidence=np.array([0.6, 0.55]))
    assert len(weigh_answers([sharp, apart]).levels) == 4


def test_an_answer_with_confidence_one_is_not_weighed() -> None:
    table = AnswerTable(
        np.array([[0.7, 0.3], [0.3, 0.7]]),
        np.array([False, True]),
        np.array([False, True]),
        np.array([1.0, 0.7]),
    )
    assert find_expected(table) is None


@pytest.mark.parametrize("mechanism", ["uniform", "adaptive", "optimal"])
@pytest.mark.parametrize("decode", ["literal", "posterior"])
def test_tables_of_mechanisms_have_the_levels_that_runs_release(
    mechanism: str, decode: str
) -> None:
    """Every open answer of a presence query is in its table, with its exact confidence."""
    spec = tacit.loads(SPEC + f"\nmechanism: {mechanism}\ndecode: {decode}\nmemory: false\n")
    trips = Trips(taxis=40, days=0.4, seed=5).table()
    plan = tacit.plan(spec, trips)
    released = tacit.run(spec, trips, plan=plan, seed=1).polars()
    for query in ("free_taxi", "cruising", "centre_rank"):
        number = list(spec.query_patterns).index(query)
        tables = list(plan.mechanisms[0].answer_tables(number, 1))
        known = {level for table in tables for level in table.levels.tolist()}
        own = released.filter((released["query"] == query) & (released["confidence"] < 1))
        seen = AnswerTable(
            np.empty((0, 0)),
            np.empty(0, np.bool_),
            own["detected"].to_numpy(),
            own["confidence"].to_numpy().astype(np.float64),
        ).levels.tolist()
        assert seen
        assert sum(level in known for level in seen) >= 0.95 * len(seen)
        for table in tables:
            np.testing.assert_allclose(table.probabilities.sum(axis=1), 1)
