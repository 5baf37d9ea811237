"""Counts from released answers: estimates are right on average, and intervals cover."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from click.testing import CliRunner

import tacit
from tacit.answers.count_estimates import CountEstimates
from tacit.answers.count_sums import Per
from tacit.cli.main import main
from tacit.errors import OptionError, SchemaError
from tacit.evaluation.trips import Trips
from tacit.insight.counts import fit_periods

SPEC = files("tacit.evaluation").joinpath("taxi.yaml").read_text("utf-8")
METHODS = [
    ("uniform", "literal", False),
    ("optimal", "posterior", True),
]
"""Adaptive flips elements as uniform does; `test_answer_tables` has the weights of all of them."""


@cache
def generate(seed: int, taxis: int = 120, days: float = 5.0) -> pa.Table:
    return Trips(taxis=taxis, days=days, seed=seed).table()


@cache
def count_true(seed: int) -> pl.DataFrame:
    """True counts per window, by a group-by over true answers."""
    return (
        tacit.detect(tacit.loads(SPEC), generate(seed))
        .polars()
        .with_columns(pl.col("query").cast(pl.String))
        .group_by("window_start", "query")
        .agg(pl.col("detected").sum().cast(pl.Float64).alias("true"))
    )


def find_coverage(found: CountEstimates, seed: int, stretch: float = 1.0) -> pl.Series:
    """Whether the noisy estimates cover the truth, with intervals that are stretched."""
    every = "1h" if found.per == "hour" else "10m"
    keys = ["window_start", "query"]
    true = count_true(seed).with_columns(pl.col("window_start").dt.truncate(every))
    frame = found.polars().filter(pl.col("method") != "exact")
    joined = frame.join(true.group_by(keys).agg(pl.col("true").sum()), on=keys)
    low, high = (
        pl.col("estimate") + stretch * (pl.col(side) - pl.col("estimate"))
        for side in ("low", "high")
    )
    return joined.select(pl.col("true").is_between(low - 1e-6, high + 1e-6)).to_series()


WRONG = (0.8, 1.25)
"""Intervals that are somewhat too narrow or too wide: the same test has to reject them."""


@pytest.mark.cases(1)
@pytest.mark.parametrize(("mechanism", "decode", "memory"), METHODS)
def test_intervals_cover_the_truth_of_fresh_data_as_often_as_they_say(
    mechanism: str, decode: str, memory: bool
) -> None:
    """Per window and per hour, over all noisy queries; other taxis than those of history.

    Intervals that are a fifth too narrow, or a quarter too wide, are rejected on the same data.
    """
    text = f"\nmechanism: {mechanism}\ndecode: {decode}\nmemory: {str(memory).lower()}\n"
    spec = tacit.loads(SPEC + text)
    plan = tacit.plan(spec, generate(0))
    assert plan.has_memory == memory
    covered: dict[tuple[Per, float], list[pl.Series]] = {}
    models = fit_periods(plan, ("window", "hour"), generate(0))
    for seed in (1, 2):
        answers = tacit.run(spec, generate(seed), plan=plan, seed=seed)
        for per, model in models.items():
            found = answers.estimate(plan, model=model, per=per)
            for stretch in (1.0, *WRONG):
                part = find_coverage(found, seed, stretch)
                covered.setdefault((per, stretch), []).append(part)
    for (_, stretch), parts in covered.items():
        whole = pl.concat(parts)
        assert len(whole) > 1000
        share = float(whole.cast(pl.Float64).to_numpy().mean())
        assert (0.93 <= share <= 0.97) == (stretch == 1.0), (share, stretch)


def test_unbiased_estimates_are_right_on_average_where_sums_of_confidences_are_not() -> None:
    """The history is of another hour, so the prior is wrong: weights do not depend on it."""
    spec = tacit.loads(SPEC + "\nmechanism: uniform\n")
    night = generate(0).filter(pa.compute.less(pa.compute.hour(generate(0)["ts"]), 5))
    day = generate(1).filter(pa.compute.equal(pa.compute.hour(generate(1)["ts"]), 18))
    plan = tacit.plan(spec, night)
    true = tacit.detect(spec, day).counts()["free_taxi"]
    found, sums = [], []
    for seed in range(12):
        answers = tacit.run(spec, day, plan=plan, seed=seed)
        estimates = answers.estimate(plan).polars().filter(pl.col("query") == "free_taxi")
        assert set(estimates["method"]) <= {"unbiased", "exact"}
        found.append(float(estimates["estimate"].sum()))
        own = answers.polars().filter(pl.col("query") == "free_taxi")
        sure = pl.when("detected").then("confidence").otherwise(1 - pl.col("confidence"))
        sums.append(float(own.select(sure.sum()).item()))
    error = np.std(found) / np.sqrt(len(found))
    assert abs(np.mean(found) - true) < 3.5 * error
    assert abs(np.mean(sums) - true) > 5 * error


def test_a_model_does_not_change_estimates_of_answers_that_identify_the_truth() -> None:
    spec = tacit.loads(SPEC + "\nmechanism: uniform\n")
    small = generate(3, taxis=30, days=1.0)
    plan = tacit.plan(spec, small)
    model = fit_periods(plan, ("hour",), small)["hour"]
    answers = tacit.run(spec, small, plan=plan, seed=1)
    found = answers.estimate(plan, model=model, per="hour").polars()
    unbiased = answers.estimate(plan, per="hour", method="unbiased").polars()
    modelled = answers.estimate(plan, model=model, per="hour", method="model").polars()
    own = (found["method"] == "unbiased").to_numpy()
    assert own.any()
    for column in ("estimate", "low", "high"):
        values = found[column].to_numpy()[own]
        assert values == pytest.approx(unbiased[column].to_numpy()[own])
        assert values != pytest.approx(modelled[column].to_numpy()[own])


def test_without_history_unidentified_answers_have_the_widest_interval() -> None:
    spec = tacit.loads(SPEC + "\nmechanism: optimal\n")
    small = generate(3, taxis=30, days=1.0)
    plan = tacit.plan(spec, small)
    assert plan.has_memory
    frame = tacit.run(spec, small, plan=plan, seed=1).polars()
    own = frame.filter(pl.col("query") == "cruising")
    certain = own.filter(pl.col("confidence") == 1)["detected"].sum()
    opened = int((own["confidence"] < 1).sum())
    found = tacit.estimate_counts(frame, plan, per="hour").polars()
    found = found.filter(pl.col("query") == "cruising")
    assert set(found["method"]) <= {"model", "exact"}
    assert found["low"].sum() == pytest.approx(certain)
    assert found["high"].sum() == pytest.approx(certain + opened)


def test_groups_add_up_to_the_whole() -> None:
    spec = tacit.loads(SPEC + "\nmechanism: uniform\n")
    small = generate(3, taxis=30, days=1.0)
    plan = tacit.plan(spec, small)
    answers = tacit.run(spec, small, plan=plan, seed=1)
    groups = {str(taxi): f"fleet {taxi % 3}" for taxi in range(30)}
    keys = ["window_start", "query"]
    whole = answers.estimate(plan).polars().sort(keys)
    parts = answers.estimate(plan, by=groups).polars()
    assert set(parts["group"]) == {"fleet 0", "fleet 1", "fleet 2"}
    added = parts.group_by(keys).agg(pl.col("estimate", "answers").sum()).sort(keys)
    np.testing.assert_allclose(added["estimate"], whole["estimate"], atol=1e-6)
    assert added["answers"].equals(whole["answers"])


def test_a_frame_a_file_and_a_ledger_give_the_same_estimates(tmp_path: Path) -> None:
    spec = tacit.loads(SPEC + "\nmechanism: uniform\n")
    small = generate(3, taxis=20, days=0.25)
    plan = tacit.plan(spec, small)
    plan.save(tmp_path / "plan.json")
    ledger = tmp_path / "spent.db"
    answers = tacit.run(spec, small, plan=plan, seed=1, ledger=ledger)
    expected = answers.estimate(plan).polars()
    frame = answers.polars().drop("id")
    frame.write_parquet(tmp_path / "answers.parquet")
    frame.with_columns(pl.col("subject", "query", "consumer").cast(pl.String)).write_csv(
        tmp_path / "answers.csv", datetime_format="%Y-%m-%dT%H:%M:%SZ"
    )
    for given in (frame, tmp_path / "answers.parquet", tmp_path / "answers.csv", ledger):
        found = tacit.estimate_counts(given, tmp_path / "plan.json").polars()
        assert found.equals(expected)


def test_answers_of_another_plan_are_refused() -> None:
    spec = tacit.loads(SPEC + "\nmechanism: uniform\n")
    small = generate(3, taxis=10, days=0.1)
    plan = tacit.plan(spec, small)
    frame = tacit.run(spec, small, plan=plan, seed=1).polars()
    with pytest.raises(SchemaError, match="other queries"):
        tacit.estimate_counts(frame.with_columns(query=pl.lit("else")), plan)
    with pytest.raises(SchemaError, match="'detected'"):
        tacit.estimate_counts(frame.drop("detected"), plan)
    with pytest.raises(OptionError, match="model"):
        tacit.estimate_counts(frame, plan, method="model")
    with pytest.raises(OptionError, match="per"):
        tacit.estimate_counts(frame, plan, per="year")  # type: ignore[arg-type]
    model = tacit.fit_counts(plan, small)
    with pytest.raises(OptionError, match="other periods"):
        tacit.run(spec, small, plan=plan, seed=1).estimate(plan, model=model, per="hour")


def test_a_plot_has_a_panel_for_each_query() -> None:
    spec = tacit.loads(SPEC + "\nmechanism: uniform\n")
    small = generate(3, taxis=10, days=0.1)
    plan = tacit.plan(spec, small)
    found = tacit.run(spec, small, plan=plan, seed=1).estimate(plan)
    assert len(found.plot().axes) == len(spec.queries)


def test_the_command_counts_by_a_column_of_the_registry(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    small = generate(3, taxis=20, days=0.25)
    pq.write_table(small, tmp_path / "trips.parquet")
    rows = "".join(f"{taxi},{'north' if taxi < 8 else 'south'}\n" for taxi in range(20))
    (tmp_path / "taxis.csv").write_text("taxi,district\n" + rows)
    spec = tmp_path / "taxi.yaml"
    registry = "\nmechanism: uniform\nsubjects: {file: taxis.csv, column: taxi}\n"
    spec.write_text(SPEC + registry)
    loaded = tacit.load(spec)
    plan = tacit.plan(loaded, small, out=tmp_path / "plan.json")
    tacit.run(loaded, small, plan=plan, to=tmp_path / "answers.parquet")
    base = ["count", str(tmp_path / "answers.parquet"), "--plan", str(tmp_path / "plan.json")]
    done = CliRunner().invoke(
        main,
        [*base, "--spec", str(spec), "--by", "district", "--per", "hour", "--json"],
    )
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["per"] == "hour"
    assert {row["group"] for row in report["counts"]} == {"north", "south"}
    assert {row["answers"] for row in report["counts"]} <= {8 * 6, 12 * 6}
    done = CliRunner().invoke(main, [*base, "--to", str(tmp_path / "counts.csv")])
    assert done.exit_code == 0, done.output
    assert "low,high,method" in (tmp_path / "counts.csv").read_text()
    missing = CliRunner().invoke(main, [*base, "--by", "district"])
    assert missing.exit_code == 2
