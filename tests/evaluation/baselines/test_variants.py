"""Variants of baselines: what they grant, and what they may spend."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tacit.errors import PrivacyError
from tacit.evaluation.baselines import (
    BASELINES,
    VARIANTS,
    Baseline,
    BudgetAbsorption,
    BudgetDistribution,
    PrivateTypes,
    Setting,
    WEventSample,
    WEventUniform,
    make_daily,
    measure,
)
from tacit.evaluation.baselines.landmark import LandmarkAdaptive, LandmarkUniform
from tacit.patterns.tree import And
from tests.evaluation.baselines.settings import TYPES, windows

SMALL = Setting(TYPES, (frozenset("ab"),), (And("a", "c"), And("b", "d")), windows(400, 1))
EVERY = [(name, one) for name, several in VARIANTS.items() for one in several]
every = pytest.mark.parametrize(
    ("variant", "baseline"), EVERY, ids=[f"{name}, {one.name}" for name, one in EVERY]
)


@pytest.mark.cases(7)
@every
def test_a_variant_spends_what_its_calibration_allows(variant: str, baseline: Baseline) -> None:
    """Epsilon in each window, or w * epsilon in any w windows in a row."""
    presence = windows(300, 6, subjects=3)
    loss = baseline.release(presence, SMALL, 2.0, np.random.default_rng(6)).loss(2)
    if variant != "same total":
        assert loss.max() <= 2.0 * (1 + 1e-12)
        return
    assert isinstance(baseline, PrivateTypes)
    inner = baseline.inner
    assert isinstance(inner, WEventSample | BudgetDistribution | BudgetAbsorption)
    sums = [loss[:, begin : begin + inner.w].sum(axis=1).max() for begin in range(300 - inner.w)]
    assert max(sums) <= 2.0 * inner.w * (1 + 1e-9)
    assert loss.max() > 2.0, "otherwise the calibration grants nothing"


@every
def test_all_but_the_published_release_public_types_unchanged(
    variant: str, baseline: Baseline
) -> None:
    presence = windows(300, 6, subjects=3)
    release = baseline.release(presence, SMALL, 1.0, np.random.default_rng(6))
    public = (release.bits == presence)[..., 2:].all()
    assert public == (variant != "as published")
    assert not (release.bits == presence)[..., :2].all()


def test_private_types_are_released_as_by_the_baseline_on_them_alone() -> None:
    presence = windows(300, 6, subjects=3)
    for baseline in BASELINES:
        if not baseline.uses_epsilon:
            continue
        whole = PrivateTypes(baseline).release(presence, SMALL, 3.0, np.random.default_rng(1))
        alone = baseline.release(
            presence[..., :2], SMALL.private_part, 3.0, np.random.default_rng(1)
        )
        np.testing.assert_array_equal(whole.values[..., :2], alone.values)
        np.testing.assert_array_equal(whole.spent, alone.spent)


@pytest.mark.parametrize("published", [True, False])
def test_over_a_day_no_day_of_windows_costs_more_than_epsilon(published: bool) -> None:
    presence, day = windows(200, 6, subjects=3), 24
    for baseline in make_daily(day, published=published):
        release = baseline.release(presence, SMALL, 12.0 / day, np.random.default_rng(6))
        loss = release.loss(2)
        sums = [loss[:, begin : begin + day].sum(axis=1).max() for begin in range(200 - day)]
        assert max(sums) <= 12.0 * (1 + 1e-9)


def test_randomised_response_is_never_noisier_than_laplace_noise_of_the_same_epsilon() -> None:
    presence = windows(60, 2, subjects=300)
    for kind in (WEventUniform, LandmarkUniform, WEventSample, LandmarkAdaptive):
        some: Any = kind()
        wrong = []
        for one in (some, replace(some, noise="response")):
            release = one.release(presence, SMALL, 3.0, np.random.default_rng(1))
            wrong.append((release.bits != presence)[release.grades > 0].mean())
        assert wrong[1] == pytest.approx(1 / (1 + np.exp(1.5)), abs=0.005)
        assert wrong[1] < wrong[0] - 0.02


def test_posterior_decoding_treats_public_types_as_exact_even_in_repeated_releases() -> None:
    """A query over public types alone is answered without an error."""
    setting = replace(SMALL, queries=(And("c", "d"),))
    for baseline in VARIANTS["same total"]:
        found = measure(baseline, setting, windows(300, 8), 0.1, np.random.default_rng(2))
        assert found["posterior"].total().mre(0.5) == 0


@pytest.mark.parametrize("kind", [BudgetDistribution, BudgetAbsorption, WEventSample])
def test_an_unknown_variant_is_refused(kind: Any) -> None:
    with pytest.raises(PrivacyError, match="noise must be"):
        kind(2, "gaussian")
    with pytest.raises(PrivacyError, match="calibration must be"):
        kind(2, "laplace", "mean")
