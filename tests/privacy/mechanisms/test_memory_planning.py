"""Memory of plans: what is chance is not remembered, and windows may be counted together."""

from __future__ import annotations

from fractions import Fraction
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from tacit.patterns.language import parse_pattern
from tacit.privacy.mechanisms.optimal.memory import fitting
from tacit.privacy.mechanisms.optimal.memory.fitting import (
    ComponentHistory,
    can_predict,
    fit_component,
)
from tacit.privacy.mechanisms.optimal.memory.simulation import (
    SimulatedWindow,
    TrueAnswers,
    count_windows,
)
from tacit.privacy.policies import Policy, PrivatePattern
from tacit.privacy.refinement import refine_exposure
from tacit.privacy.sequences import ComponentSequence, Sequences
from tacit.privacy.thresholds import PosteriorCounts


def make_history(rng: np.random.Generator, stays: float) -> ComponentHistory:
    """One variable of 50 subjects in 200 windows, which keeps its value with a probability."""
    windows, subjects = 200, 50
    values = np.empty((windows, subjects), np.int64)
    values[0] = rng.random(subjects) < 0.5
    for window in range(1, windows):
        fresh = rng.random(subjects) < 0.5
        values[window] = np.where(rng.random(subjects) < stays, values[window - 1], fresh)
    shape = values.shape
    return ComponentHistory(
        np.zeros(shape, np.int64),
        np.ones(shape, np.bool_),
        np.full(shape, 0.5),
        values,
        np.ones(shape, np.bool_),
        np.arange(windows) % 168,
    )


def test_independent_windows_predict_nothing() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        history = make_history(rng, 0.0)
        assert not can_predict(history, fit_component(history, 1, 1), 1)


def test_windows_that_depend_on_those_before_predict_them() -> None:
    history = make_history(np.random.default_rng(2), 0.3)
    fitted = fit_component(history, 1, 1)
    assert can_predict(history, fitted, 1)
    assert can_predict(history, fitted, 1, components=1000)


@pytest.mark.parametrize(("components", "expected"), [(1, True), (100, False)])
def test_among_many_components_one_must_predict_better(components: int, expected: bool) -> None:
    history = make_history(np.random.default_rng(3), 0.0)
    fitted = fit_component(history, 1, 1)

    def gain(*_given: Any) -> float:
        return 4.0  # for each of two stretches

    with (
        patch.object(fitting, "predict_held_out", gain),
        patch.object(fitting, "_predict_alone", lambda *_given: 0.0),
    ):
        assert can_predict(history, fitted, 1, components) == expected


def test_windows_counted_together_are_counted_as_one_by_one() -> None:
    rng = np.random.default_rng(4)
    policy = Policy(
        (
            PrivatePattern("p", frozenset({"a", "b"}), Fraction(1)),
            PrivatePattern("q", frozenset({"c"}), Fraction(1)),
        )
    )
    texts = ("AND(a, x)", "OR(a, b)", "AND(c, NOT(y))", "AND(a, c, x)", "x")
    _, exposure = refine_exposure(policy, [parse_pattern(text) for text in texts])
    windows, subjects = 7, 5
    sequences = Sequences(
        np.arange(windows) * 3_600_000_000,
        rng.random((windows, subjects)) < 0.8,
        tuple(
            ComponentSequence(
                rng.integers(0, 1 << len(one.signals), (windows, subjects, 1), np.uint64),
                rng.integers(0, 1 << len(one.variables), (windows, subjects, 1), np.uint64),
            )
            for one in exposure.components
        ),
    )
    simulated = [
        SimulatedWindow(
            number,
            (),
            np.zeros(subjects, np.bool_),
            tuple(
                rng.random((subjects, len(one.parts)), np.float32) for one in exposure.components
            ),
        )
        for number in range(2, windows)
    ]
    truth = TrueAnswers(exposure)
    together, singly = (PosteriorCounts.zeros(len(texts)) for _ in range(2))
    rows = count_windows(together, truth, sequences, simulated)
    assert rows == sequences.known[2:].sum()
    assert rows == sum(count_windows(singly, truth, sequences, [one]) for one in simulated)
    np.testing.assert_array_equal(together.true, singly.true)
    np.testing.assert_array_equal(together.false, singly.false)
    assert together.true.sum() + together.false.sum() == 4 * rows  # the last query is exact
