"""Randomised response has exactly the epsilon that is asked for, for events and for patterns."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.evaluation.baselines import EventLevel, UserLevel
from tacit.evaluation.baselines.releases import compute_flip_chance
from tacit.privacy.exponentials import exp_below
from tests.evaluation.baselines.settings import PRIVATE, TYPES, setting, windows


@given(st.floats(1e-9, 1e3))
def test_a_flip_never_gives_away_more_than_epsilon_and_hardly_less(epsilon: float) -> None:
    flip = Fraction(compute_flip_chance(epsilon))
    assert 0 < flip <= Fraction(1, 2)
    ratio = (1 - flip) / flip
    assert ratio <= exp_below(Fraction(epsilon))
    if epsilon < 20:
        assert ratio >= exp_below(Fraction(epsilon)) * Fraction(999_999, 1_000_000)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0])
def test_by_enumeration_the_longest_pattern_loses_epsilon_and_the_shorter_one_its_share(
    epsilon: float,
) -> None:
    """Over all windows that differ in a pattern's elements, and all outputs."""
    release = EventLevel().release(windows(3, 0), setting(), epsilon, np.random.default_rng(0))
    flip = release.flips[1]

    def chance(true: tuple[int, ...], said: tuple[int, ...]) -> float:
        flips = zip(true, said, flip.tolist(), strict=True)
        return float(prod(f if x != y else 1 - f for x, y, f in flips))

    for pattern, share in zip(PRIVATE, (2 / 3, 1), strict=True):
        inside = [name in pattern for name in TYPES]
        loss = max(
            np.log(chance(one, said) / chance(other, said))
            for one, other, said in product(product((0, 1), repeat=4), repeat=3)
            if all(i or x == y for i, x, y in zip(inside, one, other, strict=True))
        )
        assert loss <= share * epsilon
        assert loss == pytest.approx(share * epsilon, rel=1e-9)
        assert release.loss(len(pattern)) == pytest.approx(share * epsilon)


@pytest.mark.parametrize("baseline", [EventLevel(), UserLevel(), UserLevel(over="stream")])
def test_bits_are_flipped_as_often_as_said_and_not_a_little_more_or_less_often(
    baseline: EventLevel | UserLevel,
) -> None:
    presence = windows(100, 3, subjects=600)
    release = baseline.release(presence, setting(), 3.0, np.random.default_rng(11))
    chance = 1 / (1 + np.exp(1 / 100 if "stream" in baseline.name else 1))
    for x in (False, True):
        wrong = (release.bits != presence)[presence == x]
        deviation = np.sqrt(chance * (1 - chance) / len(wrong))
        assert abs(wrong.mean() - chance) < 4 * deviation
        assert abs(wrong.mean() - 1.03 * chance) > 4 * deviation


def test_user_level_adds_up_to_its_own_epsilon_over_all_bits_of_a_stream() -> None:
    presence = windows(50, 3, subjects=2)
    for baseline, whole in ((UserLevel(), 50 * 4 * 1.5), (UserLevel("stream"), 4 * 1.5)):
        release = baseline.release(presence, setting(), 4.5, np.random.default_rng(0))
        assert len(TYPES) * release.spent.sum(axis=1) == pytest.approx([whole, whole])
    assert UserLevel("stream").release(presence, setting(), 4.5, np.random.default_rng(0)).loss(
        3
    ).sum(axis=1) == pytest.approx([4.5, 4.5])


def test_converted_to_one_window_user_level_is_event_level() -> None:
    presence = windows(200, 5)
    one, other = (
        baseline.release(presence, setting(), 2, np.random.default_rng(4)).values
        for baseline in (EventLevel(), UserLevel())
    )
    assert (one == other).all()
