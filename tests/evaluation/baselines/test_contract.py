"""What every baseline must do: shapes, seeds, losses, and refusing what is no epsilon."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from time import process_time
from typing import Any

import numpy as np
import pytest

from tacit.errors import PatternError, PrivacyError
from tacit.evaluation.baselines import (
    BASELINES,
    Baseline,
    BudgetAbsorption,
    BudgetDistribution,
    Setting,
    UserLevel,
    WEventSample,
    WEventUniform,
    measure,
)
from tacit.evaluation.synthetic import draw_data_set
from tacit.patterns.tree import And, Name, Seq
from tests.evaluation.baselines.settings import PRIVATE, TYPES, setting, windows

every = pytest.mark.parametrize("baseline", BASELINES, ids=lambda baseline: baseline.name)


def test_names_are_distinct() -> None:
    assert len({baseline.name for baseline in BASELINES}) == len(BASELINES)


@every
@pytest.mark.parametrize("subjects", [None, 1, 3])
def test_a_release_has_the_shape_of_the_presence(baseline: Baseline, subjects: int | None) -> None:
    presence = windows(70, 2, subjects)
    kept = presence.copy()
    release = baseline.release(presence, setting(), 1.5, np.random.default_rng(1))
    assert release.values.shape == release.bits.shape == presence.shape
    assert release.grades.shape == release.spent.shape == release.tested.shape
    assert release.grades.shape == presence.shape[:-1]
    assert release.grades.max() < len(release.flips)
    assert (presence == kept).all()
    for found in measure(baseline, setting(), presence, 1.5, np.random.default_rng(1)).values():
        assert found.tp.shape == (3,)


@every
def test_one_subject_is_the_same_with_and_without_its_own_dimension(baseline: Baseline) -> None:
    presence = windows(70, 2)
    flat, deep = (
        baseline.release(shape, setting(), 2, np.random.default_rng(3)).values
        for shape in (presence, presence[None])
    )
    assert (flat == deep[0]).all()


@every
def test_the_same_seed_gives_the_same_release(baseline: Baseline) -> None:
    presence = windows(70, 2)
    one, other = (
        baseline.release(presence, setting(), amount, np.random.default_rng(9)).values
        for amount in (Fraction(5, 2), Decimal("2.5"))
    )
    assert (one == other).all()


@every
def test_no_window_gives_away_more_than_epsilon_unless_no_epsilon_bounds_it(
    baseline: Baseline,
) -> None:
    presence = windows(500, 4)
    release = baseline.release(presence, setting(), 2.0, np.random.default_rng(2))
    unbounded = np.isinf(release.loss(setting().longest)).any()
    assert unbounded == (baseline.name == "suppression")
    if not unbounded:
        assert release.loss(setting().longest).max() <= 2.0 * (1 + 1e-12)


@every
@pytest.mark.parametrize(
    "epsilon", [0, -1, 0.0, float("inf"), float("nan"), Decimal("inf"), "1", None, True]
)
def test_what_is_no_epsilon_is_refused(baseline: Baseline, epsilon: Any) -> None:
    with pytest.raises(PrivacyError, match="epsilon must be a"):
        baseline.release(windows(5, 1), setting(), epsilon, np.random.default_rng(0))


@every
@pytest.mark.parametrize("shape", [(5,), (5, 3), (2, 2, 5, 4)])
def test_presence_of_another_shape_is_refused(baseline: Baseline, shape: tuple[int, ...]) -> None:
    with pytest.raises(PrivacyError, match="presence must be"):
        baseline.release(np.zeros(shape, np.bool_), setting(), 1.0, np.random.default_rng(0))


@every
def test_numbers_in_place_of_truth_values_are_refused(baseline: Baseline) -> None:
    counts: Any = np.zeros((5, 4))
    with pytest.raises(PrivacyError, match="must be bools"):
        baseline.release(counts, setting(), 1.0, np.random.default_rng(0))


@every
def test_no_windows_make_an_empty_release(baseline: Baseline) -> None:
    none = np.zeros((0, 4), np.bool_)
    release = baseline.release(none, setting(), 1.0, np.random.default_rng(0))
    assert release.values.shape == (0, 4)


@pytest.mark.parametrize("w", [0, -3, 2.5, True, "4"])
@pytest.mark.parametrize(
    "kind", [WEventUniform, WEventSample, BudgetDistribution, BudgetAbsorption]
)
def test_what_is_no_number_of_steps_is_refused(kind: Any, w: Any) -> None:
    with pytest.raises(PrivacyError, match="whole number of steps"):
        kind(w)


def test_a_user_level_over_anything_else_is_refused() -> None:
    kind: Any = UserLevel
    with pytest.raises(PrivacyError, match="'window' or 'stream'"):
        kind("day")


def test_settings_that_make_no_sense_are_refused() -> None:
    history = windows(5, 1)
    with pytest.raises(PrivacyError, match="needs private patterns"):
        Setting(TYPES, (), (), history)
    with pytest.raises(PrivacyError, match="needs private patterns"):
        Setting(TYPES, (frozenset(),), (), history)
    with pytest.raises(PrivacyError, match="'e'"):
        Setting(TYPES, (frozenset("ae"),), (), history)
    with pytest.raises(PatternError, match="'e'"):
        Setting(TYPES, PRIVATE, (Name("e"),), history)
    with pytest.raises(PatternError, match="not order"):
        Setting(TYPES, PRIVATE, (Seq("a", "b"),), history)
    with pytest.raises(PrivacyError, match="presence must be"):
        Setting(TYPES, PRIVATE, (), history[:, :2])
    names = tuple(f"e{n}" for n in range(13))
    with pytest.raises(PatternError, match="at most 12"):
        Setting(names, (frozenset({"e0"}),), (And(*names),), np.zeros((1, 13), np.bool_))


@pytest.mark.soak
@every
def test_a_thousand_windows_of_twenty_types_take_about_a_millisecond(baseline: Baseline) -> None:
    drawn = draw_data_set(1)
    here = Setting.of(drawn.spec, drawn.history)
    random = np.random.default_rng(0)
    baseline.release(drawn.test, here, 3, random)
    taken = []
    for _ in range(9):
        begin = process_time()
        baseline.release(drawn.test, here, 3, random)
        taken.append(process_time() - begin)
    assert min(taken) < 0.005
