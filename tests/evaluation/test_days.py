"""Over a day: limits hold, only public events decide who pays, and everyone is measured."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import polars as pl
import pytest

from tacit.evaluation.days import COMPARISON, DayExperiment
from tacit.evaluation.household_runs import make_home_days, to_presence
from tacit.evaluation.measurement import Streams
from tacit.evaluation.spending import POLICIES, Day, SpendingPolicy
from tacit.evaluation.tdrive import select_taxis
from tacit.patterns.language import parse_pattern

LIMIT = Fraction(20)
LIMITED = [policy for policy in POLICIES if policy.spend != "even"]
each = pytest.mark.parametrize("policy", LIMITED, ids=lambda policy: policy.name)


@pytest.fixture(scope="module")
def day() -> Day:
    return DayExperiment(subjects=8, days=4).draw(1)


@pytest.mark.cases(1)
@each
def test_no_day_costs_more_and_before_the_first_symbol_private_events_change_nothing(
    policy: SpendingPolicy, day: Day
) -> None:
    changed = day.test.presence.copy()
    changed[..., day.setting.private_columns] ^= True
    other = replace(day, test=Streams(changed, day.test.first))
    one, two = (this.run(policy, LIMIT) for this in (day, other))
    spent = one.spent.reshape(1, 8, 2, day.windows).sum(axis=-1) / 1e9
    assert 0 < spent.max() <= LIMIT
    assert spent.min() > 0
    first = int(np.flatnonzero(one.spent.any(axis=(0, 1)))[0])
    np.testing.assert_array_equal(one.spent[..., : first + 1], two.spent[..., : first + 1])
    np.testing.assert_array_equal(one.answers[..., :first], two.answers[..., :first])
    assert (one.answers != two.answers).any()


def test_days_begin_at_midnight_in_the_zone_of_the_specification(day: Day) -> None:
    """Who has spent the limit of one day pays again in the first open windows of the next."""
    spent = day.run(SpendingPolicy("every", "every"), Fraction(6)).spent[0]
    midnight = day.windows
    evening, morning = spent[:, midnight - 12 : midnight], spent[:, midnight : midnight + 60]
    assert day.spec.zone == "Asia/Shanghai"
    assert (day.test.first + midnight) * 10 % 1440 == 1440 - 8 * 60
    assert not evening.any()
    assert morning.any(axis=1).sum() > 4


@pytest.mark.soak
def test_every_method_is_measured_and_much_epsilon_leaves_no_error() -> None:
    experiment = DayExperiment(subjects=8, days=2, epsilons=(Fraction(5), Fraction(1440)))
    errors = experiment.errors(1)
    assert errors.shape == (1, 2, len(COMPARISON.methods), 2)
    found = dict(zip(map(str, COMPARISON.methods), errors[0, :, :, 0].T, strict=True))
    even = found["optimal, even epsilon per window, memory"]
    assert even[1] < 0.01 < even[0]
    assert found["prior alone, posterior"][0] == found["prior alone, posterior"][1]


def test_homes_without_order_have_the_presence_of_their_events() -> None:
    spec, history, test, windows = make_home_days(6, 2, 3)
    assert history.presence.shape == test.presence.shape == (6, 24, len(spec.events))
    assert test.first == history.first + 24
    assert windows == 24
    names = list(spec.events)
    hours = np.arange(24)
    daytime = test.presence[:, :, names.index("daytime")].all(axis=0)
    assert (daytime == ((hours >= 9) & (hours <= 20))).all()
    assert not test.presence[:, 10, names.index("bathroom_at_night")].any()


def test_a_pattern_without_order_keeps_its_elements_and_negations() -> None:
    pattern = parse_pattern("SEQ(a, NOT b, OR(c, d{2,})) WITHIN 5 min")
    assert to_presence(pattern) == parse_pattern("AND(a, NOT b, OR(c, d))")


def test_every_taxi_is_either_for_tuning_or_for_results() -> None:
    reports = pl.DataFrame({"taxi_id": [3, 8, 8, 11, 20]}, schema={"taxi_id": pl.Int32})
    tuning, test = (select_taxis(reports, part)["taxi_id"].to_list() for part in ("tuning", "test"))
    assert (tuning, test) == ([3, 11], [8, 8, 20])
    assert select_taxis(reports, "all").equals(reports)
