"""Counts with memory in runs: history, limits, restarts and reloads."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

import tacit
from tacit.connectors.openers import open_sink
from tacit.evaluation.baselines.count_series import CountSetting
from tacit.evaluation.count_release import PacedCounts
from tacit.pipeline.versions import SpecVersion
from tacit.planning.count_models import follow_history
from tacit.planning.planner import find_count_limit
from tacit.privacy.count_channels import CountChannel
from tacit.privacy.count_memory import CountHistory
from tacit.privacy.mechanisms.counts import CountRelease
from tacit.privacy.prices import NANO
from tacit.privacy.randomness import SeededSource
from tests.engines.fleets import load_spec, read_spent, write_registry
from tests.longer import longer

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
    write_registry(["red" if number % 3 else "blue" for number in range(TAXIS)])


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


def compare(found: pl.DataFrame, true: pl.DataFrame, query: str) -> pl.DataFrame:
    """Estimates beside true counts."""
    keys = ["window_start", "query", "group"]
    truth = true.select(*keys, pl.col("count").alias("true"))
    joined = found.join(truth, on=keys, nulls_equal=True)
    return joined.filter(pl.col("query").cast(pl.String) == query)


@pytest.mark.soak
@pytest.mark.parametrize("text", [LIMITED, *longer(SPEC)])
def test_estimates_are_as_good_as_the_plan_says_and_better_than_draws(text: str) -> None:
    spec = load_spec(text)
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


@pytest.mark.cases(1)
@pytest.mark.parametrize("text", [LIMITED, MIXED])
def test_a_limit_is_spread_over_the_day_and_never_passed(text: str) -> None:
    spec = load_spec(text)
    plan = tacit.plan(spec, rows(0, 6, 1))
    data = rows(6, 3, 2)
    found = tacit.run(spec, data, plan=plan, ledger="a.db").counted()
    for taxi in ("t0", "t1", "t59"):
        days = read_spent("a.db", taxi)
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
    assert find_count_limit(load_spec(every), "stops", Fraction(1, 4)) is None
    limit = find_count_limit(load_spec(MIXED), "stops", Fraction(1, 4))
    assert limit is not None
    assert limit.epsilon == Fraction(3, 4)
    assert limit.horizon == 24 * 3600 * 10**6


def test_a_reload_keeps_the_memory_of_counts_if_nothing_about_them_changes() -> None:
    spec = load_spec(LIMITED)
    plan = tacit.plan(spec, rows(0, 4, 1), mechanism="uniform")
    version = SpecVersion(spec, plan)
    assert "counts" in version.find_remembered(SpecVersion(spec, plan))
    read = SpecVersion.unpack(version.packed)
    assert "counts" in version.find_remembered(read)
    other = load_spec(LIMITED.replace("OR(stop, rain)", "AND(stop, rain)"))
    changed = SpecVersion(other, tacit.plan(other, rows(0, 4, 1), mechanism="uniform"))
    assert "counts" not in version.find_remembered(changed)


def test_without_memory_or_history_there_are_no_estimates() -> None:
    spec = load_spec(SPEC + "memory: false\n")
    plan = tacit.plan(spec, rows(0, 4, 1), mechanism="uniform")
    assert not plan.count_memories
    found = tacit.run(spec, rows(4, 1, 2), plan=plan, seed=1).counted()
    assert found["estimate"].is_null().all()
    found = tacit.run(load_spec(SPEC), rows(4, 1, 2), mechanism="uniform", seed=1).counted()
    assert found["estimate"].is_null().all()
    true = tacit.detect(load_spec(SPEC), rows(4, 1, 2)).counted()
    assert (true["estimate"] == true["count"]).all()


def test_groups_that_history_does_not_have_are_like_the_others() -> None:
    plan = tacit.plan(load_spec(SPEC), rows(0, 4, 1), mechanism="uniform")
    write_registry(["green" if number < 20 else "red" for number in range(TAXIS)])
    found = tacit.run(load_spec(SPEC), rows(4, 2, 2), plan=plan, seed=1).counted()
    true = tacit.detect(load_spec(SPEC), rows(4, 2, 2)).counted()
    both = compare(found, true, "fleets").filter(group="green")
    assert both.height == 2 * DAY
    error = (both["estimate"] - both["true"]).abs().mean()
    assert isinstance(error, float)
    assert error < 2.5


def test_a_run_releases_what_the_comparison_of_counts_simulates() -> None:
    """The comparison with baselines does not run the engine; with the same seed both agree."""
    text = SPEC.replace("epsilon: 1}", "epsilon: 3, limit: 3 per day}")
    spec = load_spec("\n".join(line for line in text.splitlines() if "fleets" not in line) + "\n")
    history, data = rows(0, 6, 1), rows(6, 3, 2)
    plan = tacit.plan(spec, history)
    true = [
        tacit.detect(spec, part).counted()["count"].to_numpy().astype(np.float64)
        for part in (history, data)
    ]
    setting = CountSetting(true[0].reshape(-1, DAY), TAXIS)
    simulated = PacedCounts().choose(setting, 3.0)
    assert simulated.memory is not None
    assert simulated.memory.to_dict() == plan.count_memories["stops"].to_dict()
    found = tacit.run(spec, data, plan=plan, seed=5, ledger="a.db").counted()
    local = found["window_start"].dt.timestamp("us").to_numpy()
    zeros = np.zeros((len(local), 1), np.int64)
    detected = true[1].astype(np.int64).reshape(-1, 1)
    series = CountHistory(("",), local, zeros, zeros + TAXIS, detected)
    steps = list(
        follow_history(simulated.memory, series, WINDOW * 10**6, Fraction(3), SeededSource(5))
    )
    np.testing.assert_allclose(found["estimate"], [step.value[0] for _, step in steps])
    drawn = [spent > 0 for spent, _ in steps]
    assert found["count"].is_not_null().to_list() == drawn
    assert 3 < sum(drawn) < len(drawn)
    errors = [
        np.abs(simulated.release(true[1], setting, 3.0, np.random.default_rng(n)).counts - true[1])
        for n in range(20)
    ]
    error = (found["estimate"] - pl.Series(true[1])).abs().mean()
    assert error == pytest.approx(float(np.mean(errors)), rel=0.3)  # one run against twenty


def left_out_of(data: pl.DataFrame, place: str, monkeypatch: Patch) -> tuple[Any, ...]:
    """Who is left out, drawn and charged if the same counts are released, whatever is true."""

    def constant(channel: CountChannel, counts: NDArray[np.int64], _: object) -> Any:
        return np.full_like(counts, 20)

    with monkeypatch.context() as patched:
        patched.setattr(CountChannel, "draw", constant)
        found = tacit.run("spec.yaml", data, plan="plan.json", ledger=place).counted()
    charges = [read_spent(place, taxi) for taxi in ("t0", "t33")]
    rows = found.select("left_out", "subjects", "method", "low", "high", "^estimate.*$")
    return rows.rows(), charges


def change_private_events(data: pl.DataFrame, seed: int) -> pl.DataFrame:
    """Other taxis stop in other windows; public events and times are the same."""
    other = pl.Series(np.random.default_rng(seed).permutation([0, 0, 2] * data.height))
    public = pl.col("kind") == 1
    return data.with_columns(
        kind=pl.when(public).then("kind").otherwise(other.head(data.height)).cast(pl.Int64)
    )


@pytest.mark.parametrize("spend", ["paced", *longer("every")])
def test_who_is_left_out_follows_from_public_events_and_earlier_releases(
    spend: str, monkeypatch: Patch
) -> None:
    text = LIMITED.replace("limit: 3 per day}", f"limit: 3 per day, spend: {spend}}}")
    tacit.plan(load_spec(text), rows(0, 4, 1), mechanism="uniform", out="plan.json")
    data = rows(4, 1, 2)
    other = change_private_events(data, 3)
    assert not data.equals(other)
    told = left_out_of(data, "a.db", monkeypatch)
    assert any(row[0] for row in told[0])
    assert any(not row[0] for row in told[0])
    assert left_out_of(other, "b.db", monkeypatch) == told
    draw, price = CountRelease.draw, CountRelease._price_rows

    def leave_out(self: CountRelease, windows: Any, policies: Any, *rest: Any) -> Any:
        """Leave those out who do not have the pattern: they would not be missed."""
        column = windows.bits[0, self._status.columns[0]].view(np.uint8)
        has = np.unpackbits(column, bitorder="little", count=len(policies)).view(np.bool_)
        return draw(self, windows, np.where(has, policies, policies + 1), *rest)

    def save(self: CountRelease, count: int, windows: Any) -> Any:
        """Save the charge where few have the pattern."""
        true = int(np.bitwise_count(windows.bits[0, self._status.columns[count]]).sum())
        return price(self, count, windows) * (true > TAXIS // 3)

    for name, mutant in (("draw", leave_out), ("_price_rows", save)):
        with monkeypatch.context() as patched:
            patched.setattr(CountRelease, name, mutant)
            found = left_out_of(data, f"{name}.db", monkeypatch)
            assert left_out_of(other, f"{name}2.db", monkeypatch) != found
