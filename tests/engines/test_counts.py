"""Counts in runs: who is counted, who is charged, and that a release is the same for ever."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

import tacit
from tacit.answers.codec import pack, unpack, unpack_counts
from tacit.cli.main import main
from tacit.errors import OptionError, SourceError
from tacit.pipeline.versioned_windows import NextVersion
from tacit.pipeline.versions import SpecVersion
from tacit.planning.planner import plan_without_history
from tacit.privacy.count_channels import CountChannel
from tacit.privacy.mechanisms.counts import CountRelease
from tacit.privacy.prices import NANO
from tests.engines.fleets import load_spec, read_spent, write_registry

Patch = pytest.MonkeyPatch
SPEC = """
version: 1
streams: {gps: {subject: taxi, time: at, unit: s}}
windows: {size: 10 min}
events:
  stop: {stream: gps, where: "kind = 0"}
  rain: {stream: gps, where: "kind = 1"}
private:
  - {pattern: stop, epsilon: 1}
queries:
  - {name: stops, consumer: city, count: "AND(stop, rain)", by: fleet}
  - {name: all, consumer: city, count: "OR(stop, rain)"}
  - {name: wet, consumer: road, count: rain, by: fleet}
subjects: {file: taxis.csv, column: taxi}
mechanism: uniform
"""
MIXED = SPEC.replace("queries:", 'queries:\n  - {name: stopped, consumer: city, pattern: "stop"}')
WINDOW = 600


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: Patch) -> None:
    """Everything is in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    write_registry(["red", "blue", "red", "", "blue"])


def rows(windows: int = 12, seed: int = 1) -> pl.DataFrame:
    """Tuples of all taxis."""
    rng = np.random.default_rng(seed)
    number = 15 * windows
    return pl.DataFrame(
        {
            "taxi": [f"t{n}" for n in rng.integers(0, 5, number)],
            "at": np.sort(rng.integers(0, windows * WINDOW, number)),
            "kind": rng.integers(0, 2, number),
        }
    )


def run(text: str = SPEC, data: pl.DataFrame | None = None, **given: Any) -> pl.DataFrame:
    """The counts of a run."""
    return tacit.run(load_spec(text), rows() if data is None else data, **given).counted()


def test_true_counts_are_those_of_the_subjects_of_each_group() -> None:
    single = (
        SPEC.replace("count:", "pattern:")
        .replace(", by: fleet", "")
        .replace("{file: taxis.csv, column: taxi}", "[t0, t1, t2, t3, t4]")
    )
    answers = tacit.detect(load_spec(single), rows()).polars()
    fleets = pl.read_csv("taxis.csv").with_columns(pl.col("fleet").fill_null(""))
    joined = answers.with_columns(taxi=pl.col("subject").cast(pl.String)).join(fleets, on="taxi")
    counted = tacit.detect(load_spec(SPEC), rows()).counted()
    assert counted.height == 12 * (3 + 1 + 3)  # every group in every window, empty or not
    for name, by in (("stops", ["fleet"]), ("all", []), ("wet", ["fleet"])):
        expected = (
            joined.filter(pl.col("query").cast(pl.String) == name)
            .group_by("window_start", *by)
            .agg(pl.col("detected").sum(), pl.len())
            .sort("window_start", *by)
        )
        found = counted.filter(pl.col("query").cast(pl.String) == name)
        assert found["count"].to_list() == expected["detected"].to_list()
        assert found["subjects"].to_list() == expected["len"].to_list()
        assert found["group"].to_list() == (
            expected["fleet"].to_list() if by else [None] * expected.height
        )


def test_counts_are_noisy_where_private_events_matter_and_exact_elsewhere() -> None:
    true, found = tacit.detect(load_spec(SPEC), rows()).counted(), run(seed=1)
    joined = found.join(true, on=["window_start", "query", "group"], nulls_equal=True)
    wet = joined.filter(pl.col("query").cast(pl.String) == "wet")
    assert (wet["count"] == wet["count_right"]).all()
    assert (wet["low"] == wet["high"]).all()
    assert (wet["confidence"] == 1).all()
    noisy = joined.filter(pl.col("low") < pl.col("high"))
    assert noisy.height > 20
    assert (noisy["count"] != noisy["count_right"]).any()
    inside = noisy["count_right"].is_between(noisy["low"], noisy["high"])
    assert int(inside.sum()) > 0.85 * noisy.height
    assert (noisy["confidence"] > 0.95).all()
    assert not found["private"].any()  # a seed was used


def test_intervals_cover_what_they_say() -> None:
    data = pl.concat(
        [rows(40, seed).with_columns(pl.col("at") + 40 * WINDOW * seed) for seed in range(10)]
    )
    true, found = tacit.detect(load_spec(SPEC), data).counted(), run(data=data, seed=2)
    all_ = pl.col("query").cast(pl.String) == "all"
    joined = (
        found.filter(all_)
        .join(true.filter(all_), on="window_start")
        .filter(pl.col("low") < pl.col("high"))
    )
    inside = joined["count_right"].is_between(joined["low"], joined["high"]).mean()
    assert inside is not None
    assert inside > float(joined["confidence"][0]) - 4 * (0.05 / joined.height) ** 0.5


def find_open(data: pl.DataFrame, taxi: str) -> tuple[int, int]:
    """In how many windows stops and all are open for a taxi: where it rains, and where not."""
    wet = data.filter(taxi=taxi, kind=1).select(pl.col("at") // WINDOW).n_unique()
    return wet, 12 - wet


@pytest.mark.parametrize("text", [SPEC, MIXED])
def test_every_open_subject_is_charged_and_no_other(text: str) -> None:
    data = rows()
    run(text, data, ledger="spent.db")
    share, single = (NANO // 4, NANO // 2) if text is MIXED else (NANO // 2, 0)
    for taxi in ("t0", "t3"):
        assert read_spent("spent.db", taxi) == [share * sum(find_open(data, taxi)) + 12 * single]


def test_a_draw_that_is_not_charged_is_noticed(monkeypatch: Patch) -> None:
    price = CountRelease.price
    monkeypatch.setattr(CountRelease, "price", lambda *given: 0 * price(*given))
    with pytest.raises(AssertionError):
        test_every_open_subject_is_charged_and_no_other(SPEC)


LIMITED = SPEC.replace("epsilon: 1}", "epsilon: 1, limit: 1.5 per day}")


def drawn_from(data: pl.DataFrame, monkeypatch: Patch, place: str) -> list[list[int]]:
    """The true counts that went into channels."""
    found: list[list[int]] = []
    draw = CountChannel.draw

    def spy(self: CountChannel, counts: NDArray[np.int64], source: Any) -> NDArray[np.int64]:
        found.append(counts.tolist())
        return draw(self, counts, source)

    with monkeypatch.context() as patched:
        patched.setattr(CountChannel, "draw", spy)
        run(LIMITED, data, ledger=place)
    return found


def test_exhausted_subjects_are_left_out_before_the_draw(monkeypatch: Patch) -> None:
    data = rows()
    # Taxi t0 has spent its limit before the last windows; what it does there is private.
    other = data.filter(~((pl.col("taxi") == "t0") & (pl.col("kind") == 0) & (pl.col("at") > 4800)))
    assert other.height < data.height
    beat = pl.DataFrame({"taxi": ["t0"] * 12, "at": range(0, 7200, 600), "kind": [2] * 12})
    first, second = (pl.concat([one, beat]).sort("at") for one in (data, other))
    assert drawn_from(first, monkeypatch, "a.db") == drawn_from(second, monkeypatch, "b.db")
    counted = tacit.released("a.db").counted()
    late = counted.filter(pl.col("left_out") > 0)
    assert late.height
    assert (late.filter(pl.col("query").cast(pl.String) == "all")["subjects"] < 5).all()
    draw = CountRelease.draw

    def forgetful(self: CountRelease, windows: Any, policies: Any, *rest: Any) -> Any:
        """Exhausted subjects are counted as the others are."""
        return draw(self, windows, policies % self._status.policies, *rest)

    monkeypatch.setattr(CountRelease, "draw", forgetful)
    assert drawn_from(first, monkeypatch, "c.db") != drawn_from(second, monkeypatch, "d.db")


def test_a_run_that_goes_on_releases_each_count_once() -> None:
    data = rows(20)
    load_spec(MIXED)
    given: dict[str, Any] = {"ledger": "spent.db", "to": "out.csv", "counts_to": "counts.csv"}
    (Path("in")).mkdir()
    data.filter(pl.col("at") < 5000).write_csv("in/1.csv")
    with tacit.open_run("spec.yaml", "in", **given) as first:
        first.run()
    before = Path("counts.csv").read_text()
    data.filter(pl.col("at") >= 5000).write_csv("in/2.csv")
    with tacit.open_run("spec.yaml", "in", **given) as second:
        second.run()
    assert Path("counts.csv").read_text().startswith(before)
    written = pl.read_csv("counts.csv", try_parse_dates=True)
    stored = tacit.released("spent.db").counted()
    assert written.height == stored.height > 0
    assert written["count"].to_list() == stored["count"].to_list()
    assert written.select("window_start", "query", "group").is_unique().all()
    chosen = tacit.released("spent.db", consumer="road").counted()
    assert chosen["query"].cast(pl.String).unique().to_list() == ["wet"]


def test_windows_that_slide_spend_epsilon_over_all_windows_of_an_occurrence() -> None:
    sliding = SPEC.replace("size: 10 min", "size: 20 min, slide: 10 min")
    sliding = sliding.replace("pattern: stop,", "pattern: 'SEQ(stop, stop)',")
    plan = plan_without_history(load_spec(sliding), "uniform")
    assert plan.counts["stops"] == tacit.audit(plan).counts[0].asked
    assert 2 * 2 * plan.counts["stops"] == 1  # one element: it is in two windows
    found = run(sliding, seed=1)
    true = tacit.detect(load_spec(sliding), rows()).counted()
    assert found.height == true.height
    assert (found["subjects"] == true["subjects"]).all()


def test_after_a_reload_counts_wait_until_no_window_shares_a_pane_with_an_old_one() -> None:
    sliding = SPEC.replace("size: 10 min", "size: 30 min, slide: 10 min")
    single = sliding.replace("count:", "pattern:").replace(", by: fleet", "")
    nothing: Any = None
    begins = []
    for text in (sliding, single):
        spec = load_spec(text)
        version = SpecVersion(spec, plan_without_history(spec, "uniform"))
        assert version.plan.draws_panes == (text is single)
        following = NextVersion(version, nothing, nothing, 10, np.empty(0, np.uint64))
        begins.append(following.protected_from)
    mixed = load_spec(MIXED.replace("size: 10 min", "size: 30 min, slide: 10 min"))
    version = SpecVersion(mixed, plan_without_history(mixed, "uniform"))
    assert version.plan.draws_panes
    begins.append(NextVersion(version, nothing, nothing, 10, np.empty(0, np.uint64)).protected_from)
    # Noise of a pane is used as soon as its last pane is new; a count needs all of them to be.
    assert begins == [14, 12, 14]


def test_a_version_takes_its_groups_along() -> None:
    spec = load_spec(SPEC)
    version = SpecVersion(spec, plan_without_history(spec, "uniform"))
    Path("taxis.csv").unlink()
    with pytest.raises(SourceError):
        SpecVersion(spec, version.plan).groups  # noqa: B018
    load_again = SpecVersion.unpack(_packed(version))
    assert load_again.groups == version.groups
    assert [query.by for query in load_again.spec.queries] == ["fleet", None, "fleet"]
    assert load_again.spec.fingerprint == spec.fingerprint


def _packed(version: SpecVersion) -> bytes:
    write_registry(["red", ""])
    packed = version.packed
    Path("taxis.csv").unlink()
    return packed


OLD = (
    "VEFuc0gBAAAAAAAAFQEAACi1L/1gSAA9BgCCzCYhUGfcBgAbDEQmEkGlGqbEDZS7zMyrwrIxMx88k5lZIVALaCABFZCBDPQo"
    "Ax6YFJ8eguIBkoQJ3+GKSh2KF2CHq+Z7sZjXUT0qab7ZZJfW/LqbhkiwZg9YHxXr+mgIyDteru9ovguQphAct5WV5BHr2MKU"
    "4z52+XXLgLHi+HzhGPI8cyffvMvrREOO6sw138t4H3M88m4t3JI7AREAwAxAMBgYDIzbM3Pu5w1PZfQy9Mwhfd1XRiFo1KCY"
    "y8zkheauNANm"
)
"""A release of the former format, which has no counts."""


def test_releases_of_the_former_format_are_still_read() -> None:
    body = base64.b64decode(OLD)
    table, consumers = unpack(
        body, 5, lambda ids: pa.array([f"s{n}" for n in ids.tolist()], pa.large_string())
    )
    assert table["detected"].to_pylist() == [True, False, False, True]
    assert consumers == {"q": "city"}
    counts, asked = unpack_counts(body)
    assert (counts.num_rows, asked) == (0, {})


def test_packed_counts_are_the_same_again() -> None:
    answers = list(tacit.run(load_spec(MIXED), rows(), seed=1))
    ids = [np.arange(len(part.subjects)) for part in answers]
    body = pack(answers, ids, {"stopped": "city"})
    counts, consumers = unpack_counts(body)
    assert consumers == {"stops": "city", "all": "city", "wet": "road"}
    expected = pl.concat([pl.DataFrame(part.counted.table()) for part in answers if part.counted])
    assert pl.DataFrame(counts).equals(expected)
    table, _ = unpack(body, 0, lambda ids: pa.array([str(n) for n in ids], pa.large_string()))
    assert table.num_rows == sum(map(len, answers))


def test_the_command_line_writes_counts() -> None:
    load_spec(SPEC)
    rows().write_csv("in.csv")
    command = ["run", "spec.yaml", "in.csv", "--mechanism", "uniform", "--to", "out.csv"]
    refused = CliRunner().invoke(main, command)
    assert "--counts-to" in refused.output
    done = CliRunner().invoke(main, [*command, "--counts-to", "counts.parquet"])
    assert done.exit_code == 0, done.output
    assert pl.read_parquet("counts.parquet").height == 12 * 7
    done = CliRunner().invoke(
        main, [*command[:-1], "other.csv", "--ledger", "spent.db", "--counts-to", "counts.jsonl"]
    )
    assert done.exit_code == 0, done.output
    again = ["ledger", "answers", "spent.db", "--counts", "--to", "again.jsonl"]
    assert CliRunner().invoke(main, again).exit_code == 0
    assert Path("again.jsonl").read_text() == Path("counts.jsonl").read_text()
    true = ["detect", "spec.yaml", "in.csv", "--to", "true.csv", "--counts-to", "true-counts.csv"]
    assert CliRunner().invoke(main, true).exit_code == 0
    assert pl.read_csv("true-counts.csv").height == 12 * 7


def test_what_cannot_be_counted_is_refused() -> None:
    with pytest.raises(OptionError, match="no query of this specification counts"):
        run(SPEC.replace("count:", "pattern:").replace(", by: fleet", ""), counts_to="x.csv")
    with pytest.raises(OptionError, match="need the column fleet"):
        run(learn="10 min")
    with pytest.raises(SourceError, match="no column 'crew'"):
        run(SPEC.replace("by: fleet", "by: crew", 1))


@pytest.mark.parametrize("mechanism", ["uniform", "optimal"])
def test_counts_alone_can_be_planned_from_history(mechanism: str) -> None:
    plan = tacit.plan(load_spec(SPEC), rows(), mechanism=mechanism)
    assert [row["mean_error"] > 0 for row in plan.count_rows()] == [True, True, False]
    assert plan.expected is None
    plan.save("plan.json")
    assert tacit.audit("plan.json").passed
    assert run(plan="plan.json", seed=1).height == 12 * 7
