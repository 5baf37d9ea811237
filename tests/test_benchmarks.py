"""The benchmarks compare like with like: everyone gives the same answers to the same queries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("duckdb")

from benchmarks import data, delivery, jobs, memory, ours, rivals
from benchmarks.data import Scale
from benchmarks.measuring import Outcome, Spent
from benchmarks.report import Finding, against

SCALE = Scale(events=20_000, subjects=100, windows=4)


@pytest.fixture
def setting(tmp_path: Path) -> jobs.Setting:
    return jobs.Setting(SCALE, 1, tmp_path, 20_000, 20_000, 20_000)


def test_everyone_detects_the_same_patterns_in_order(
    setting: jobs.Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = data.draw_queries
    monkeypatch.setattr(data, "draw_queries", lambda number, kinds: draw(min(number, 2), kinds))
    findings = [*jobs.order(setting)]
    assert all("the same for all" in finding.note for finding in findings)
    assert not any(finding.note.startswith("0 of") for finding in findings)


@pytest.mark.soak
def test_everyone_detects_the_same_patterns_from_memory_and_files(
    setting: jobs.Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = data.draw_queries
    monkeypatch.setattr(data, "draw_queries", lambda number, kinds: draw(min(number, 2), kinds))
    compared = [*jobs.presence(setting), *jobs.parquet(setting), *jobs.order(setting)]
    findings = [finding for finding in compared if "to decode" not in finding.measure]
    assert len(findings) == 7
    assert len(compared) - len(findings) == 16
    assert all("the same for all" in finding.note for finding in findings)
    assert not any(finding.note.startswith("0 of") for finding in findings)


def test_a_rival_with_other_answers_is_refused() -> None:
    queries, others = data.draw_queries(3), data.draw_queries(3, seed=9)
    table = data.events(SCALE)
    spec = ours.specification("AND", queries, SCALE)
    contestants = {
        "Tacit": lambda: ours.detect(spec, table),
        "other": rivals.presence(table, others, SCALE)["Polars bits"],
    }
    with pytest.raises(jobs.UnequalError, match="other differs from Tacit"):
        jobs._checked(contestants, 1, SCALE, 3)


@pytest.mark.soak
def test_batches_of_any_size_and_all_at_once_give_the_same_detections() -> None:
    queries = data.draw_queries(5)
    table = data.events(SCALE)
    spec = ours.specification("SEQ", queries, SCALE)
    whole = ours.dense(ours.detect(spec, table), SCALE, 5)
    pushed = ours.dense(ours.push(spec, data.batches(table, 999)), SCALE, 5)
    assert whole.any()
    assert np.array_equal(whole, pushed)


def test_data_depend_on_the_seed_alone_and_stay_within_the_lateness() -> None:
    table = data.events(SCALE)
    assert table.equals(data.events(SCALE))
    assert not table.equals(data.events(SCALE, seed=5))
    times = table["time"].to_numpy().astype(np.int64)
    behind = np.maximum.accumulate(times) - times
    assert 0 < behind.max() < data.LATENESS
    assert set((times - data.START) // data.WINDOW) == set(range(SCALE.windows))


def test_a_flow_brings_all_its_events_within_the_lateness() -> None:
    parts = list(data.flow(SCALE, 1_000))
    times = np.concatenate([part["time"].to_numpy().astype(np.int64) for part in parts])
    assert len(times) == SCALE.events
    assert (np.maximum.accumulate(times) - times).max() < data.LATENESS


@pytest.mark.soak
def test_memory_of_a_stream_and_a_file_is_watched(tmp_path: Path) -> None:
    spec = ours.specification("AND", data.draw_queries(2), SCALE)
    streamed = memory._watch(spec, data.flow(SCALE, 1_000))
    filed = memory._read(spec, data.long_parquet(SCALE, tmp_path), SCALE)
    for seen in (streamed, filed):
        assert 0 < seen["early"] <= seen["most"]


def test_the_verdict_is_by_the_clock_and_else_by_processor_time() -> None:
    seconds = {"Tacit": Spent(1, 1), "Polars a": Spent(4, 8), "Polars b": Spent(3, 9)}
    found = against("job", seconds, 3)
    assert (found.value, found.by_processor, found.verdict) == (3, 8, "met")
    assert against("job", seconds, 5).verdict == "met by CPU"
    assert against("job", seconds, 9).verdict == "missed"
    assert Finding("job", "cost", 2.9, target=3, bound="at most").verdict == "met"
    assert Finding("job", "cost", 3.1, target=3, bound="at most").verdict == "missed"
    assert Finding("job", "cost", 3.1).verdict == "reported"


def test_small_batches_that_take_four_times_as_long_have_a_quarter_of_the_rate(
    setting: jobs.Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def race(runs: dict[str, object], *_: object) -> dict[str, Outcome[int]]:
        slow = {"batches of 10,000": 4.0, "1000 queries": 6.0, "1,000 subjects": 5.0}
        return {name: Outcome(1, Spent(slow.get(name, 1), slow.get(name, 1))) for name in runs}

    monkeypatch.setattr(jobs, "race", race)
    rates = list(jobs.batching(setting))
    assert [(rate.value, rate.verdict) for rate in rates] == [(0.25, "missed")] * 2
    costs = list(jobs.scaling(setting))
    assert [(cost.value, cost.verdict) for cost in costs] == [(6, "missed"), (5, "missed")]


def test_batches_that_give_other_detections_are_refused(setting: jobs.Setting) -> None:
    runs = {"one": lambda: 1, "other": lambda: 2}
    with pytest.raises(jobs.UnequalError, match="differs between one, other"):
        jobs._ratio("job", "measure", runs, 1, 3, same=True)


@pytest.mark.soak
def test_delivery_is_compared_with_the_release_of_the_same_windows(tmp_path: Path) -> None:
    ratio, kept = delivery.delivery(jobs.Setting(Scale(20_000), 1, tmp_path, 0, 0, 0))
    assert ratio.value > 0
    assert ratio.seconds.keys() == {"release", "delivery"}
    assert ratio.value == pytest.approx(
        ratio.seconds["delivery"].elapsed / ratio.seconds["release"].elapsed
    )
    assert kept.value > 0
    assert list(tmp_path.iterdir()) == []
