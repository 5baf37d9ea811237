"""The rate follows releases alone, and the noise is as wide as what is spent."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import PrivacyError
from tacit.evaluation.baselines import LandmarkAdaptive, LandmarkUniform
from tacit.evaluation.baselines.landmark import sample
from tests.evaluation.baselines.settings import Floats, rejects, scripted, setting, streams, windows


def test_all_landmarks_and_one_more_window_stay_within_the_own_epsilon() -> None:
    presence = windows(80, 3, subjects=5)
    marked = presence.any(axis=2)
    for baseline in (LandmarkUniform(), LandmarkAdaptive()):
        release = baseline.release(presence, setting(), 2.0, np.random.default_rng(1))
        own = (marked.sum(axis=1) + 1) * 2.0 / 3
        most = np.where(marked, 0, release.spent).max(axis=1)
        assert (np.where(marked, release.spent, 0).sum(axis=1) + most <= own + 1e-9).all()
        assert release.loss(3).max() == pytest.approx(2.0)


def test_a_trace_of_the_adaptive_scheme_by_hand() -> None:
    """Share 2, so the noise is 1/2 wide; the rate falls by a half and rises by a quarter.

    Step 0 is published. Step 1: rate 1, moved by 1, so the rate stays at 1. Step 2: moved by
    1/4 on average, the rate falls to 1/2. Step 3: luck 1/2 is not below it, repeated, nothing
    changes. Step 4: luck 0.4, published, moved by 0, falls to 1/4. Step 5: luck 0.3, repeated.
    Step 6: luck 0.2, moved by exactly 1/2, which is not less, so it rises by a quarter of what
    is missing, to 7/16. Step 7: luck 0.43, published.
    """
    presence = np.array(
        [[[0, 0], [1, 1], [1, 1], [0, 0], [1, 1], [0, 0], [1, 0], [1, 0]]], np.bool_
    )
    noise = np.zeros(presence.shape)
    noise[0, 2] = [1, 0]
    noise[0, 4] = [1, 0]
    noise[0, 7] = [0.2, 0.4]
    noise[0, 6] = [1, 0]
    luck = np.array([[0.9, 0.99, 0.99, 0.5, 0.4, 0.3, 0.2, 0.43]])
    spent = sample(presence, 2.0, (0.5, 0.25), noise, luck, False)
    assert spent.tolist() == [[2, 2, 2, 0, 2, 0, 2, 2]]
    third = [1.5, 1.0]
    assert noise[0] == pytest.approx(
        np.array([[0, 0], [1, 1], third, third, third, third, [1.5, 0], [1.1, 0.2]])
    )


@given(st.data())
def test_the_compiled_walk_equals_a_slow_one(data: st.DataObject) -> None:
    presence = data.draw(streams())
    share = data.draw(st.sampled_from([0.2, 2.0, 8.0]))
    fall, rise = data.draw(st.tuples(st.floats(0, 1), st.floats(0, 1)))
    noise = scripted(data, presence.shape, 1.0)
    luck = np.random.default_rng(data.draw(st.integers(0, 99))).random(presence.shape[:2])
    expected: list[list[Floats]] = []
    for stream, own, lucky in zip(presence, noise, luck, strict=True):
        rate, released = 1.0, [stream[0] + own[0] / share]
        for window, drawn, chance in zip(stream[1:], own[1:], lucky[1:], strict=True):
            if chance < rate:
                released.append(window + drawn / share)
                alike = np.abs(released[-1] - released[-2]).mean() < 1 / share
                rate = rate * (1 - fall) if alike else rate + rise * (1 - rate)
            else:
                released.append(released[-1])
        expected.append(released)
    sample(presence, share, (fall, rise), noise, luck, False)
    assert noise == pytest.approx(np.array(expected))


@pytest.mark.parametrize("baseline", [LandmarkUniform(), LandmarkAdaptive(0.5, 0.5)])
def test_published_noise_has_the_scale_that_was_spent_and_no_other(
    baseline: LandmarkUniform | LandmarkAdaptive,
) -> None:
    presence = windows(60, 2, subjects=200)
    release = baseline.release(presence, setting(), 1.5, np.random.default_rng(8))
    noise = (release.values - presence)[release.spent > 0].ravel()
    assert not rejects(noise, 2.0)
    assert rejects(noise, 2.12)
    assert rejects(noise, 1.88)


def test_a_stream_that_stays_as_it_is_is_published_less_often() -> None:
    still, random = np.zeros((1, 500, 4), np.bool_), windows(500, 1, subjects=1)
    baseline = LandmarkAdaptive(0.5, 0.5)
    counts = [
        np.count_nonzero(baseline.release(p, setting(), 30.0, np.random.default_rng(2)).spent)
        for p in (still, random)
    ]
    assert counts[0] < 0.6 * counts[1]


@pytest.mark.parametrize("habits", [(-0.1, 0.5), (0.1, 1.5), (float("nan"), 0.5)])
def test_habits_that_are_no_shares_are_refused(habits: tuple[float, float]) -> None:
    with pytest.raises(PrivacyError, match="from 0 to 1"):
        LandmarkAdaptive(*habits)
