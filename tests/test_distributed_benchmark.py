"""Rivals on a cluster's engine: the same events for all, and no other answers than ours."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest

pytest.importorskip("duckdb")

from benchmarks import data, distributed, foreign
from benchmarks.data import START, WINDOW, Scale
from benchmarks.distributed import Job, Rival
from benchmarks.foreign import Done, UnavailableError
from benchmarks.jobs import Setting, UnequalError
from benchmarks.measuring import Spent
from benchmarks.report import OURS, Finding, Skipped

SCALE = Scale(events=20_000, subjects=100, windows=4)


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(SCALE, 1, tmp_path, 0, 0, 20_000)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job("AND", data.draw_queries(2), SCALE, data.parts(SCALE, tmp_path, 3))


def test_files_divide_the_events_by_subject_and_leave_no_ties(tmp_path: Path) -> None:
    parts = data.parts(SCALE, tmp_path, 3)
    files = [pl.read_csv(path) for path in sorted(parts.named.iterdir())]
    owners = [set(file["subject"]) for file in files]
    assert len(files) == 3
    assert set.union(*owners) == set(range(100))
    assert sum(map(len, owners)) == 100
    whole = pl.concat(files)
    given = pl.DataFrame(data.events(SCALE)).with_columns(pl.col("time").dt.epoch("ms"))
    assert not whole.select("subject", "time").is_duplicated().any()
    assert whole.join(given, on=["subject", "time", "kind"], how="anti").is_empty()
    assert len(whole) == given.select("subject", "time").n_unique()


def test_files_without_a_header_hold_the_same_and_the_few_begin_them(tmp_path: Path) -> None:
    parts = data.parts(SCALE, tmp_path, 2)
    for named in parts.named.iterdir():
        rows = named.read_text().splitlines()[1:]
        assert (parts.bare / named.name).read_text().splitlines() == rows
        few = (parts.few / named.name).read_text().splitlines()
        assert few == rows[: len(few)]
        assert 0 < len(few) < len(rows) / 10


def test_answers_are_read_from_bits_and_what_is_not_committed_is_left(tmp_path: Path) -> None:
    first = START // WINDOW
    (tmp_path / "part-0").write_text(f"7,{first},5\n8,{first + 1},2\n")
    (tmp_path / "part-1").write_text("")
    (tmp_path / ".part-2.inprogress").write_text(f"9,{first},7\n")
    (tmp_path / "_spark_metadata").mkdir()
    detected = foreign._dense(tmp_path, SCALE, 3)
    assert detected.shape == (4, 100, 3)
    assert np.argwhere(detected).tolist() == [[0, 7, 0], [0, 7, 2], [1, 8, 1]]


def _rival(*, wrong: int) -> Rival:
    """Somebody who does the job with the local engine, and changes so many answers."""

    def run(job: Job, _: Setting) -> Done:
        detected = distributed.true_answers(job)
        detected.reshape(-1)[:wrong] ^= True
        return Done(Spent(1, 1), 2, detected)

    return Rival("Other", 3, run)


def test_a_rival_with_other_answers_stops_the_benchmark(job: Job, setting: Setting) -> None:
    with pytest.raises(UnequalError, match="Other differs from the local engine in 2"):
        list(distributed._compare(job, [_rival(wrong=2)], setting))


def test_our_job_is_held_to_each_target_and_to_the_local_engine(
    job: Job, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = Done(Spent(0.25, 0.5), 9, distributed.true_answers(job), Spent(0.5, 1))
    monkeypatch.setattr(distributed, "ours_on_flink", lambda *_: done)
    alone, ratio, true, share, durable = distributed._compare(job, [_rival(wrong=0)], setting)
    assert isinstance(alone, Finding)
    assert alone.target is None
    assert isinstance(ratio, Finding)
    assert isinstance(share, Finding)
    assert (ratio.value, ratio.by_processor, ratio.verdict) == (4, 2, "met")
    assert ratio.seconds[OURS] == done.spent
    assert "Other 2.0 s" in ratio.note
    assert share.by_processor == alone.seconds[OURS].processor / 0.5
    assert isinstance(true, Finding)
    assert (true.value, true.by_processor, true.target) == (2, 1, None)
    assert isinstance(durable, Finding)
    (with_ledger, on_flink) = durable.seconds.values()
    assert durable.by_processor == with_ledger.processor / on_flink.processor
    assert (durable.target, on_flink) == (None, done.spent)


def test_our_job_may_not_give_other_answers_either(
    job: Job, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = Done(Spent(1, 1), 1, ~distributed.true_answers(job))
    monkeypatch.setattr(distributed, "ours_on_flink", lambda *_: done)
    with pytest.raises(UnequalError, match="Tacit differs"):
        list(distributed._compare(job, [_rival(wrong=0)], setting))


def test_without_java_rivals_are_left_out_with_the_reason(
    job: Job, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object) -> Done:
        raise UnavailableError("no Flink for us")

    monkeypatch.setattr(distributed, "ours_on_flink", missing)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    rivals = [distributed.FLINK_SQL, distributed.SPARK]
    found = list(distributed._compare(job, rivals, setting))
    reasons = [each.reason for each in found if isinstance(each, Skipped)]
    assert len(reasons) == len(found)
    assert ["no Java" in reason for reason in reasons] == [True, True, False]
    assert reasons[-1] == "no Flink for us"
