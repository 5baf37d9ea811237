"""Memory and limits are measured on arrays as the engine answers tuples, answer by answer."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import tacit
from tacit.engines.local import survey_history
from tacit.evaluation.experiments import generate_reports
from tacit.evaluation.limited_runs import run_limited
from tacit.evaluation.measurement import Presence, Streams, answer, compute_statistics, measure
from tacit.evaluation.memory_steps import has_memory, remember_in_decoding
from tacit.evaluation.spending import SpendingPolicy, limit_daily
from tacit.evaluation.synthetic import draw_data_set
from tacit.evaluation.taxi_areas import TaxiDataSet, make_taxi_data_set
from tacit.planning.plan import Plan
from tacit.planning.planner import make_plan
from tacit.privacy.noise import Noise
from tacit.privacy.randomness import SeededSource
from tacit.privacy.statistics import Statistics
from tacit.spec.specification import Specification
from tests.longer import longer

SEED = 7
SHARE = Fraction(2, 5)
"""Of the epsilon of 5 that specifications with limits have."""
FIRST = 144
"""The number of test windows that are compared."""


@cache
def reports() -> pl.DataFrame:
    return generate_reports(taxis=24, days=4, seed=1)


@cache
def drawn() -> TaxiDataSet:
    return make_taxi_data_set(reports(), seed=1)


@cache
def spec() -> Specification:
    """With a limit that is never reached: so little history has memory with limits only."""
    policy = SpendingPolicy("every open window", "every")
    return limit_daily(drawn().spec, Fraction(1000), policy)


@cache
def plan() -> Plan:
    return make_plan(spec(), statistics(), share=SHARE)


@cache
def statistics() -> list[Statistics]:
    return compute_statistics(spec(), drawn().history_streams)


def noise() -> Noise:
    return Noise(SeededSource(SEED))


def streams() -> Streams:
    whole = drawn().test_streams
    return Streams(whole.presence[:, :FIRST], whole.first)


def tuples() -> pl.DataFrame:
    """The tuples of the same windows."""
    first = reports()["ts"].dt.timestamp("us") // 600_000_000 - drawn().test_streams.first
    return reports().filter((first >= 0) & (first < FIRST))


def found(answers: tacit.CollectedAnswers) -> Presence:
    """`[subject][window]`, with the taxis in order of their numbers."""
    wide = answers.wide()
    grid = wide.sort(pl.col("subject").cast(pl.String).cast(pl.Int64), "window_start")
    return np.asarray(grid["in_target"].to_numpy().reshape(wide["subject"].n_unique(), -1))


def test_statistics_of_streams_give_the_plan_that_history_gives() -> None:
    past = reports().filter(pl.col("ts").dt.convert_time_zone("UTC") < drawn().turn)
    by_engine = make_plan(spec(), survey_history(spec(), [past], {}, None), share=SHARE)
    assert has_memory(plan())
    assert [one.to_dict() for one in by_engine.mechanisms] == [
        one.to_dict() for one in plan().mechanisms
    ]


def test_a_plan_with_memory_answers_streams_as_a_run_answers_tuples() -> None:
    by_engine = found(tacit.run(spec(), tuples(), plan=plan(), seed=SEED, ledger=False))
    ours = answer(plan(), streams(), noise())
    assert ours.shape == (1, 24, FIRST)
    np.testing.assert_array_equal(ours[0], by_engine)
    other = answer(plan(), streams(), Noise(SeededSource(SEED + 1)))
    assert (ours != other).any()


@pytest.mark.parametrize("spend", ["paced", *longer("every")])
def test_limits_are_spent_as_in_a_run_with_a_ledger(spend: str, tmp_path: Path) -> None:
    policy = SpendingPolicy(spend, "paced" if spend == "paced" else "every")
    made = make_plan(limit_daily(spec(), Fraction(20), policy), statistics(), share=SHARE)
    ledger = tmp_path / "ledger.db"
    by_engine = tacit.run(made.spec, tuples(), plan=made, seed=SEED, ledger=ledger)
    ours = run_limited(made, streams(), noise())
    np.testing.assert_array_equal(ours.answers[0], found(by_engine))


def test_windows_before_the_first_change_where_memory_starts() -> None:
    cold = measure(plan(), streams(), noise())
    warm = measure(plan(), streams(), noise(), before=drawn().history_streams)
    assert (cold.tp, cold.fp) != (warm.tp, warm.fp)


def test_memory_in_decoding_alone_never_chooses_a_channel() -> None:
    made = remember_in_decoding(plan(), statistics())
    assert has_memory(made)
    (mechanism,) = made.mechanisms
    assert all(not memory.candidates.contexts for memory in mechanism.memory)  # type: ignore[attr-defined]
    assert answer(made, streams(), noise()).shape == (1, 24, FIRST)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2))
def test_windows_that_are_independent_have_no_memory(seed: int) -> None:
    data = draw_data_set(seed)
    counted = compute_statistics(data.spec, Streams(data.history[np.newaxis]))
    assert counted[0].sequences is not None
    assert not has_memory(make_plan(data.spec, counted, "optimal", share=Fraction(3, 10)))
