"""Over a day: limits hold, only public events decide who pays, and everyone is measured."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import polars as pl
import pytest

from tacit.evaluation.days import COMPARISON, OverADay
from tacit.evaluation.household_runs import make_home_days, to_presence
from tacit.evaluation.spending import POLICIES, Day, SpendingPolicy
from tacit.evaluation.tdrive import select_taxis
from tacit.patterns.language import parse_pattern

LIMIT, EPSILON = Fraction(20), Fraction(3)
each = pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)


@pytest.fixture(scope="module")
def day() -> Day:
    return OverADay(subjects=8, days=4).draw(1)


@each
@pytest.mark.parametrize("part", ["history", "test"])
def test_no_day_costs_more_than_the_limit(policy: SpendingPolicy, part: str, day: Day) -> None:
    for epsilon in policy.candidates(day, LIMIT):
        paid = policy.pays(day, LIMIT, epsilon, "history" if part == "history" else "test")
        if part == "history":
            paid = paid[:, paid.shape[1] % day.windows :]
        days = paid[:, : paid.shape[1] // day.windows * day.windows]
        spent = days.reshape(len(days), -1, day.windows).sum(axis=2).max() * epsilon
        assert 0 < spent <= LIMIT


@each
def test_public_events_alone_decide_which_windows_are_paid_for(
    policy: SpendingPolicy, day: Day
) -> None:
    changed = day.test.copy()
    changed[..., day.setting.private_columns] ^= True
    other = Day(day.spec, day.history, changed, day.windows, day.seed)
    one, two = (policy.pays(this, LIMIT, EPSILON, "test") for this in (day, other))
    np.testing.assert_array_equal(one, two)
    unpaid = ~one
    answers = [policy.answer(this, LIMIT, EPSILON, "test")[:, unpaid] for this in (day, other)]
    np.testing.assert_array_equal(answers[0], answers[1])


def test_windows_are_counted_from_midnight(day: Day) -> None:
    """History ends at midnight and may begin at any time; the test begins at midnight."""
    later = Day(day.spec, day.history[:, 50:], day.test, day.windows, 1)
    ones = np.ones(later.history.shape[:2], np.bool_)
    before = later.count_before(ones, "history")[0]
    rest = day.windows - 50
    assert before[:rest].tolist() == list(range(rest))
    assert before[rest : rest + 3].tolist() == [0, 1, 2]
    assert later.count_before(np.ones(day.test.shape[:2], np.bool_), "test")[0, :2].tolist() == [
        0,
        1,
    ]


def test_every_method_is_measured_and_much_epsilon_leaves_no_error() -> None:
    experiment = OverADay(subjects=8, days=2, epsilons=(Fraction(5), Fraction(1440)))
    errors = experiment.errors(1)
    assert errors.shape == (1, 2, len(COMPARISON.methods), 2)
    found = dict(zip(map(str, COMPARISON.methods), errors[0, :, :, 0].T, strict=True))
    even = found["optimal, even epsilon per window, posterior"]
    assert even[1] < 0.01 < even[0]
    assert found["prior alone, posterior"][0] == found["prior alone, posterior"][1]


def test_homes_without_order_have_the_presence_of_their_events() -> None:
    spec, history, test, windows = make_home_days(6, 2, 3)
    assert history.shape == test.shape == (6, 24, len(spec.events))
    assert windows == 24
    names = list(spec.events)
    hours = np.arange(24)
    daytime = test[:, :, names.index("daytime")].all(axis=0)
    assert (daytime == ((hours >= 9) & (hours <= 20))).all()
    assert not test[:, 10, names.index("bathroom_at_night")].any()


def test_a_pattern_without_order_keeps_its_elements_and_negations() -> None:
    pattern = parse_pattern("SEQ(a, NOT b, OR(c, d{2,})) WITHIN 5 min")
    assert to_presence(pattern) == parse_pattern("AND(a, NOT b, OR(c, d))")


def test_every_taxi_is_either_for_tuning_or_for_results() -> None:
    reports = pl.DataFrame({"taxi_id": [3, 8, 8, 11, 20]}, schema={"taxi_id": pl.Int32})
    tuning, test = (select_taxis(reports, part)["taxi_id"].to_list() for part in ("tuning", "test"))
    assert (tuning, test) == ([3, 11], [8, 8, 20])
    assert select_taxis(reports, "all").equals(reports)
