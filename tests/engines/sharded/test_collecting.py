"""What shards tell becomes releases: each window once, charged, whatever is told twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import polars as pl
import pytest

from tacit.answers.codec import unpack
from tacit.connectors.files import open_source
from tacit.engines.local import survey
from tacit.engines.setup import assign
from tacit.engines.sharded.collector import Collector
from tacit.engines.sharded.job import ShardedJob
from tacit.engines.sharded.lines import ShardLine
from tacit.engines.sharded.preparation import check_same, prepare
from tacit.errors import SourceError, SpecificationError, StateError
from tacit.ledger.alchemy import sa
from tacit.ledger.codec import unpack_ids
from tacit.ledger.directory import Directory
from tacit.ledger.lease import Lease
from tacit.ledger.ledger import Ledger
from tacit.ledger.rows import iterate_rows
from tacit.ledger.tables import CHARGES
from tacit.ledger.verification import verify
from tacit.pipeline.run import Run
from tacit.pipeline.versions import SpecVersion
from tacit.planning.planner import make_plan, plan_without_history
from tacit.planning.survey import assume_statistics
from tacit.privacy.policies import Policies
from tacit.privacy.prices import NANO
from tacit.spec.yaml_reader import loads
from tests.engines.sharded.simulated import Simulation
from tests.engines.sharded.test_sharded import SPEC, written

SOMETIMES = SPEC + "private:\n  - {pattern: door, epsilon: 0.5, limit: 3 per 10 min}\n"
"""Queries about doors are open in some windows only."""
PRIVATE = SOMETIMES.replace("AND(door, stove)", "door")
SLIDING = PRIVATE.replace("size: 60 s", "size: 60 s, slide: 20 s").replace("3 per", "30 per")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """A ledger in a file."""
    with Ledger.open(str(tmp_path / "spent.db")) as opened:
        yield opened


def prepared(folder: Path, lease: Lease, text: str = PRIVATE) -> ShardedJob:
    """A job of three files, written to a folder and read from there."""
    spec = loads(text)
    files = written(folder, 5, 3, 500)
    version = SpecVersion(spec, plan_without_history(spec, "uniform"))
    job = prepare(version, [(stream, str(path)) for stream, path in files], lease, shards=4)
    job.write(folder / "job")
    return ShardedJob.read(folder / "job")


def release_all(collector: Collector) -> int:
    """Release all complete windows; how many there were."""
    return sum(map(len, iter(collector.release, [])))


def released(ledger: Ledger, lease: Lease) -> pl.DataFrame:
    """All answers in the ledger, in order."""
    names = Directory(ledger)
    tables = [
        unpack(one.body, one.first_id, names)[0] for one in lease.iterate_undelivered("nobody")
    ]
    return pl.concat([pl.DataFrame(table) for table in tables])


@pytest.mark.parametrize("text", [PRIVATE, SLIDING], ids=["tumbling", "sliding"])
def test_each_window_is_released_once_with_its_charges(
    tmp_path: Path, ledger: Ledger, text: str
) -> None:
    """The collector is lost again and again, and told everything anew."""
    lease = ledger.take_over("job", "f")
    job = prepared(tmp_path, lease, text)
    lines = Simulation(job, Random(1), loss=0.1).run()
    random, numbers = Random(2), []
    at = 0
    while True:
        lease = ledger.take_over("job", "f")
        collector = Collector(job, lease)
        collector.take(lines[:at])
        while found := collector.release():
            numbers += [number for number, _ in found]
        if at == len(lines):
            break
        at = min(len(lines), at + random.randint(1, 40))
    assert collector.finished
    assert verify(ledger).passed
    answers = released(ledger, lease)
    windows = answers["window_start"].unique().sort()
    assert numbers == list(range(1, len(windows) + 1))
    people = len(job.subjects)
    assert answers.height == len(windows) * people * 6
    assert answers["id"].to_list() == list(range(answers.height))
    paying = answers.filter(~pl.col("exhausted")).select("window_start", "subject").n_unique()
    assert charged(ledger) == paying * NANO // 2


@pytest.mark.cases(2)
@pytest.mark.parametrize("slide", ["", ", slide: 20 s"], ids=["tumbling", "sliding"])
@pytest.mark.parametrize("mechanism", ["uniform", "optimal"])
def test_shards_charge_what_one_machine_charges(
    tmp_path: Path, ledger: Ledger, slide: str, mechanism: str
) -> None:
    """Window by window and subject by subject, free ones included, limits and zones too."""
    text = SOMETIMES.replace("size: 60 s", f"size: 60 s{slide}").replace("3 per", "1.25 per")
    spec = loads(text + "zone: Asia/Kathmandu\n")
    files = written(tmp_path, 5, 1, 900)
    queries = tuple(spec.query_patterns.values())
    statistics = [
        assume_statistics(policy, queries, {}, spec.windows.panes)
        for policy in Policies(spec).policies
    ]
    version = SpecVersion(spec, make_plan(spec, statistics, mechanism))
    lease = ledger.take_over("job", "f")
    job = prepare(version, [(stream, str(path)) for stream, path in files], lease, shards=4)
    job.write(tmp_path / "job")
    job = ShardedJob.read(tmp_path / "job")
    collector = Collector(job, lease)
    collector.take(Simulation(job, Random(3), loss=0.1).run())
    release_all(collector)
    with Ledger.open(str(tmp_path / "alone.db")) as alone:
        inputs = assign(spec, [(stream, open_source(path)) for stream, path in files])
        Run(spec, inputs, plan=version.plan, ledger=alone, name="job").run()
        ours, theirs = rows(ledger), rows(alone)
    assert ours == theirs
    amounts = {row[-1] for row in ours}
    assert 0 in amounts
    assert len(amounts) > 1


def test_shards_pace_a_limit_and_the_collector_accepts_it(tmp_path: Path, ledger: Ledger) -> None:
    """Some windows are saved for later although the limit is not reached; none exceeds it."""
    spec = loads(PRIVATE.replace("3 per 10 min", "3 per 30 min"))
    files = [("home", lasting(tmp_path / "lasting.parquet"))]
    inputs = assign(spec, [(stream, open_source(path)) for stream, path in files])
    version = SpecVersion(spec, make_plan(spec, survey(spec, inputs, literal=False)))
    assert version.plan.mechanisms[0].pacing is not None
    lease = ledger.take_over("job", "f")
    job = prepare(version, [(stream, str(path)) for stream, path in files], lease, shards=2)
    collector = Collector(job, lease)
    collector.take(Simulation(job, Random(3)).run())
    assert release_all(collector)
    spent = pl.DataFrame(rows(ledger), ["window", "subject", "private", "amount"], orient="row")
    horizon = pl.col("window").dt.truncate("30m")
    by_horizon = spent.group_by(horizon, "subject").agg(pl.col("amount").sum())
    assert (by_horizon["amount"] <= 3 * NANO).all()
    answers = released(ledger, lease).select(
        pl.col("window_start").alias("window"), pl.col("subject").cast(pl.String)
    )
    unpaid = answers.unique().join(spent, ["window", "subject"], "anti")
    left = by_horizon.filter(pl.col("amount") < 3 * NANO)
    assert not unpaid.with_columns(horizon).join(left, ["window", "subject"], "semi").is_empty()


def lasting(path: Path) -> Path:
    """Tuples of ninety windows in order; what a subject does lasts several of them."""
    random = np.random.default_rng(1)
    changes = random.random((90, 20)) < 0.15
    doing = np.cumsum(changes, axis=0) % 4
    window, who = (part.ravel() for part in np.indices(doing.shape))
    pl.DataFrame(
        {
            "who": [f"p{n}" for n in who],
            "at": 1_700_000_100 + 60 * window + 30,
            "kind": doing.ravel(),
            "level": random.integers(0, 10, doing.size),
        }
    ).write_parquet(path)
    return path


def rows(ledger: Ledger) -> list[tuple[object, ...]]:
    """All charges of a ledger."""
    columns = ["window_start", "subject", "private", "nano_epsilon"]
    found = pl.concat([pl.DataFrame(table).select(columns) for table in iterate_rows(ledger)])
    return sorted(found.cast({"subject": pl.String, "private": pl.String}).rows())


def charged(ledger: Ledger) -> int:
    """All charges in a ledger, in nano-epsilon."""
    columns = CHARGES.c["ids", "amount", "windows"]
    with ledger.database.reading() as connection:
        rows = connection.execute(sa.select(*columns)).all()
    return sum(int(unpack_ids(ids).sum()) * amount * windows for ids, amount, windows in rows)


def test_a_limit_is_reached_in_all_shards_from_the_same_window_on(
    tmp_path: Path, ledger: Ledger
) -> None:
    """Six windows of half an epsilon make three; a new horizon begins every ten minutes."""
    lease = ledger.take_over("job", "f")
    job = prepared(tmp_path, lease)
    collector = Collector(job, lease)
    collector.take(Simulation(job, Random(3)).run())
    release_all(collector)
    answers = released(ledger, lease)
    by_window = answers.group_by("window_start").agg(
        pl.col("exhausted").all().alias("all"), pl.col("exhausted").any().alias("any")
    )
    assert by_window.filter(pl.col("all") != pl.col("any")).is_empty()
    by_horizon = (
        by_window.with_columns(pl.col("window_start").dt.truncate("10m").alias("horizon"))
        .group_by("horizon")
        .agg((~pl.col("all")).sum().alias("paid"), pl.len().alias("windows"))
    )
    assert by_horizon["paid"].max() == 6
    assert by_horizon.filter(pl.col("paid") != pl.min_horizontal("windows", 6)).is_empty()


def test_what_was_spent_before_counts_and_what_others_spend_meanwhile_stops_the_job(
    tmp_path: Path, ledger: Ledger
) -> None:
    first = ledger.take_over("first", "f")
    job = prepared(tmp_path, first)
    lines = Simulation(job, Random(3)).run()
    half = [line for line in lines if not line.finished and line.window <= lines[0].first + 3]
    early = Collector(job, first)
    early.take(half)
    assert release_all(early) == 4
    second = ledger.take_over("second", "f")
    knowing = prepare(
        job.version, [(one.stream, one.source) for one in job.partitions], second, shards=3
    )
    assert knowing.opening
    collector = Collector(knowing, second)
    collector.take(Simulation(knowing, Random(4)).run())
    assert release_all(collector)
    early.take(lines)
    with pytest.raises(StateError, match="another run has charged"):
        release_all(early)
    assert verify(ledger).passed


def test_panes_are_not_drawn_again_for_windows_after_those_released(
    tmp_path: Path, ledger: Ledger
) -> None:
    """A job that is started from too old a state tells other noise for what was released."""
    lease = ledger.take_over("job", "f")
    job = prepared(tmp_path, lease, SLIDING)
    lines, others = (Simulation(job, Random(seed)).run() for seed in (1, 1))
    first = lines[0].first
    early = Collector(job, lease)
    early.take([line for line in lines if not line.finished and line.window < first + 5])
    release_all(early)
    again = Collector(job, ledger.take_over("job", "f"))
    again.take(lines)  # the same once more is fine
    later = Collector(job, ledger.take_over("job", "f"))
    with pytest.raises(StateError, match="older than its last release"):
        later.take(others)


def remembering(folder: Path, lease: Lease) -> ShardedJob:
    """A job whose plan has memory."""
    spec = loads(PRIVATE.replace("3 per 10 min", "30 per 30 min"))
    files = [("home", lasting(folder / "lasting.parquet"))]
    inputs = assign(spec, [(stream, open_source(path)) for stream, path in files])
    version = SpecVersion(spec, make_plan(spec, survey(spec, inputs, literal=False)))
    assert version.plan.has_memory
    return prepare(version, [(stream, str(path)) for stream, path in files], lease, shards=2)


def test_no_belief_follows_from_noise_that_was_drawn_again(tmp_path: Path, ledger: Ledger) -> None:
    """What was released and what was drawn again would both be told, for one charge."""
    lease = ledger.take_over("job", "f")
    job = remembering(tmp_path, lease)
    lines, others = (Simulation(job, Random(seed)).run() for seed in (1, 1))
    first = lines[0].first
    early = Collector(job, lease)
    early.take([line for line in lines if not line.finished and line.window < first + 5])
    release_all(early)
    again = Collector(job, ledger.take_over("job", "f"))
    again.take(lines)  # the same once more is fine
    later = Collector(job, ledger.take_over("job", "f"))
    with pytest.raises(StateError, match="older than its last release"):
        later.take(others)


def test_answers_that_follow_from_dropped_noise_are_dropped(tmp_path: Path, ledger: Ledger) -> None:
    """Shards that draw a window again draw all later ones again, too."""
    lease = ledger.take_over("job", "f")
    job = remembering(tmp_path, lease)
    lines, others = (Simulation(job, Random(seed)).run() for seed in (1, 1))
    second = lines[0].first + 1
    collector = Collector(job, lease)
    collector.take(line for line in lines if not line.finished)
    collector.take(line for line in others if not line.finished and line.window <= second)
    assert release_all(collector) == 2
    collector.take(others)
    release_all(collector)
    assert collector.finished
    with Ledger.open(str(tmp_path / "other.db")) as another:
        alone = another.take_over("job", "f")
        whole = Collector(remembering(tmp_path, alone), alone)
        whole.take(others)
        release_all(whole)
        told = ["window_start", "subject", "query", "detected", "confidence"]
        assert released(ledger, lease).select(told).equals(released(another, alone).select(told))


def test_noise_that_is_drawn_again_for_a_released_window_is_never_heard_of(
    tmp_path: Path, ledger: Ledger
) -> None:
    lease = ledger.take_over("job", "f")
    job = prepared(tmp_path, lease)
    lines, others = (Simulation(job, Random(seed)).run() for seed in (1, 1))
    early = Collector(job, lease)
    early.take([line for line in lines if not line.finished and line.window < lines[0].first + 5])
    release_all(early)
    before = released(ledger, lease)
    later = Collector(job, ledger.take_over("job", "f"))
    later.take(others)
    release_all(later)
    after = released(ledger, ledger.take_over("job", "f"))
    assert after.head(before.height).equals(before)
    assert after["window_start"].n_unique() == len({line.window for line in lines if line.body})


def test_lines_go_to_text_and_back() -> None:
    for exhausted in (None, np.array([True, False] * 5 + [True]), np.zeros(0, np.bool_)):
        line = ShardLine((3,), -7, -9, exhausted, b"\x00\xffbody", "mark")
        again = ShardLine.from_line(line.to_line() + "\n")
        assert (again.shards, again.window, again.first) == ((3,), -7, -9)
        assert (again.body, again.mark) == (line.body, "mark")
        if again.exhausted is None or exhausted is None:
            assert again.exhausted is exhausted
        else:
            assert np.array_equal(again.exhausted, exhausted)
    assert ShardLine.from_line("4 finished\n").finished
    with pytest.raises(StateError, match="damaged"):
        ShardLine.from_line("4 5 6")


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"shards": 5}, "the number of shards"),
        ({"partitions": ()}, "the sources"),
    ],
)
def test_a_job_cannot_go_on_as_another_one(
    tmp_path: Path, ledger: Ledger, change: dict[str, object], found: str
) -> None:
    job = prepared(tmp_path, ledger.take_over("job", "f"))
    check_same(job, job)
    with pytest.raises(StateError, match=found):
        check_same(replace(job, **change), job)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "source", "wrong", "found"),
    [
        (PRIVATE.replace("lateness: 25 s", "lateness: 25 s, close: clock"), None,
         SpecificationError, "close by the clock"),
        (PRIVATE.replace("epsilon: 0.5", "epsilon: 0.5, subjects: [nobody]"), None,
         SpecificationError, "1 subject that the registry does not have: 'nobody'"),
        (PRIVATE, "-", SourceError, "read again"),
        (PRIVATE, "mqtt://localhost/home/+", SourceError, "read again"),
    ],
)  # fmt: skip
def test_what_cannot_be_distributed_is_refused(
    tmp_path: Path,
    ledger: Ledger,
    text: str,
    source: str | None,
    wrong: type[Exception],
    found: str,
) -> None:
    spec = loads(text)
    version = SpecVersion(spec, plan_without_history(spec, "uniform"))
    given = source or str(written(tmp_path, 1, 1, 10)[0][1])
    with pytest.raises(wrong, match=found):
        prepare(version, [(None, given)], ledger.take_over("job", "f"))
