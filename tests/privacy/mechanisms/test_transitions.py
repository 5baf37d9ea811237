"""Transitions: smoothing only the rows that occur gives what smoothing whole tables gives."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.privacy.mechanisms.optimal.memory.profile_fits import (
    Firsts,
    Model,
    StepIndex,
    Steps,
    fit_transitions,
)
from tacit.privacy.mechanisms.optimal.memory.transitions import (
    StepFeatures,
    Transitions,
    choose_layout,
)

STRENGTHS = (10.0, 5.0)


@pytest.mark.parametrize("slots", [1, 12, 48])
@pytest.mark.parametrize(("size", "profiles"), [(1, 2), (2, 1), (4, 2), (8, 4)])
@pytest.mark.parametrize("rows", [3, 400])
def test_rows_that_occur_are_smoothed_as_in_whole_tables(
    slots: int, size: int, profiles: int, rows: int
) -> None:
    random = np.random.default_rng(rows + slots)
    layout = choose_layout(np.array([5.0, 3.0, 1.0]), profiles * size * size, (0.2, 0.6), slots)
    assert layout.slots == slots
    found = np.unique(random.integers(layout.cells * size, size=rows))
    number = np.arange(len(found))
    index = StepIndex(layout, size, number, found, number, number % size)
    counts = 20 * random.random((len(found), profiles, size))
    whole = np.zeros((layout.cells * size, profiles, size))
    whole[found] = counts
    cells = whole.reshape(layout.cells, size, profiles, size).swapaxes(1, 2)
    weights, starts = np.full(profiles, 1 / profiles), np.ones((layout.kinds, profiles, size))
    tables = Transitions(layout, True, weights, cells, starts, STRENGTHS).smooth(cells)
    assert np.allclose(tables.sum(axis=-1), 1)
    expected = tables.swapaxes(1, 2).reshape(-1, profiles, size)[found]
    assert np.allclose(index.smooth(counts, STRENGTHS), expected, rtol=1e-12, atol=0)


def test_subjects_that_differ_get_profiles_that_differ() -> None:
    """Half of the subjects stay where they are, the others always end at 1."""
    subjects, steps = 40, 60
    subject = np.repeat(np.arange(subjects), steps)
    before = np.tile(np.arange(steps) % 2, subjects)
    value = np.where(subject % 2, before, 1)
    nothing = np.zeros_like(subject)
    taken = Steps(StepFeatures(nothing, nothing, nothing, nothing), subject, before, value)
    layout = choose_layout(np.ones(1), 8, (0.2, 0.6), 1)
    firsts = Firsts(nothing[:subjects], before[:subjects], np.arange(subjects))
    fitted = fit_transitions(taken, Model(layout, 1, 2, STRENGTHS), firsts)
    assert fitted.weights == pytest.approx([0.5, 0.5], abs=0.05)
    assert fitted.counts.sum() == pytest.approx(subjects * steps)
    assert fitted.starts.sum() == pytest.approx(subjects)
    staying = np.sort(fitted.tables[0, :, 0, 0])
    assert staying[0] < 0.1 < 0.9 < staying[1]
