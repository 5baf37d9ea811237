"""Counts with memory in runs: history, limits, restarts and reloads."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import tacit
from tacit.connectors.openers import open_sink
from tacit.ledger.ledger import Ledger
from tacit.ledger.statement import read_statement
from tacit.ledger.verification import verify
from tacit.pipeline.versions import SpecVersion
from tacit.planning.planner import find_count_limit
from tacit.privacy.prices import NANO

Patch = pytest.MonkeyPatch
WINDOW, DAY = 3600, 24
TAXIS = 60
SPEC = """
version: 1
streams: {gps: {subject: taxi, time: at, unit: s}}
windows: {size: 1 h}
events:
  stop: {stream: gps, where: "kind = 0"}
  rain: {stream: gps, where: "kind = 1"}
private:
  - {pattern: stop, epsilon: 1}
queries:
  - {name: stops, consumer: city, count: stop}
  - {name: fleets, consumer: city, count: "OR(stop, rain)", by: fleet}
subjects: {file: taxis.csv, column: taxi}
"""
LIMITED = SPEC.replace("epsilon: 1}", "epsilon: 1, limit: 3 per day}")
MIXED = LIMITED.replace("queries:", "queries:\n  - {name: who, consumer: city, pattern: stop}")
MIXED = MIXED.replace("count: stop}", "count: stop, share: 0.25}").replace(
    "by: fleet}", "by: fleet, share: 0.25}"
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: Patch) -> None:
    """Everything is in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    fleets = ["red" if number % 3 else "blue" for number in range(TAXIS)]
    taxis = [f"t{number}" for number in range(TAXIS)]
    pl.DataFrame({"taxi": taxis, "fleet": fleets}).write_csv("taxis.csv")


def rows(first: int, days: int, seed: int) -> pl.DataFrame:
    """Whole days of tuples: more taxis stop by day than by night, on some days more than usual."""
    rng = np.random.default_rng(seed)
    window, taxi = np.indices((days * DAY, TAXIS)).reshape(2, -1)
    course = 0.35 + 0.25 * np.sin(2 * np.pi * np.arange(days * DAY) / DAY)
    walk = np.zeros(days * DAY)
    for step in range(1, days * DAY):
        walk[step] = 0.9 * walk[step - 1] + rng.normal(0, 0.03)
    share = np.clip(course + walk, 0.02, 0.98)[window]
    kind = np.where(rng.random(len(window)) < share, 0, 2)
    kind = np.where((kind == 2) & (rng.random(len(window)) < 0.1), 1, kind)
    at = (first * DAY + window) * WINDOW + rng.integers(0, WINDOW, len(window))
    frame = pl.DataFrame({"taxi": [f"t{n}" for n in taxi.tolist()], "at": at, "kind": kind})
    return frame.sort("at")


def load(text: str = SPEC) -> tacit.Specification:
    """Read a specification from its file: paths begin there."""
    Path("spec.yaml").write_text(text)
    return tacit.load("spec.yaml")


def compare(found: pl.DataFrame, true: pl.DataFrame, query: str) -> pl.DataFrame:
    """Estimates beside true counts."""
    keys = ["window_start", "query", "group"]
    truth = true.select(*keys, pl.col("count").alias("true"))
    joined = found.join(truth, on=keys, nulls_equal=True)
    return joined.filter(pl.col("query").cast(pl.String) == query)


@pytest.mark.parametrize("text", [SPEC, LIMITED])
def test_estimates_are_as_good_as_the_plan_says_and_better_than_draws(text: str) -> None:
    spec = load(text)
    plan = tacit.plan(spec, rows(0, 8, 1), mechanism="uniform")
    expected = {row["query"]: row["expected_error"] for row in plan.count_rows()}
    errors: dict[str, list[float]] = {"stops": [], "fleets": []}
    inside: list[float] = []
    for seed in (2, 3):
        data = rows(8, 3, seed)
        true = tacit.detect(spec, data).counted()
        given: dict[str, Any] = {"ledger": f"{seed}.db"} if text is LIMITED else {}
        found = tacit.run(spec, data, plan=plan, seed=seed, **given).counted()
        for query, own in errors.items():
            both = compare(found, true, query)
            assert both.height == true.filter(pl.col("query").cast(pl.String) == query).height
            error = (both["estimate"] - both["true"]).abs().mean()
            assert isinstance(error, float)
            own.append(error)
            covered = both["true"].is_between(both["estimate_low"], both["estimate_high"])
            inside.append(float(covered.mean()))  # type: ignore[arg-type]
            drawn = both.filter(pl.col("left_out") == 0)
            raw = (drawn["count"] - drawn["true"]).abs().mean()
            assert isinstance(raw, float)
            if text is SPEC:
                assert raw > 1.05 * error
    for query, own in errors.items():
        assert np.mean(own) == pytest.approx(expected[query], rel=0.2)
    assert np.mean(inside) > 0.9


def spent(place: str, taxi: str) -> list[int]:
    """What a taxi has spent on each day."""
    with Ledger.open(place) as ledger:
        assert verify(ledger, full=True).passed
        return [one.spent for one in read_statement(ledger, subject=taxi, private="stop").horizons]


@pytest.mark.parametrize("text", [LIMITED, MIXED])
def test_a_limit_is_spread_over_the_day_and_never_passed(text: str) -> None:
    spec = load(text)
    plan = tacit.plan(spec, rows(0, 6, 1))
    data = rows(6, 3, 2)
    found = tacit.run(spec, data, plan=plan, ledger="a.db").counted()
    for taxi in ("t0", "t1", "t59"):
        days = spent("a.db", taxi)
        assert len(days) == 3
        assert all(2 * NANO < day <= 3 * NANO for day in days)
    stops = found.filter(pl.col("query").cast(pl.String) == "stops")
    drawn = stops.filter(pl.col("left_out") == 0)
    assert 3 < drawn.height < stops.height  # some windows are skipped
    assert drawn["window_start"].dt.hour().n_unique() >= 3  # all over the day
    assert set(stops["left_out"].to_list()) == {0, TAXIS}  # all or nobody, as the draw is for all
    assert stops["estimate"].is_not_null().all()
    assert_rows_without_a_count_say_so(stops)
    table = tacit.released("a.db").counted().to_arrow()
    for suffix, read in READERS.items():
        with open_sink(f"counts.{suffix}", table.schema, {}) as sink:
            sink.write(table)
        written = read(f"counts.{suffix}")
        assert_rows_without_a_count_say_so(
            written.filter(pl.col("query").cast(pl.String) == "stops")
        )


READERS: dict[str, Callable[[str], pl.DataFrame]] = {
    "csv": pl.read_csv,
    "jsonl": pl.read_ndjson,
    "parquet": pl.read_parquet,
    "arrow": pl.read_ipc,
}


def assert_rows_without_a_count_say_so(stops: pl.DataFrame) -> None:
    """Rows of windows that were not drawn have no count, and what is certain of all taxis."""
    none = stops.filter(pl.col("method").cast(pl.String) == "none")
    assert none.height == stops.filter(pl.col("left_out") > 0).height > 0
    assert none["count"].is_null().all()
    assert (none["confidence"] == 1).all()
    assert (none["high"] - none["low"] == none["left_out"]).all()
    rest = stops.filter(pl.col("method").cast(pl.String) != "none")
    assert rest["count"].is_not_null().all()
    assert set(rest["method"].cast(pl.String)) == {"drawn"}


def test_counts_have_their_share_of_a_limit_whatever_answers_spend() -> None:
    every = MIXED.replace("limit: 3 per day}", "limit: 3 per day, spend: every}")
    assert find_count_limit(load(every), "stops", Fraction(1, 4)) is None
    limit = find_count_limit(load(MIXED), "stops", Fraction(1, 4))
    assert limit is not None
    assert limit.epsilon == Fraction(3, 4)
    assert limit.horizon == 24 * 3600 * 10**6


def test_a_reload_keeps_the_memory_of_counts_if_nothing_about_them_changes() -> None:
    spec = load(LIMITED)
    plan = tacit.plan(spec, rows(0, 4, 1), mechanism="uniform")
    version = SpecVersion(spec, plan)
    assert "counts" in version.find_remembered(SpecVersion(spec, plan))
    read = SpecVersion.unpack(version.packed)
    assert "counts" in version.find_remembered(read)
    other = load(LIMITED.replace("OR(stop, rain)", "AND(stop, rain)"))
    changed = SpecVersion(other, tacit.plan(other, rows(0, 4, 1), mechanism="uniform"))
    assert "counts" not in version.find_remembered(changed)


def test_without_memory_or_history_there_are_no_estimates() -> None:
    spec = load(SPEC + "memory: false\n")
    plan = tacit.plan(spec, rows(0, 4, 1), mechanism="uniform")
    assert not plan.count_memories
    found = tacit.run(spec, rows(4, 1, 2), plan=plan, seed=1).counted()
    assert found["estimate"].is_null().all()
    found = tacit.run(load(), rows(4, 1, 2), mechanism="uniform", seed=1).counted()
    assert found["estimate"].is_null().all()
    true = tacit.detect(load(), rows(4, 1, 2)).counted()
    assert (true["estimate"] == true["count"]).all()


def test_groups_that_history_does_not_have_are_like_the_others() -> None:
    plan = tacit.plan(load(), rows(0, 4, 1), mechanism="uniform")
    fleets = ["green" if number < 20 else "red" for number in range(TAXIS)]
    taxis = [f"t{number}" for number in range(TAXIS)]
    pl.DataFrame({"taxi": taxis, "fleet": fleets}).write_csv("taxis.csv")
    found = tacit.run(load(), rows(4, 2, 2), plan=plan, seed=1).counted()
    true = tacit.detect(load(), rows(4, 2, 2)).counted()
    both = compare(found, true, "fleets").filter(group="green")
    assert both.height == 2 * DAY
    error = (both["estimate"] - both["true"]).abs().mean()
    assert isinstance(error, float)
    assert error < 2.5
