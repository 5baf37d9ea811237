"""The planner splits epsilon between answers and counts, and picks how each count is made."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import polars as pl
import pytest

import tacit
from tacit.engines.local import survey_history
from tacit.errors import SpecificationError
from tacit.planning.count_split import _SplitSearch
from tacit.planning.planner import choose_split, make_plan
from tacit.privacy.statistics import Statistics
from tacit.spec.epsilon_split import EpsilonSplit, split_epsilon
from tests.longer import longer

SPEC = """
streams: {{meter: {{subject: home, time: at}}}}
windows: {{size: 1 h}}
events:
  oven: {{stream: meter, where: "oven"}}
  light: {{stream: meter, where: "light"}}
private: [{{pattern: oven, epsilon: {epsilon}}}]
queries:
  - {{name: cooking, consumer: grid, pattern: "AND(oven, light)"}}
  - {{name: cooks, consumer: grid, count: "AND(oven, light)"{share}}}
"""
FREE, ANSWERS, HALF = "", ", share: 0", ", share: 0.5"
HOMES = 60


def specify(epsilon: object = 2, share: str = FREE) -> tacit.Specification:
    """Cooking, asked about each home and counted."""
    return tacit.loads(SPEC.format(epsilon=epsilon, share=share))


def measure(seed: int, *, stay: float = 0.0, days: int = 4, homes: int = HOMES) -> pl.DataFrame:
    """Whole days: more ovens are on by day; with `stay` an oven stays as it was."""
    chance = np.random.default_rng(seed)
    hours = 24 * days
    share = 0.3 + 0.15 * np.sin(2 * np.pi * np.arange(hours) / 24)
    on = chance.random((hours, homes)) < share[:, np.newaxis]
    for hour in range(1, hours):
        on[hour] = np.where(chance.random(homes) < stay, on[hour - 1], on[hour])
    window, home = np.indices(on.shape).reshape(2, -1)
    lit = chance.random(len(window)) < 0.7
    at = 3600 * (window + 24 * 10 * seed)
    return pl.DataFrame({"home": home, "at": at, "oven": on.reshape(-1), "light": lit})


def count(spec: tacit.Specification) -> list[Statistics]:
    """Statistics of history."""
    return survey_history(spec, [measure(1)], {}, None)


def judge(spec: tacit.Specification, statistics: list[Statistics], split: EpsilonSplit) -> float:
    """The loss of a split."""
    search = _SplitSearch(
        spec,
        statistics[0],
        lambda one: make_plan(spec, statistics, "uniform", split=one, fall_back=False),
    )
    return search._judge(split).loss


@pytest.mark.parametrize("epsilon", ["0.5", "2", *longer("6")])
def test_no_other_split_has_a_smaller_loss(epsilon: str) -> None:
    spec = specify(epsilon)
    statistics = count(spec)
    split, errors = choose_split(spec, statistics, "uniform")
    found = judge(spec, statistics, split)
    shares = [Fraction(n, 8) for n in (1, 2, 4, 6, 7)]
    others = [split_epsilon(spec, share) for share in shares]
    others.append(split_epsilon(spec, from_answers=["cooks"]))
    assert found <= min(judge(spec, statistics, one) for one in others) + 0.01
    assert found < max(judge(spec, statistics, one) for one in others) - 0.02
    assert errors["cooks"].channel is not None
    assert errors["cooks"].answers is not None


def test_what_share_tells_is_done() -> None:
    for share, epsilon, left in ((ANSWERS, 0, 1), (HALF, 1, Fraction(1, 2))):
        spec = specify(share=share)
        plan = tacit.plan(spec, measure(1), mechanism="uniform")
        assert plan.counts == {"cooks": epsilon}
        assert plan.share_of("oven") == left
        assert not plan.count_errors  # there is nothing to choose
        assert bool(plan.answer_counts) == (share == ANSWERS)


def test_a_count_from_answers_needs_a_query_with_the_same_pattern() -> None:
    with pytest.raises(
        SpecificationError, match="no query about single subjects has the same pattern"
    ):
        tacit.loads(SPEC.format(epsilon=1, share=ANSWERS).replace('pattern: "AND', 'pattern: "OR'))


def test_a_plan_records_the_choice_and_what_was_compared() -> None:
    spec = specify(4)
    plan = tacit.plan(spec, measure(1), mechanism="uniform")
    (row,) = plan.count_rows()
    assert {"channel_error", "answers_error"} <= row.keys()
    read = tacit.Plan.from_dict(plan.to_dict(), spec)
    assert read.count_rows() == [row]
    assert read.answer_counts == plan.answer_counts
    told = str(tacit.explain(spec, plan))
    assert ("From the answers to cooking" in told) == ("from_answers" in row)
    assert "A plan with history splits epsilon" in str(tacit.explain(spec))
    assert "A plan with history" not in told


@pytest.mark.parametrize("stay", [0.0, 0.9])
@pytest.mark.parametrize("share", [ANSWERS, HALF])
def test_errors_are_as_the_plan_expects_and_intervals_cover(share: str, stay: float) -> None:
    spec = specify(share=share)
    plan = tacit.plan(spec, measure(1, stay=stay, days=8))
    (row,) = plan.count_rows()
    inside: list[bool] = []
    errors: list[float] = []
    for seed in (2, 3, 4):
        data = measure(seed, stay=stay)
        true = tacit.detect(spec, data).counted()["count"]
        found = tacit.run(spec, data, plan=plan, seed=seed).counted()
        if share == ANSWERS:
            methods = {"model"} if plan.has_memory else {"unbiased"}
            assert set(found["method"].cast(pl.String)) == methods
            assert found["count"].is_null().all()
            assert (found["low"] <= true).all()
            assert (found["high"] >= true).all()
        errors += (found["estimate"] - true).abs().to_list()
        inside += true.is_between(found["estimate_low"], found["estimate_high"]).to_list()
    assert plan.has_memory == (stay > 0)
    assert np.mean(errors) == pytest.approx(row["expected_error"], rel=0.25)
    assert 0.9 <= np.mean(inside) <= 0.99
