"""Methods that release counts over a day: what they spend, and what they do on simple series."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.errors import PrivacyError
from tacit.evaluation.baselines.count_series import (
    CountMethod,
    CountSetting,
    Floats,
    KalmanFilter,
    PidController,
    TunedMethod,
)
from tacit.evaluation.baselines.fast import Fast
from tacit.evaluation.baselines.pegasus import Pegasus
from tacit.evaluation.baselines.rescue_dp import RescueDp
from tacit.evaluation.count_days import CountSeries, compare_counts, draw_counts
from tacit.evaluation.count_release import PacedCounts, SummedResponses
from tests.longer import longer

DAY = 48
METHODS: list[CountMethod] = [SummedResponses(), Fast(), Pegasus(), RescueDp(), PacedCounts()]


def make_days(days: int, seed: int = 0, noise: float = 3.0) -> Floats:
    """Days with the same course, and a random walk."""
    random = np.random.default_rng(seed)
    course = 100 + 60 * np.sin(np.linspace(0, 2 * np.pi, DAY))
    walk = random.normal(0, noise, (days, DAY)).cumsum(axis=1)
    made: Floats = np.clip(np.round(course + walk), 0, 400)
    return made


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize("epsilon", [0.5, 5.0, 100.0])
def test_no_day_of_windows_spends_more_than_epsilon(method: CountMethod, epsilon: float) -> None:
    """Also not a day that begins at another window than midnight, for w-event methods.

    FAST and our limits count from midnight to midnight.
    """
    setting = CountSetting(make_days(3), 400)
    counts = make_days(4, seed=1).ravel()
    spent = method.release(counts, setting, epsilon, np.random.default_rng(2)).spent
    assert (spent >= 0).all()
    for day in range(4):
        assert spent[day * DAY : (day + 1) * DAY].sum() <= epsilon * (1 + 1e-9)
    if method.name not in ("FAST", "own channel"):
        sums = np.convolve(spent, np.ones(DAY), "valid")
        assert sums.max() <= epsilon * (1 + 1e-9)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_with_a_huge_epsilon_a_constant_series_is_followed(method: CountMethod) -> None:
    setting = CountSetting(np.full((2, DAY), 120.0), 400)
    counts = np.full(2 * DAY, 120.0)
    found = method.release(counts, setting, 1e4, np.random.default_rng(1)).counts
    assert np.abs(found - 120).mean() < 1


@pytest.mark.parametrize("method", [Fast(), *longer(*METHODS)], ids=lambda method: method.name)
def test_the_error_falls_as_epsilon_grows(method: CountMethod) -> None:
    setting = CountSetting(make_days(3), 400)
    counts, errors = make_days(2, seed=1).ravel(), []
    for epsilon in (2.0, 2000.0):
        random = np.random.default_rng(3)
        found = [method.release(counts, setting, epsilon, random).counts for _ in range(10)]
        errors.append(np.abs(np.stack(found) - counts).mean())
    assert errors[1] < 0.95 * errors[0]


def test_fast_takes_at_most_its_samples_and_repeats_between_them() -> None:
    setting = CountSetting(make_days(2), 400)
    release = Fast(share=0.25).release(
        make_days(1, 1).ravel(), setting, 5, np.random.default_rng(1)
    )
    sampled = np.flatnonzero(release.spent)
    assert 1 <= len(sampled) <= DAY // 4
    np.testing.assert_allclose(release.spent[sampled], 5 / (DAY // 4))
    between = np.setdiff1d(np.arange(1, DAY), sampled)
    np.testing.assert_array_equal(release.counts[between], release.counts[between - 1])


def test_pegasus_smooths_a_constant_series_and_starts_again_at_a_jump() -> None:
    setting = CountSetting(make_days(2), 100_000)
    counts = np.repeat([1000.0, 50_000.0], DAY // 2)
    release = Pegasus().release(counts, setting, 48, np.random.default_rng(1))
    np.testing.assert_allclose(release.spent, 1)
    half = DAY // 2
    # The noise of a single count has a standard deviation of 1.8.
    assert np.abs(release.counts[half - 6 : half] - 1000).mean() < 1.2
    assert np.abs(release.counts[half + 1 :] - 50_000).max() < 12


def test_rescue_dp_gives_more_after_a_longer_interval() -> None:
    setting = CountSetting(make_days(2), 400)
    release = RescueDp(theta=10.0).release(
        np.full(DAY, 100.0), setting, 1.0, np.random.default_rng(1)
    )
    sampled = np.flatnonzero(release.spent)
    assert release.spent[0] == pytest.approx(0.2 * np.log(2))
    assert len(sampled) < DAY
    interval = int(sampled[1] - sampled[0])
    part = min(0.2 * np.log(interval + 1), 0.6)
    expected = min(0.2, part * (1 - release.spent[0]))  # at most a fifth of epsilon
    assert release.spent[sampled[1]] == pytest.approx(expected)


def test_a_controller_weighs_the_last_error_their_mean_and_their_slope() -> None:
    controller = PidController(0.8, 0.1, 0.1, memory=2)
    assert controller.add(0, 4.0) == pytest.approx(0.8 * 4 + 0.1 * 4)
    assert controller.add(5, 2.0) == pytest.approx(0.8 * 2 + 0.1 * 3 + 0.1 * -2 / 5)
    assert controller.add(7, 8.0) == pytest.approx(0.8 * 8 + 0.1 * 5 + 0.1 * 6 / 2)


class Fixed(np.random.Generator):
    """Noise of which nothing is left, so that an algorithm can be followed by hand."""

    def __init__(self) -> None:
        super().__init__(np.random.SFC64(0))

    def laplace(self, *_: object) -> float:  # type: ignore[override]
        """Nothing."""
        return 0.0


def test_intervals_follow_the_published_formulas_step_by_step() -> None:
    """Counts jump by 10 in the middle; without noise all numbers can be computed by hand."""
    past = np.tile([100.0, 102.0], (2, DAY // 2))
    setting, counts = CountSetting(past, 400), np.repeat([101.0, 111.0], DAY // 2)
    for method in (Fast(share=1.0, theta=2.0), RescueDp(theta=2.0)):
        release = method.release(counts, setting, 24.0, Fixed())
        value, variance, errors, interval, due = 101.0, past.var(), [], 1.0, 0
        for step, count in enumerate(counts.tolist()):
            variance += setting.change
            own = release.spent[step]
            assert (own > 0) == (step >= due)
            if not own:
                continue
            gain = variance / (variance + 2 / own**2)
            before, value = value, value + gain * (count - value)
            variance *= 1 - gain
            assert release.counts[step] == pytest.approx(value)
            if isinstance(method, Fast):
                assert own == pytest.approx(24 / DAY)
                errors.append(abs(value - before) / max(value, 1))
                pid = 0.9 * errors[-1] + 0.1 * np.mean(errors[-5:])
                interval += 2 * (1 - np.exp((pid - 0.1) / 0.1))
            else:
                left = 24 - release.spent[:step].sum()
                part = min(0.2 * np.log(interval + 1), 0.6)
                assert own == pytest.approx(min(part * left, 4.8))
                errors.append(abs(value - before))
                pid = 0.9 * errors[-1] + 0.1 * np.mean(errors[-3:])
                interval += 2 * (1 - (pid * min(left - own, 0.2 * 24)) ** 2)
            interval = float(np.clip(interval, 1, DAY))
            due = step + int(interval)
        assert len(errors) > 3


def test_the_noise_of_our_channel_has_the_variance_of_a_two_sided_geometric() -> None:
    """Every window is drawn: the filter hardly smooths, since history moves wildly."""
    random = np.random.default_rng(0)
    wild = random.integers(0, 4000, (2, DAY)).astype(np.float64)
    setting = CountSetting(wild, 5000)
    release = PacedCounts().release(
        np.full(200 * DAY, 2500.0), setting, 0.5 * DAY, np.random.default_rng(1)
    )
    assert (release.spent == 0.5).all()
    expected = 2 * np.exp(-0.5) / (1 - np.exp(-0.5)) ** 2
    assert np.var(release.counts) == pytest.approx(expected, rel=0.05)


def test_summed_responses_are_right_on_average() -> None:
    setting = CountSetting(make_days(2), 1000)
    found = SummedResponses().release(
        np.full(4000, 300.0), setting, DAY * 2.0, np.random.default_rng(1)
    )
    assert found.counts.mean() == pytest.approx(300, abs=1.5)


def test_a_filter_weighs_by_variances() -> None:
    followed = KalmanFilter(10.0, 3.0, 1.0)
    followed.predict()
    assert followed.correct(20.0, 4.0) == pytest.approx(15.0)
    assert followed.variance == pytest.approx(2.0)


def test_the_best_parameters_on_history_are_used() -> None:
    setting = CountSetting(make_days(3), 400)
    good, bad = Fast(share=0.5), Fast(share=1 / DAY)
    assert TunedMethod((bad, good)).choose(setting, 500.0) is good


def test_an_epsilon_that_is_not_positive_is_refused() -> None:
    setting = CountSetting(make_days(2), 400)
    for method in METHODS:
        with pytest.raises(PrivacyError):
            method.release(np.zeros(3), setting, 0.0, np.random.default_rng(0))
    with pytest.raises(PrivacyError):
        CountSetting(np.empty((0, DAY)), 10)


@pytest.mark.soak
def test_the_comparison_has_a_row_for_each_method_and_epsilon() -> None:
    series = [CountSeries("made", 400, "query", make_days(4), 2)]
    found = compare_counts(series, (5.0, 50.0), repeats=2)
    assert len(found) == 2 * 5
    assert found["mae"].is_between(0, 400).all()
    own = found.filter(found["method"] == "own channel")
    assert own["mae"].to_list() == sorted(own["mae"].to_list(), reverse=True)
    assert len(draw_counts(found).axes) == 1
