"""Uniform, Sample, BD and BA: budgets for adversarial input, traces by hand, and the noise."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.evaluation.baselines import (
    BudgetAbsorption,
    BudgetDistribution,
    WEventSample,
    WEventUniform,
)
from tacit.evaluation.baselines.budget_absorption import absorb
from tacit.evaluation.baselines.budget_distribution import distribute
from tacit.evaluation.baselines.releases import NoiseKind, NoisyPresence
from tests.evaluation.baselines.settings import (
    PRIVATE,
    TYPES,
    Floats,
    Presence,
    rejects,
    scripted,
    setting,
    streams,
    windows,
)

Kernel = Callable[[Presence, float, int, Floats, Floats, bool], tuple[Floats, Floats, Floats]]
KERNELS = (distribute, absorb)


def error(share: float, response: bool) -> float:
    """How far a publication is from the truth on average."""
    return 1 / (1 + math.exp(share)) if response else 1 / share


def published(window: Presence, noise: Floats, share: float, response: bool) -> Floats:
    """A window with noise: flipped where the uniform draw is small, or with Laplace noise."""
    if response:
        return np.where(noise < error(share, True), 1.0 - window, 1.0 * window)
    return np.asarray(window + noise / share)


def slow_distribution(
    stream: Presence, total: float, w: int, noise: Floats, doubt: Floats, response: bool
) -> tuple[Floats, list[float], list[float]]:
    """BD for one subject, as the paper has it."""
    released: list[Floats] = []
    spent: list[float] = []
    tested: list[float] = []
    for step, window in enumerate(stream):
        recent = spent[-(w - 1) :] if w > 1 else []
        share = (total / 2 - sum(recent)) / 2
        publish, test = step == 0, 0.0
        if not publish:
            test = total / (2 * w)
            scale = 2 * w * 1 / (total * len(window))
            found = np.mean(np.abs(released[-1] - window)) + doubt[step] * scale
            publish = bool(found > error(share, response))
        told = published(window, noise[step], share, response)
        released.append(told if publish else released[-1])
        spent.append(share if publish else 0.0)
        tested.append(test)
    return np.array(released), spent, tested


def slow_absorption(
    stream: Presence, total: float, w: int, noise: Floats, doubt: Floats, response: bool
) -> tuple[Floats, list[float], list[float]]:
    """BA for one subject, by the step of the last publication and what it used."""
    released: list[Floats] = []
    spent: list[float] = []
    tested: list[float] = []
    unit, last, used = total / (2 * w), -1, 1
    for step, window in enumerate(stream):
        shares, test, publish = 1, 0.0, step == 0
        to_nullify = used - 1
        if step > 0 and step - last > to_nullify:
            shares = min(step - (last + to_nullify), w)
            test = unit
            scale = 2 * w * 1 / (total * len(window))
            found = np.mean(np.abs(released[-1] - window)) + doubt[step] * scale
            publish = bool(found > error(shares * unit, response))
        if publish:
            last, used = step, shares
        told = published(window, noise[step], shares * unit, response)
        released.append(told if publish else released[-1])
        spent.append(shares * unit if publish else 0.0)
        tested.append(test)
    return np.array(released), spent, tested


@given(st.data())
@pytest.mark.parametrize("kernel", KERNELS)
def test_no_w_steps_spend_more_than_epsilon_whatever_the_input_and_the_noise(
    kernel: Kernel, data: st.DataObject
) -> None:
    presence = data.draw(streams())
    total, w = data.draw(st.floats(1e-3, 1e3)), data.draw(st.integers(1, 12))
    width = data.draw(st.sampled_from([0.0, 1.0, 1e3]))
    noise = scripted(data, presence.shape, width)
    # Doubt as wild as this decides alone: any sequence of publications can be had.
    wild = st.lists(st.sampled_from([-1e9, 0.0, 1e9]), min_size=40, max_size=40)
    doubt = np.array([data.draw(wild)[: presence.shape[1]] for _ in presence])
    share = (BudgetDistribution if kernel is distribute else BudgetAbsorption)(w).largest_share
    spent, tested, _ = kernel(presence, total, w, noise, doubt, False)
    for begin in range(presence.shape[1]):
        steps = slice(begin, begin + w)
        assert (spent[:, steps].sum(axis=1) <= total / 2 * (1 + 1e-12)).all()
        assert ((spent + tested)[:, steps].sum(axis=1) <= total * (1 + 1e-12)).all()
    assert (spent + tested <= total * share * (1 + 1e-12)).all()
    assert (spent[:, 0] > 0).all()


@pytest.mark.parametrize(("kernel", "w"), [(k, w) for k in KERNELS for w in (1, 2, 5)])
def test_the_largest_share_of_a_step_is_reached(kernel: Kernel, w: int) -> None:
    """Nothing changes for long, and then everything does: the conversion wastes nothing."""
    presence = np.zeros((1, 3 * w + 2, 2), np.bool_)
    doubt = np.zeros((1, 3 * w + 2))
    doubt[0, -1] = 1e9
    doubt[0, 1:-1] = -1e9
    spent, tested, _ = kernel(presence, 7.0, w, np.zeros(presence.shape), doubt, False)
    share = (BudgetDistribution if kernel is distribute else BudgetAbsorption)(w).largest_share
    assert (spent + tested)[0, -1] == pytest.approx(7.0 * share)


def likelihood(
    presence: Presence,
    kind: type,
    total: float,
    w: int,
    release: NoisyPresence,
    response: bool = False,
) -> float:
    """The logarithm of the density of a release, for one subject, if this was present."""
    from scipy.stats import laplace

    values, spent, tested = (
        np.asarray(part)[0] for part in (release.values, release.spent, release.tested)
    )
    found, skipped = 0.0, 0
    for step, window in enumerate(presence):
        if kind is BudgetDistribution:
            share = (total / 2 - spent[max(0, step - w + 1) : step].sum()) / 2
        else:
            share = min(1 + skipped, w) * total / (2 * w)
        if tested[step]:
            distance = np.abs(values[step - 1] - window).mean()
            doubt = laplace(scale=1 / (len(window) * tested[step]))
            needed = error(share, response) - distance
            found += doubt.logsf(needed) if spent[step] else doubt.logcdf(needed)
            skipped += 1
        if spent[step]:
            skipped = 0
            away = np.abs(values[step] - window)
            if response:
                flip = error(share, True)
                found += np.log(np.where(away > 0.5, flip, 1 - flip)).sum()
            else:
                found += laplace(scale=1 / share).logpdf(away).sum()
    return float(found)


@settings(max_examples=20)
@given(st.data())
@pytest.mark.parametrize("noise", ["laplace", "response"])
@pytest.mark.parametrize("kind", [BudgetDistribution, BudgetAbsorption])
def test_no_release_tells_neighbours_apart_by_more_than_epsilon(
    kind: type[BudgetDistribution | BudgetAbsorption], noise: NoiseKind, data: st.DataObject
) -> None:
    """Neighbours with respect to a pattern: any of its elements may differ in one window."""
    steps, w = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 5))
    epsilon = data.draw(st.sampled_from([0.5, 6.0, 40.0]))
    presence = windows(steps, data.draw(st.integers(0, 2**32)), subjects=1)
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    release = kind(w, noise).release(presence, setting(), epsilon, random)
    total = kind(w).budget(setting(), epsilon)
    where = data.draw(st.integers(0, steps - 1))
    pattern = [TYPES.index(name) for name in data.draw(st.sampled_from(PRIVATE))]
    neighbour = presence.copy()
    neighbour[0, where, pattern] = data.draw(
        st.lists(st.booleans(), min_size=len(pattern), max_size=len(pattern))
    )
    one, other = (
        likelihood(p[0], kind, total, w, release, noise == "response")
        for p in (presence, neighbour)
    )
    assert abs(one - other) <= release.loss(len(pattern))[0, where] + 1e-9
    assert abs(one - other) <= epsilon + 1e-9


@pytest.mark.parametrize("w", [1, 3])
@pytest.mark.parametrize("kind", [BudgetDistribution, BudgetAbsorption])
def test_some_release_tells_neighbours_apart_by_epsilon(
    kind: type[BudgetDistribution | BudgetAbsorption], w: int
) -> None:
    """Nothing is published for long, and then values far above any presence.

    The last release is 0, so every event that is there takes the window further from it.
    """
    kernel = distribute if kind is BudgetDistribution else absorb
    total = 2.0 / 3 / kind(w).largest_share
    presence = np.zeros((1, 10, 4), np.bool_)
    doubt = np.full((1, 10), -1e3)
    noise = np.zeros(presence.shape)
    doubt[0, -1], noise[0, -1] = 1e3, 50.0
    spent, tested, _ = kernel(presence, total, w, noise, doubt, False)
    release = NoisyPresence(noise, np.zeros((1, 10), np.uint8), np.zeros((1, 4)), spent, tested)
    neighbour = presence.copy()
    neighbour[0, -1, 1:] = True
    one, other = (likelihood(p[0], kind, total, w, release) for p in (neighbour, presence))
    assert spent[0, 1:-1].sum() == 0
    assert one - other == pytest.approx(2.0)
    assert release.loss(3)[0, -1] == pytest.approx(2.0)


@given(st.data())
@pytest.mark.parametrize("response", [False, True])
@pytest.mark.parametrize(
    ("kernel", "slow"), [(distribute, slow_distribution), (absorb, slow_absorption)]
)
def test_the_compiled_walk_equals_the_slow_one(
    kernel: Kernel,
    slow: Callable[..., tuple[Floats, list[float], list[float]]],
    response: bool,
    data: st.DataObject,
) -> None:
    presence = data.draw(streams())
    total, w = data.draw(st.sampled_from([0.7, 9.0, 60.0])), data.draw(st.integers(1, 7))
    noise = scripted(data, presence.shape, 1.0)
    if response:
        noise = np.abs(noise) % 1.0
    doubt = scripted(data, presence.shape[:2], 1.0)
    expected = [
        slow(presence[n], total, w, noise[n], doubt[n], response) for n in range(len(presence))
    ]
    spent, tested, _ = kernel(presence, total, w, noise, doubt, response)
    for subject, (values, published, tests) in enumerate(expected):
        assert noise[subject] == pytest.approx(values)
        assert spent[subject] == pytest.approx(published)
        assert tested[subject] == pytest.approx(tests)


def test_a_trace_of_budget_distribution_by_hand() -> None:
    """w = 3, E = 24: tests cost 4 each, and 12 are there for publications.

    Step 0 is published with 6. Step 1 has 6 left, so 3: it is published where the distance is
    above 1/3, and it is 1/2. Step 2 has 3 left, so 1.5, and no distance above 2/3: repeated.
    Step 3 has 9 left, since step 0 is out of sight: 4.5, and a distance above 2/9 by its noise
    (doubt counts 2 * 3 / (24 * 2) = 1/8). At step 4 step 1 is out of sight: 7.5 left, 3.75, and
    all is still.
    """
    presence = np.array([[[0, 0], [1, 0], [1, 1], [1, 0], [1, 0]]], np.bool_)
    noise = np.array([[[0.0, 0], [0.3, -0.6], [9, 9], [0, 4.5], [9, 9]]])
    doubt = np.array([[9.0, 0, 0, 4, -8]])
    spent, tested, _ = distribute(presence, 24.0, 3, noise, doubt, False)
    assert spent.tolist() == [[6, 3, 0, 4.5, 0]]
    assert tested.tolist() == [[0, 4, 4, 4, 4]]
    assert noise[0] == pytest.approx(np.array([[0, 0], [1.1, -0.2], [1.1, -0.2], [1, 1], [1, 1]]))


def test_a_trace_of_budget_absorption_by_hand() -> None:
    """w = 3, E = 24: a share is 4, and a test costs 4.

    Step 0 is published with one share. Steps 1 and 2 are still and skipped. Step 3 may use 3
    shares, 12, and changes by more than 1/12: published, which nullifies steps 4 and 5 though
    they differ. Step 6 has a share of its own, and its distance is 1, above 1/4. Step 7 has one
    again and differs by 1/2; its doubt of -3 counts 3 / (4 * 2) = 3/8, so 1/8 is too little.
    """
    presence = np.array(
        [[[0, 0], [0, 0], [0, 0], [1, 1], [0, 0], [0, 0], [0, 0], [1, 0]]], np.bool_
    )
    noise = np.zeros(presence.shape)
    noise[0, 3] = [1.2, -1.2]
    noise[0, 6] = [-0.4, 0.4]
    doubt = np.array([[0.0, 0, 0, 0, 99, 99, 0, -3]])
    spent, tested, _ = absorb(presence, 24.0, 3, noise, doubt, False)
    assert spent.tolist() == [[4, 0, 0, 12, 0, 0, 4, 0]]
    assert tested.tolist() == [[0, 4, 4, 4, 0, 0, 4, 4]]
    still, changed, again = [0.0, 0], [1.1, 0.9], [-0.1, 0.1]
    assert noise[0] == pytest.approx(
        np.array([still, still, still, changed, changed, changed, again, again])
    )


def test_a_share_too_small_to_divide_by_is_never_published() -> None:
    presence = np.tile(np.array([False, True]), 1500).reshape(1, 3000, 1)
    noise, doubt = np.zeros(presence.shape), np.full((1, 3000), 1e300)
    spent, _, _ = distribute(presence, 1.0, 3000, noise, doubt, False)
    assert spent.sum() <= 0.5
    assert np.isfinite(noise).all()


@pytest.mark.parametrize(
    "baseline", [WEventUniform(3), WEventSample(3), BudgetDistribution(3), BudgetAbsorption(3)]
)
def test_published_noise_has_the_scale_that_was_spent_and_no_other(
    baseline: WEventUniform | WEventSample | BudgetDistribution | BudgetAbsorption,
) -> None:
    presence = windows(60, 2, subjects=300)
    release = baseline.release(presence, setting(), 9.0, np.random.default_rng(5))
    published = release.spent > 0
    noise = (release.values - presence)[published] * release.spent[published][:, None]
    # The first step is published whatever comes; later ones depend on earlier noise alone.
    assert not rejects(noise.ravel(), 1.0)
    assert rejects(noise.ravel(), 1.05)
    assert rejects(noise.ravel(), 0.95)


@pytest.mark.cases(4)
@pytest.mark.parametrize("epsilon", [0.5, 4.0])
@pytest.mark.parametrize(
    ("baseline", "shares"),
    [
        (WEventUniform(4), 4),
        (WEventSample(4), 1),
        (BudgetDistribution(4), 1 / (1 / 8 + 1 / 4)),
        (BudgetAbsorption(4), 1 / (1 / 8 + 1 / 2)),
    ],
)
def test_no_window_gives_away_more_of_a_pattern_than_epsilon(
    baseline: WEventUniform | WEventSample | BudgetDistribution | BudgetAbsorption,
    shares: float,
    epsilon: float,
) -> None:
    presence = windows(300, 6, subjects=3)
    release = baseline.release(presence, setting(), epsilon, np.random.default_rng(6))
    assert release.loss(3).max() <= epsilon * (1 + 1e-12)
    own = shares * epsilon / 3
    total = release.spent + release.tested
    for begin in range(297):
        assert (total[:, begin : begin + 4].sum(axis=1) <= own * (1 + 1e-12)).all()


def test_sample_repeats_the_first_of_every_w_windows() -> None:
    presence = windows(7, 8)
    release = WEventSample(3).release(presence, setting(), 1e4, np.random.default_rng(1))
    assert (release.bits == presence[[0, 0, 0, 3, 3, 3, 6]]).all()
    assert release.grades.tolist() == [1, 0, 0, 1, 0, 0, 1]


def test_subjects_are_walked_through_on_their_own() -> None:
    """What one subject's stream is does not change what another one's budgets are."""
    presence = windows(50, 9, subjects=2)
    for kernel in KERNELS:
        shape, chance = presence.shape, np.random.default_rng(3)
        noise, doubt = chance.laplace(size=shape), chance.laplace(size=shape[:2])
        both, one = noise.copy(), noise[1:].copy()
        spent, _, _ = kernel(presence, 9.0, 4, both, doubt, False)
        alone, _, _ = kernel(presence[1:], 9.0, 4, one, doubt[1:], False)
        assert (both[1:] == one).all()
        assert (spent[1:] == alone).all()


@pytest.mark.parametrize(
    "baseline", [WEventUniform(3), WEventSample(3), BudgetDistribution(3), BudgetAbsorption(3)]
)
def test_published_bits_are_wrong_as_often_as_their_grade_says(
    baseline: WEventUniform | WEventSample | BudgetDistribution | BudgetAbsorption,
) -> None:
    presence = windows(60, 2, subjects=300)
    release = baseline.release(presence, setting(), 12.0, np.random.default_rng(5))
    wrong = release.bits != presence
    seen = 0
    for grade in range(1, len(release.flips)):
        here = release.grades == grade
        if here.sum() < 500:
            continue
        seen += 1
        spent = release.spent[here]
        deviation = 0.5 / np.sqrt(4 * len(spent))
        assert wrong[here].mean() == pytest.approx(
            (np.exp(-spent / 2) / 2).mean(), abs=4 * deviation
        )
        # A grade is a quarter of an octave wide on either side.
        level = -2 * np.log(2 * release.flips[grade, 0])
        assert level * 2**-0.26 <= spent.min() <= spent.max() <= level * 2**0.26
    assert seen
