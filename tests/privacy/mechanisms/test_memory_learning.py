"""Learning: steps are counted as the symbols have them, and transitions and thresholds follow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tacit.privacy.mechanisms.optimal.mechanism import Optimal
from tacit.privacy.mechanisms.optimal.memory import learning
from tacit.privacy.mechanisms.optimal.memory.beliefs import BeliefFilter
from tacit.privacy.mechanisms.optimal.memory.learning import (
    LearnedSteps,
    LearnedThresholds,
    StepLearner,
    ThresholdLearner,
    measure_drift,
)
from tacit.privacy.mechanisms.optimal.memory.planning import make_filters
from tacit.privacy.mechanisms.optimal.memory.protector import CONFIDENCES
from tacit.privacy.quality import Confusion, QualityObjective
from tacit.spec.specification import Specification
from tests.privacy.mechanisms.test_memory_beliefs import SPECIFICATIONS, pack
from tests.privacy.memories import plan_by_hand, remembering

Floats = NDArray[np.float64]
FORGET = 0.9


ONE = remembering([("a", "3")], ["a"], "as")


def make_filter(spec: Specification, **more: Any) -> BeliefFilter:
    """The filter of the only component of a specification."""
    (mechanism,) = plan_by_hand(spec, 1, **more).mechanisms
    assert isinstance(mechanism, Optimal)
    assert mechanism.memory is not None
    (own,) = mechanism.memory
    (one,) = make_filters(mechanism.parts, [own.transitions], [own.candidates])
    return one


def count_one_by_one(
    one: BeliefFilter, before: Any, predicted: Any, after: Any, table: Floats, row: int
) -> tuple[int, Floats, Floats]:
    """The cell of a subject's step, and its steps by history and as the symbols have them."""
    stored = before.beliefs[row].astype(np.float64)
    share = stored / stored.sum(axis=None if one.joint else 1, keepdims=True)
    cell = int(predicted.cells[row])
    ratio = after.beliefs[row] / predicted.beliefs[row]
    usual = one.find_tables(predicted.slot)[cell][..., : share.shape[1]]
    by_history = share[:, :, np.newaxis] * usual
    by_symbols = share[:, :, np.newaxis] * table[cell] * ratio[:, np.newaxis, :]
    return cell, by_history, by_symbols


@pytest.mark.parametrize(("name", "profiles"), [("one variable", 2), ("joint", 3), ("factored", 1)])
def test_steps_are_counted_as_the_symbols_have_them(name: str, profiles: int) -> None:
    one = make_filter(SPECIFICATIONS[name], profiles=profiles)
    learner, rng, subjects = StepLearner(one, FORGET), np.random.default_rng(3), 12
    component = one.tables.component
    state, known = one.start(subjects), LearnedSteps.start(one.transitions)
    expected = np.zeros(known.steps.shape)
    for window in range(1, 20):
        signals = pack(rng.random((subjects, len(component.signals))) < 0.5)
        values = pack(rng.random((subjects, len(component.variables))) < 0.4)
        predicted = one.predict(state, signals, 0)
        symbols = one.draw(predicted, values, rng.random(subjects) < 0.2)
        after = one.update(state, predicted, symbols)
        if learning.is_counted(window):
            counted = rng.random(subjects) < 0.7
            table = learner.tables(known, predicted.slot)[..., : state.beliefs.shape[2]]
            expected *= FORGET**5
            for row in np.flatnonzero(counted & (state.groups >= 0)).tolist():
                cell, *both = count_one_by_one(
                    one, state, predicted, after, table.astype(np.float64), row
                )
                for place, steps in enumerate(both):
                    expected[place, cell] += steps
            learner.count(known, state, predicted, after, counted)
            before, known = known, learner.learn(known, predicted.slot, window)
            np.testing.assert_allclose(known.steps, expected, atol=2e-4, rtol=2e-3)
            if window % 15:
                assert known.factors is before.factors
            else:
                quotient = (expected[1] + 100) / (expected[0] + 100)
                np.testing.assert_allclose(known.factors, quotient, rtol=1e-3)
                assert known.factors.min() < 1 < known.factors.max()
        state = after.state
    drift = np.abs(expected[1] - expected[0]).sum() / (2 * expected[0].sum())
    assert measure_drift({"policy0.0.steps": known.steps}) == pytest.approx(drift, abs=2e-3)


def follow(one: BeliefFilter, lasting: float | None) -> tuple[float, float, float]:
    """Values over 200 windows: in history's way, or lasting with a probability and else drawn anew.

    Both have the same share of each value. Returns how far the transitions are from the true ones,
    those of history and those that were learned, and the drift.
    """
    learner, rng, subjects = StepLearner(one, 1.0), np.random.default_rng(4), 300
    state, known = one.start(subjects), LearnedSteps.start(one.transitions)
    signals = np.zeros((subjects, 1), np.uint64)  # nothing is public
    usual = one.find_tables(0)[2, 0, :2, :2].astype(np.float64)  # often open, as it is here
    share = usual[0, 1] / (usual[0, 1] + usual[1, 0])
    usually = np.array([1 - share, share])
    true = usual if lasting is None else lasting * np.eye(2) + (1 - lasting) * usually
    values = (rng.random(subjects) < share).astype(np.int64)
    for window in range(200):
        values = (rng.random(subjects) < true[values, 1]).astype(np.int64)
        predicted = one.predict(state, signals, 0)
        symbols = one.draw(
            predicted, values[:, np.newaxis].astype(np.uint64), np.zeros(subjects, np.bool_)
        )
        after = one.update(state, predicted, symbols)
        if learning.is_counted(window):
            learner.count(known, state, predicted, after, np.ones(subjects, np.bool_))
            known = learner.learn(known, predicted.slot, window)
        state = after.state
    assert (predicted.cells == 2).all()
    learned = learner.tables(known, 0)[2, 0, :2, :2]
    drift = measure_drift({"policy0.0.steps": known.steps})
    assert drift is not None
    before, now = (float(usually @ np.abs(part - true).sum(axis=1)) for part in (usual, learned))
    return before, now, drift


def test_transitions_follow_a_world_that_has_moved() -> None:
    one = make_filter(ONE, lasting=40.0)
    before, now, little = follow(one, None)
    assert before == 0
    assert now < 0.04
    for lasting in (0.0, 0.97):
        before, now, drift = follow(one, lasting)
        assert now < 0.5 * before
        assert drift > 4 * little


def learn_thresholds(
    levels: NDArray[np.int64], planned: Floats, *, macro: bool = False, window: int = 15
) -> Floats:
    objective = QualityObjective((0.5,) * len(planned), macro=macro)
    private = list(range(len(planned)))
    learner = ThresholdLearner(planned, CONFIDENCES, objective, private, FORGET)
    return learner.learn(LearnedThresholds.start(planned), levels, window).thresholds


def find_best(levels: NDArray[np.int64]) -> float:
    """The confidence from which on a yes is best, by trying all of them."""
    share, best = CONFIDENCES, (-1.0, 0.0)
    for level in range(1, len(share)):
        yes = np.arange(len(share)) >= level
        tp, fp = float((levels * share)[yes].sum()), float((levels * (1 - share))[yes].sum())
        found = Confusion(tp, fp, float((levels * share).sum()) - tp).quality(0.5)
        best = max(best, (found, float(share[level])), key=lambda tried: tried[0])
    return best[1]


@pytest.mark.parametrize("macro", [False, True])
def test_thresholds_follow_recent_answers_where_that_is_clearly_better(*, macro: bool) -> None:
    rare = np.zeros((1, len(CONFIDENCES)), np.int64)
    rare[0, [1, 60, 90]] = 8000, 3000, 400  # a tenth of them is what the plan took for likely
    planned = np.array([0.5])
    best = find_best(rare[0])
    assert best < 0.3
    assert learn_thresholds(rare, planned, macro=macro)[0] == best
    # Not between refreshments, not after few answers, and not for next to nothing.
    assert learn_thresholds(rare, planned, macro=macro, window=16)[0] == 0.5
    assert learn_thresholds(rare // 3, planned, macro=macro)[0] == 0.5
    clear = np.zeros_like(rare)
    clear[0, [1, 254]] = 9000, 3000
    assert learn_thresholds(clear, planned, macro=macro)[0] == 0.5
