"""Transitions are fitted to the steps that occur; whole tables must give the same."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.privacy.mechanisms.optimal.memory.fitting import ComponentHistory, fit_component
from tacit.privacy.mechanisms.optimal.memory.profile_fits import (
    Firsts,
    StepIndex,
    StepModel,
    Steps,
    fit_transitions,
    predict_held_out,
)
from tacit.privacy.mechanisms.optimal.memory.transitions import (
    StepFeatures,
    Transitions,
    choose_layout,
)

SUBJECTS, GROUPS = 12, 5
SHAPES = [(1, 4, 48), (2, 2, 12), (2, 4, 1), (3, 1, 48), (8, 1, 12)]
"""Variables, profiles and divisions of the week."""


def draw_steps(variables: int, number: int, seed: int) -> Steps:
    """Values that last longer for some subjects than for others."""
    random = np.random.default_rng(seed)
    size = 1 << variables
    subject, before = random.integers(0, SUBJECTS, number), random.integers(0, size, number)
    lasts = random.random(number) < 0.3 + 0.6 * subject / SUBJECTS
    value = np.where(lasts, before, random.integers(0, size, number))
    there, here = random.integers(0, GROUPS, (2, number))
    features = StepFeatures(
        there, here, random.integers(0, 3, number), random.integers(0, 168, number)
    )
    return Steps(features, subject, before, value)


def make_model(variables: int, profiles: int, slots: int) -> StepModel:
    numbers = variables * 4 if variables > 6 else profiles << 2 * variables
    layout = choose_layout(np.arange(GROUPS, 0.0, -1), numbers, (0.3, 0.6), slots)
    return StepModel(layout, variables, profiles, (16.0, 128.0))


def fit(steps: Steps, model: StepModel) -> Transitions:
    return fit_transitions(steps, model, Firsts(steps.features.here, steps.value, steps.subject))


@pytest.mark.parametrize(("variables", "profiles", "slots"), SHAPES[:4])
def test_rows_that_occur_are_smoothed_as_in_whole_tables(
    variables: int, profiles: int, slots: int
) -> None:
    model = make_model(variables, profiles, slots)
    steps = draw_steps(variables, 600, 1)
    index = StepIndex.build(steps, model)
    shares = np.random.default_rng(2).dirichlet(np.ones(profiles), SUBJECTS)
    counts = index.count(index.places, steps.subject, shares)
    assert counts.sum() == pytest.approx(600)
    fitted = fit(steps, model)
    whole = np.zeros_like(fitted.counts)
    cells, before = np.divmod(index.rows, model.size)
    whole[cells, :, before] = counts
    expected = fitted.smooth(whole)[cells, :, before]
    assert index.smooth(counts, model.strengths) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("variables", "profiles", "slots"), SHAPES)
def test_held_out_steps_are_predicted_by_the_tables_of_a_fit(
    variables: int, profiles: int, slots: int
) -> None:
    model = make_model(variables, profiles, slots)
    known, held_out = draw_steps(variables, 500, 3), draw_steps(variables, 200, 4)
    fitted = fit(known, model)
    cells = model.layout.number(held_out.features)
    if model.joint:
        each = np.tile(np.log(fitted.weights), (SUBJECTS, 1))
        likely = np.log(fitted.tables[cells, :, held_out.before, held_out.value])
        np.add.at(each, held_out.subject, likely)
        expected = float(np.logaddexp.reduce(each, axis=1).sum())
    else:
        places = np.arange(variables)
        bits = (part[:, np.newaxis] >> places & 1 for part in (held_out.before, held_out.value))
        expected = float(np.log(fitted.tables[cells[:, np.newaxis], places, *bits]).sum())
    found = predict_held_out(known, held_out, model, SUBJECTS)
    assert found == pytest.approx(expected, rel=1e-6)


def test_profiles_tell_subjects_apart() -> None:
    steps = draw_steps(2, 4000, 5)
    one, two = (
        predict_held_out(steps, draw_steps(2, 1000, 6), make_model(2, profiles, 1), SUBJECTS)
        for profiles in (1, 2)
    )
    assert two > one + 5


@pytest.mark.parametrize("alike", [True, False])
def test_there_are_profiles_only_if_subjects_differ(alike: bool) -> None:
    random = np.random.default_rng(7)
    windows, subjects = 96, 120
    rates = np.full(subjects, 0.4) if alike else np.where(np.arange(subjects) % 2, 0.05, 0.75)
    values = (random.random((2, windows, subjects)) < rates).astype(np.int64)
    history = ComponentHistory(
        random.integers(0, GROUPS, (windows, subjects)),
        np.ones((windows, subjects), np.bool_),
        random.random((windows, subjects)),
        values[0] + 2 * values[1],
        np.ones((windows, subjects), np.bool_),
        np.arange(windows) // 6 % 168,
    )
    fitted = fit_component(history, GROUPS, 2)
    assert (len(fitted.weights) == 1) == alike
