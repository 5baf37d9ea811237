"""Counts of a job are drawn and charged as on one machine, once for all shards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

import tacit
from tacit.answers.codec import unpack_counts
from tacit.engines.sharded.collector import Collector
from tacit.engines.sharded.count_share import CountShare
from tacit.engines.sharded.job import ShardedJob
from tacit.engines.sharded.job_counts import JobCounts
from tacit.engines.sharded.lines import ShardLine
from tacit.engines.sharded.preparation import prepare
from tacit.errors import LedgerLostError, StateError
from tacit.ledger.lease import Lease
from tacit.ledger.ledger import Ledger
from tacit.ledger.rows import iterate_rows
from tacit.ledger.verification import verify
from tacit.pipeline.versions import SpecVersion
from tacit.planning.plan import Plan
from tacit.privacy.count_channels import CountChannel
from tacit.privacy.mechanisms.counts import CountBits
from tacit.privacy.prices import NANO
from tacit.spec.specification import Specification
from tests.engines.fleets import load_spec, write_registry
from tests.engines.sharded.simulated import Simulation
from tests.engines.sharded.test_collecting import release_all

Patch = pytest.MonkeyPatch
TAXIS, DAY, WINDOW = 24, 24, 3600
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
  - {name: fleets, consumer: road, count: "OR(stop, rain)", by: fleet}
subjects: {file: taxis.csv, column: taxi}
mechanism: uniform
"""
LIMITED = SPEC.replace("epsilon: 1}", "epsilon: 1, limit: 3 per day}")
EVERY = SPEC.replace("epsilon: 1}", "epsilon: 1, limit: 3 per day, spend: every}")
SLIDING = SPEC.replace("size: 1 h", "size: 2 h, slide: 1 h")
ASKED = "queries:\n  - {name: who, consumer: city, pattern: stop}"
SHARED = {"count: stop}": "count: stop, share: 0.25}", "by: fleet}": "by: fleet, share: 0.25}"}
TOLD = f"{SPEC[: SPEC.index('queries:')]}{ASKED}\n" + SPEC[SPEC.index("  - {name: stops") :]
TOLD = TOLD.replace("count: stop}", "count: stop, share: 0}").replace("epsilon: 1}", "epsilon: 3}")
TOLD = "\n".join(line for line in TOLD.split("\n") if "fleets" not in line)


def mix(text: str) -> str:
    """Ask about single taxis too; half of epsilon is for counts."""
    for before, after in SHARED.items():
        text = text.replace(before, after)
    return text.replace("queries:", ASKED)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: Patch) -> None:
    """Everything is in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    write_registry(["red" if number % 3 else "blue" for number in range(TAXIS)])


@pytest.fixture
def drawn(monkeypatch: Patch) -> list[list[int]]:
    """The true numbers that are drawn from; the noise is that of the place in this list."""
    seen: list[list[int]] = []

    def draw(_: CountChannel, true: NDArray[np.int64], source: object) -> NDArray[np.int64]:
        del source
        seen.append(true.tolist())
        noise: NDArray[np.int64] = (7 * len(seen) + np.arange(len(true))) % 5 - 2
        return true + noise

    monkeypatch.setattr(CountChannel, "draw", draw)
    return seen


def rows(first: int, days: int, seed: int) -> pl.DataFrame:
    """Whole days of tuples: more taxis stop by day than by night."""
    rng = np.random.default_rng(seed)
    window, taxi = np.indices((days * DAY, TAXIS)).reshape(2, -1)
    share = 0.4 + 0.3 * np.sin(2 * np.pi * window / DAY)
    kind = np.where(rng.random(len(window)) < share, 0, 2)
    kind = np.where((kind == 2) & (rng.random(len(window)) < 0.2), 1, kind)
    at = (first * DAY + window) * WINDOW + rng.integers(0, WINDOW, len(window))
    frame = pl.DataFrame({"taxi": [f"t{n}" for n in taxi.tolist()], "at": at, "kind": kind})
    return frame.sort("at")


def plan_for(spec: Specification) -> Plan:
    return tacit.plan(spec, rows(0, 3, 1), mechanism="uniform")


def prepared(spec: Specification, plan: Plan, lease: Lease, **given: Any) -> ShardedJob:
    """A job over two files, written to a folder and read from there."""
    data = rows(3, 2, 2)
    for number in range(2):
        data.filter(pl.col("taxi").hash(1) % 2 == number).write_csv(f"{number}.csv")
    version = SpecVersion(spec, plan)
    job = prepare(version, [(None, "0.csv"), (None, "1.csv")], lease, shards=5, **given)
    job.write(Path("job"))
    return ShardedJob.read(Path("job"))


def counts_in(lease: Lease) -> pl.DataFrame:
    """All counts in the ledger."""
    tables = [unpack_counts(one.body)[0] for one in lease.iterate_undelivered("nobody")]
    return plain(pl.concat([pl.DataFrame(table) for table in tables]))


def plain(counts: pl.DataFrame) -> pl.DataFrame:
    """Counts with texts as texts."""
    texts = [pl.col(name).cast(pl.String) for name in ("consumer", "query", "method")]
    return counts.with_columns(texts)


def charges(place: str) -> list[tuple[object, ...]]:
    """All charges of a ledger."""
    columns = ["window_start", "subject", "private", "nano_epsilon"]
    with Ledger.open(place) as ledger:
        found = pl.concat([pl.DataFrame(table).select(columns) for table in iterate_rows(ledger)])
    return sorted(found.cast({"subject": pl.String, "private": pl.String}).rows())


def run_job(
    spec: Specification, plan: Plan, place: str = "job.db", loss: float = 0.1, parts: int = 3
) -> pl.DataFrame:
    """The counts of a job whose tasks and collector are lost again and again."""
    with Ledger.open(place) as ledger:
        job = prepared(spec, plan, ledger.take_over("job", "f"))
        lines = Simulation(job, Random(1), loss=loss).run()
        for part in range(1, parts + 1):
            lease = ledger.take_over("job", "f")
            collector = Collector(job, lease)
            collector.take(lines[: len(lines) * part // parts])
            release_all(collector)
        assert collector.finished
        assert verify(ledger).passed
        return counts_in(lease)


SAME = {
    "no limit": SPEC,
    "paced": LIMITED,
    "every": EVERY,
    "sliding": SLIDING,
    "mixed": mix(SPEC),
    "mixed, every": mix(EVERY),
    "mixed, sliding": mix(SLIDING),
}
"""Where answers are paced, random numbers decide who pays: see the next test."""


@pytest.mark.cases(3)
@pytest.mark.parametrize("text", SAME.values(), ids=SAME)
def test_counts_and_charges_are_those_of_one_machine(text: str, drawn: list[list[int]]) -> None:
    """Draw by draw, with the same noise: estimates, intervals, and who is left out too."""
    spec = load_spec(text)
    plan = plan_for(spec)
    drawn.clear()
    data = rows(3, 2, 2)
    found = tacit.run(spec, data, plan=plan, ledger="alone.db", name="job").counted()
    expected = [*drawn]
    drawn.clear()
    counted = run_job(spec, plan)
    assert drawn == expected
    assert len(drawn) > 10
    assert counted.equals(plain(found))
    assert charges("job.db") == charges("alone.db")
    if "every" in text:
        assert (counted["left_out"] > 0).any()


def test_a_limit_is_shared_with_answers_and_never_passed(drawn: list[list[int]]) -> None:
    """Shards keep the counts' share of it, whatever counts spend: neither hinders the other."""
    spec = load_spec(mix(LIMITED))
    plan = plan_for(spec)
    assert all(memory.spending is not None for memory in plan.count_memories.values())
    drawn.clear()
    counted = run_job(spec, plan)
    stops = counted.filter(pl.col("query") == "stops")
    assert set(stops["left_out"].to_list()) == {0, TAXIS}  # all or nobody, as the draw is for all
    table = pl.DataFrame(
        charges("job.db"), ["window", "subject", "private", "amount"], orient="row"
    )
    spent = table.group_by(pl.col("window").dt.date(), "subject").agg(pl.col("amount").sum())
    assert (spent["amount"] <= 3 * NANO).all()
    assert (spent["amount"] > 2 * NANO).all()  # both use their shares
    drawn.clear()
    data = rows(3, 2, 2)
    found = plain(tacit.run(spec, data, plan=plan, ledger="alone.db", name="job").counted())
    columns = ["window_start", "query", "group", "count", "estimate", "left_out", "method"]
    assert counted.select(columns).equals(found.select(columns))


def test_shards_that_ignore_the_share_of_counts_are_found_out(monkeypatch: Patch) -> None:
    spec = load_spec(mix(LIMITED))
    plan = plan_for(spec)
    kept = CountShare.find_kept
    monkeypatch.setattr(CountShare, "find_kept", lambda *given: 0 * kept(*given))
    with pytest.raises(StateError, match="another run has charged"):
        run_job(spec, plan)


def test_counts_are_estimated_from_the_answers_of_all_shards() -> None:
    """Without a channel of its own a count is a function of released answers, here a line."""
    spec = load_spec(TOLD)
    plan = plan_for(spec)
    assert plan.answer_counts
    counted = run_job(spec, plan).filter(pl.col("query") == "stops")
    assert set(counted["method"]) == {"unbiased"}
    answers = tacit.released("job.db").polars().group_by("window_start", maintain_order=True)
    yes = answers.agg(pl.col("detected").sum())["detected"].to_numpy()
    found = counted["estimate"].to_numpy()
    inner = (found > 0) & (found < TAXIS)
    slope, base = np.polyfit(yes[inner], found[inner], 1)
    assert inner.sum() > 10
    assert np.allclose(base + slope * yes[inner], found[inner])
    assert slope > 1


def test_true_counts_of_a_job_are_those_of_detect() -> None:
    spec = load_spec(SPEC)
    with Ledger.open("job.db") as ledger:
        lease = ledger.take_over("job", "f")
        job = prepared(spec, tacit.plan(spec, mechanism="uniform"), lease, true=True)
        collector = Collector(job, lease)
        collector.take(Simulation(job, Random(1), loss=0.1).run())
        assert release_all(collector)
        assert counts_in(lease).equals(plain(tacit.detect(spec, rows(3, 2, 2)).counted()))
        assert not list(iterate_rows(ledger))


@pytest.mark.parametrize("written", [False, True], ids=["lost", "written"])
def test_a_commit_whose_result_is_unknown_is_repeated_with_the_same_draws(
    written: bool, monkeypatch: Patch
) -> None:
    """The ledger may have the first attempt: drawing again would be a second release."""
    spec = load_spec(LIMITED)
    plan = plan_for(spec)
    with Ledger.open("job.db") as ledger:
        lease = ledger.take_over("job", "f")
        job = prepared(spec, plan, lease)
        collector = Collector(job, lease)
        collector.take(Simulation(job, Random(1)).run())
        bodies: list[list[bytes]] = []
        commit = Lease.commit

        def breaking(self: Lease, checkpoint: bytes, *drafts: Any) -> int | None:
            bodies.append([draft.body for draft in drafts])
            if len(bodies) > 1:
                return commit(self, checkpoint, *drafts)
            if written:
                commit(self, checkpoint, *drafts)
            raise LedgerLostError("gone")

        monkeypatch.setattr(Lease, "commit", breaking)
        with pytest.raises(LedgerLostError):
            release_all(collector)
        release_all(collector)
        assert bodies[0] == bodies[1]
        assert collector.finished
        assert verify(ledger).passed
        assert counts_in(lease)["window_start"].n_unique() == 2 * DAY


def test_contributions_go_to_text_and_back_and_are_not_shown() -> None:
    flags = np.random.default_rng(1).random((2, 3, 21)) < 0.5
    for counts in (None, flags, flags[:, :, :0]):
        line = ShardLine((3,), 5, 4, None, b"body", "mark", counts=counts)
        again = ShardLine.from_line(line.to_line() + "\n").counts
        if counts is None or again is None:
            assert again is counts
        else:
            assert np.array_equal(again, counts)
        assert "True" not in repr(line)
    text = ShardLine((3,), 5, 4, None, b"body", "mark", counts=flags).to_line()
    head, _, tail = text.rpartition(" ")
    before, _, coded = head.rpartition(" ")
    for wrong in (coded[:-8], coded.replace("3:21", "3:22222"), coded.replace("3:21", "-3:21")):
        with pytest.raises(StateError, match="damaged"):
            ShardLine.from_line(f"{before} {wrong} {tail}")


def test_lines_about_other_counts_are_refused() -> None:
    spec = load_spec(SPEC)
    with Ledger.open("job.db") as ledger:
        lease = ledger.take_over("job", "f")
        job = prepared(spec, tacit.plan(spec, mechanism="uniform"), lease)
        counts = JobCounts(job, {})
        for found in (None, np.zeros((2, 1, TAXIS), np.bool_)):
            line = ShardLine(job.layout.nonempty, 5, 4, None, b"body", "mark", counts=found)
            with pytest.raises(StateError, match="damaged"):
                counts.read([line])


def test_a_sum_that_misses_a_shard_is_noticed(drawn: list[list[int]], monkeypatch: Patch) -> None:
    """The comparison with one machine is not blind."""
    spec = load_spec(SPEC)
    plan = plan_for(spec)
    drawn.clear()
    tacit.run(spec, rows(3, 2, 2), plan=plan, ledger="alone.db", name="job")
    expected = [*drawn]
    drawn.clear()
    read = JobCounts.read

    def miss(self: JobCounts, lines: Sequence[ShardLine]) -> CountBits:
        bits = read(self, lines)
        bits.detected[..., 0] &= ~np.uint64(1)
        return bits

    monkeypatch.setattr(JobCounts, "read", miss)
    run_job(spec, plan, loss=0, parts=1)
    assert drawn != expected
