"""Runs with a ledger: stopped, broken and fenced at every step, and what is true afterwards."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from tacit.answers.answers import Answers
from tacit.connectors.files import open_source
from tacit.connectors.jsonlines import JsonLinesSource
from tacit.connectors.openers import open_resumable_sink
from tacit.engines.local import detect
from tacit.engines.setup import assign
from tacit.errors import (
    FencedError,
    LedgerError,
    LedgerLostError,
    SinkError,
    SourceError,
    SpecificationError,
    StaleError,
    StateError,
    UnreachableError,
)
from tacit.ledger.alchemy import sa
from tacit.ledger.lease import Lease
from tacit.ledger.ledger import Ledger
from tacit.ledger.statement import read_statement
from tacit.pipeline import delivery, retries, settlement
from tacit.pipeline import run as loop
from tacit.pipeline.batches import MergedBatch
from tacit.pipeline.run import Run
from tacit.pipeline.settlement import RunOutcome
from tacit.pipeline.sinks import ReleaseBatch, Sink
from tacit.pipeline.sources import Batch, Source
from tacit.planning.planner import plan_without_history
from tacit.privacy.noise import Noise
from tacit.privacy.randomness import SeededSource
from tacit.spec.specification import Specification
from tacit.spec.yaml_reader import load
from tests.engines.crashes import (
    SPEC,
    SUBJECTS,
    check_complete,
    check_released_once,
    filled,
    released,
    specified,
    tuples,
)


class BreakdownError(Exception):
    """What stands for a sudden end."""


@dataclass
class House:
    """A run's files."""

    folder: Path
    text: str = SPEC

    def __post_init__(self) -> None:
        self.spec_file = specified(self.folder, self.text)
        self.answers = self.folder / "answers.jsonl"
        self.place = str(self.folder / "spent.db")

    @property
    def spec(self) -> Specification:
        """What it goes by."""
        return load(self.spec_file)

    def run(
        self,
        *sources: Any,
        alter: Callable[[Lease], None] | None = None,
        prepare: Callable[[Run], None] | None = None,
        opened: Callable[[Ledger], None] | None = None,
        sink: Sink | None = None,
        released: Callable[[Answers], None] = lambda _: None,
        **options: Any,
    ) -> RunOutcome:
        """Run as the command does; others may change the ledger, the lease and the run."""
        spec = self.spec
        given = [
            (None, source) if isinstance(source, Source) else _named(source) for source in sources
        ]
        with (
            Ledger.open(self.place) as ledger,
            sink or open_resumable_sink(self.answers) as target,
        ):
            if opened is not None:
                opened(ledger)
            if alter is not None:
                _altered(ledger, alter)
            run = Run(
                spec,
                assign(spec, given),
                plan=plan_without_history(spec, "uniform"),
                ledger=ledger,
                sinks=[target],
                name="home",
                **options,
            )
            if prepare is not None:
                prepare(run)
            for answers in run:
                released(answers)
            return run.outcome


def _named(source: object) -> tuple[str | None, Source]:
    stream, sign, path = str(source).rpartition("=")
    return (stream if sign else None), open_source(path)


def _altered(ledger: Ledger, alter: Callable[[Lease], None]) -> None:
    take_over = ledger.take_over

    def taken(run: str, fingerprint: str) -> Lease:
        lease = take_over(run, fingerprint)
        alter(lease)
        return lease

    ledger.take_over = taken  # type: ignore[method-assign]


@pytest.fixture
def house(tmp_path: Path) -> House:
    """A run's files."""
    return House(tmp_path)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases are not put together, so that there are many of them."""
    monkeypatch.setattr(settlement, "_COMMIT_SPACING", 0)


def one_batch(run: Run) -> None:
    """Let a run stop after the first batch that it takes."""
    insert = run._insert

    def stopping(batch: MergedBatch) -> Iterator[Answers]:
        yield from insert(batch)
        run.stop()

    run._insert = stopping  # type: ignore[method-assign]


def recording(run: Run, times: list[int]) -> None:
    """Note the times of tuples as a run takes them."""
    insert = run._insert

    def noted(batch: MergedBatch) -> Iterator[Answers]:
        times.extend(batch.times.tolist())
        return insert(batch)

    run._insert = noted  # type: ignore[method-assign]


def breaking(where: str, after: bool, times: int) -> Callable[[Lease], None]:
    """Break down at the n-th call of a lease's method, before or after it is done."""

    def alter(lease: Lease) -> None:
        whole, calls = getattr(lease, where), iter(range(1, 1000))

        def broken(*given: Any, **named: Any) -> Any:
            last = next(calls) == times
            if last and not after:
                raise BreakdownError
            result = whole(*given, **named)
            if last:
                raise BreakdownError
            return result

        setattr(lease, where, broken)

    return alter


@pytest.mark.cases(3)
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", ["commit", "record_delivery", "iterate_undelivered", "enrol"])
def test_a_run_that_breaks_down_at_a_step_goes_on_as_if_nothing_had_been(
    house: House, step: str, after: bool
) -> None:
    """Each time a step later: every window is released once, and seen as it was released."""
    source = filled(house.folder / "input", files=6, rows=150)
    broken = 0
    for times in (1, 2, 3, 2, 1, 4):
        try:
            house.run(source, alter=breaking(step, after, times))
        except BreakdownError:
            broken += 1
    house.run(source)
    assert broken
    check_complete(house.spec_file, check_released_once(house.place, house.answers), source)


def test_deliveries_begin_at_the_place_that_holds_once_the_sink_is_ours(house: House) -> None:
    """Another process may deliver once more before it lets go of the sink."""
    lease: list[Lease] = []
    recovered: list[Any] = []
    delivered: list[int] = []

    class Held(Sink):
        """A sink that another process releases only after it has delivered the first one."""

        name = "held"

        def recover(self, position: Any) -> None:
            recovered.append(position)
            if len(recovered) == 1:
                lease[0].record_delivery("held", 1, {"offset": 7})

        def deliver(self, batch: ReleaseBatch) -> None:
            delivered.append(batch.release)

        def close(self) -> None: ...

    source = filled(house.folder / "input", files=6, rows=150)
    house.run(source, sink=Held(), alter=lease.append)
    assert recovered == [None, {"offset": 7}]
    assert 1 not in delivered


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_delivery_that_is_cut_off_comes_again_with_the_same_answers(
    house: House, after: bool
) -> None:
    source = filled(house.folder / "input", files=6, rows=150)

    class Frail(Sink):
        """A file that fails now and then."""

        def __init__(self, times: int) -> None:
            self._file = open_resumable_sink(house.answers)
            self.name = self._file.name
            self._left = times

        def recover(self, position: Any) -> None:
            """As the file does."""
            self._file.recover(position)

        def deliver(self, batch: ReleaseBatch) -> Any:
            """As the file does, up to a point."""
            self._left -= 1
            if not self._left and not after:
                raise BreakdownError
            position = self._file.deliver(batch)
            if not self._left:
                raise BreakdownError
            return position

        def close(self) -> None:
            """As the file does."""
            self._file.close()

    for times in (1, 2, 1, 3):
        with pytest.raises(BreakdownError):
            house.run(source, sink=Frail(times))
    house.run(source)
    check_complete(house.spec_file, check_released_once(house.place, house.answers), source)


LIMITED = SPEC.replace("epsilon: 1.0}", "epsilon: 1.0, limit: 3 per 10 min}")
SLIDING = SPEC.replace("size: 1 min", "size: 1 min, slide: 20 s")


@pytest.mark.cases(1)
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("text", [SPEC, SLIDING], ids=["tumbling", "sliding"])
def test_a_run_stopped_at_every_batch_equals_an_unbroken_one(tmp_path: Path, text: str) -> None:
    """SIGTERM does the same: open windows are kept, and not closed before their time."""
    house = House(tmp_path, text)
    source = filled(house.folder / "input", files=8, rows=150)
    outcomes = []
    for _ in range(20):
        outcomes.append(house.run(source, prepare=one_batch))
        if outcomes[-1].finished:
            break
    assert len(outcomes) >= 8
    assert not any(outcome.finished for outcome in outcomes[:-1])
    assert all(outcome.resumed for outcome in outcomes[1:])
    check_complete(house.spec_file, check_released_once(house.place, house.answers), source)


TWO = (
    SPEC.replace("  home:", "  kitchen: {subject: who, time: at, unit: s}\n  home:")
    .replace("stove: {stream: home", "stove: {stream: kitchen")
    .replace("subjects: {file: subjects.txt}", "subjects: {learn: 3 min}")
)


@pytest.mark.cases(1)
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("learned", [False, True], ids=["listed", "learned"])
def test_streams_that_are_merged_go_on_in_the_same_order(tmp_path: Path, learned: bool) -> None:
    """The order of arrival decides what is late, so it must not depend on stops."""
    text = TWO if learned else TWO.replace("{learn: 3 min}", "{file: subjects.txt}")
    house = House(tmp_path, text.replace("lateness: 20 s", "lateness: 3 s"))
    inputs = [f"{name}={filled(tmp_path / name, 6, rows)}" for name, rows in
              (("home", 150), ("kitchen", 220))]  # fmt: skip
    broken: list[int] = []

    def recorded(run: Run) -> None:
        recording(run, broken)
        one_batch(run)

    for _ in range(40):
        if house.run(*inputs, prepare=recorded).finished:
            break
    else:
        raise AssertionError("it does not come to an end")
    (tmp_path / "other").mkdir()
    whole: list[int] = []
    other = House(tmp_path / "other", house.text)
    other.run(*inputs, prepare=lambda run: recording(run, whole))
    assert broken == whole
    answers = check_released_once(house.place, house.answers)
    spec = house.spec
    true = detect(spec, {name: open_source(tmp_path / name) for name in ("home", "kitchen")})
    truth = true.polars().with_columns(pl.col("subject", "query").cast(pl.String))
    both = answers.join(truth, on=["window_start", "subject", "query"], suffix="_true")
    exact = both.filter(pl.col("query") == "exact")
    assert exact.height == truth.height // 2 == answers.height // 2
    assert exact["detected"].equals(exact["detected_true"], check_names=False)


@pytest.mark.cases(2)
@pytest.mark.parametrize("learned", [False, True], ids=["listed", "learned"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_run_that_breaks_down_within_a_batch_goes_on_within_it(
    tmp_path: Path, learned: bool, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that closes many windows is released in parts, each with the tuples before it.

    So are the many windows of a gap, which close at once.
    """
    monkeypatch.setattr(settlement, "_MOST_ANSWERS", 1)
    monkeypatch.setattr("tacit.pipeline.versioned_windows.choose_capacity", lambda *_: 3)
    text = TWO if learned else TWO.replace("{learn: 3 min}", "{file: subjects.txt}")
    house = House(tmp_path, text.replace("lateness: 20 s", "lateness: 3 s"))
    inputs = []
    for name, rows in (("home", 900), ("kitchen", 1300)):
        frame = tuples(1_700_000_040, rows, rows, 900)
        late = pl.col("at") > 1_700_000_500
        frame = frame.with_columns(pl.when(late).then(pl.col("at") + 600).otherwise("at"))
        frame.write_parquet(tmp_path / f"{name}.parquet")
        inputs.append(f"{name}={tmp_path / name}.parquet")
    attempts, times = 0, 4
    while True:
        attempts += 1
        try:
            house.run(*inputs, alter=breaking("commit", after, times))
            break
        except BreakdownError:
            times = 11 - times
    assert attempts >= 3
    answers = check_released_once(house.place, house.answers)
    files = {name: tmp_path / f"{name}.parquet" for name in ("home", "kitchen")}
    whole = detect(house.spec, files).polars()
    whole = whole.with_columns(pl.col("subject", "query").cast(pl.String))
    both = answers.join(whole, on=["window_start", "subject", "query"], suffix="_true")
    exact = both.filter(pl.col("query") == "exact")
    assert exact.height == whole.height // 2 == answers.height // 2
    assert exact["detected"].equals(exact["detected_true"], check_names=False)


def test_a_pipe_brings_what_comes_and_is_not_skipped(house: House) -> None:
    """Nothing of it can be read again, so a run that goes on takes all of the next one."""
    whole = pl.concat([tuples(1_700_000_040 + 120 * n, 200, n, 120) for n in range(4)]).sort("at")
    cut = 1_700_000_280
    for part in (whole.filter(pl.col("at") < cut), whole.filter(pl.col("at") >= cut)):
        read, write = os.pipe()
        with os.fdopen(write, "wb") as pipe:
            part.write_ndjson(pipe)
        house.run(JsonLinesSource(read, "standard input"))
        os.close(read)
    whole.write_parquet(house.folder / "whole.parquet")
    answers = check_released_once(house.place, house.answers)
    check_complete(house.spec_file, answers, house.folder / "whole.parquet")


def test_a_run_that_is_over_has_nothing_new_to_say(house: House) -> None:
    source = filled(house.folder / "input", files=2, rows=150)
    first = house.run(source)
    before = house.answers.read_bytes()
    second = house.run(source)
    assert (first.resumed, first.finished, second.resumed, second.finished) == (
        False,
        True,
        True,
        True,
    )
    assert (second.windows, second.charged) == (0, {})
    assert house.answers.read_bytes() == before


def test_a_run_that_is_over_goes_on_with_another_file(house: House) -> None:
    """What lies in windows that were closed at the end of the first is late."""
    whole = pl.concat([tuples(1_700_000_040 + 120 * n, 200, n, 120) for n in range(4)])
    whole = whole.sort("at")
    whole.filter(pl.col("at") < 1_700_000_280).write_parquet(house.folder / "one.parquet")
    whole.filter(pl.col("at") >= 1_700_000_250).write_parquet(house.folder / "two.parquet")
    house.run(house.folder / "one.parquet")
    outcome = house.run(house.folder / "two.parquet")
    assert outcome.windows
    answers = check_released_once(house.place, house.answers)
    assert answers["window_start"].n_unique() == 9


def test_a_file_that_was_cut_short_is_an_error(house: House) -> None:
    source = house.folder / "in.parquet"
    tuples(1_700_000_040, 500, 1, 300).write_parquet(source)
    house.run(source)
    tuples(1_700_000_040, 400, 1, 300).write_parquet(source)
    with pytest.raises(SourceError, match=r"shorter|fewer"):
        house.run(source)


def test_charges_add_up_to_what_was_released(house: House) -> None:
    """For every subject and window, and in the ledger as in what the operator is told."""
    source = filled(house.folder / "input", files=2, rows=150)
    outcome = house.run(source)
    assert outcome.charged == {"door": outcome.windows * SUBJECTS * 10**9}
    assert outcome.answers == outcome.windows * SUBJECTS * 2


@pytest.mark.usefixtures("eager")
def test_a_limit_holds_across_stops(tmp_path: Path) -> None:
    """Past it subjects are exhausted: marked so, and not charged."""
    house = House(tmp_path, LIMITED)
    source = filled(tmp_path / "input", files=10, rows=150)
    charged = 0
    for _ in range(30):
        outcome = house.run(source, prepare=one_batch)
        charged += outcome.charged.get("door", 0)
        if outcome.finished:
            break
    answers = check_released_once(house.place, house.answers)
    spent = (
        answers.filter((pl.col("query") == "guarded") & ~pl.col("exhausted"))
        .group_by(pl.col("window_start").dt.truncate("10m"), "subject")
        .len()
    )
    assert spent["len"].max() == 3
    assert charged == spent["len"].sum() * 10**9
    assert answers["exhausted"].any()
    check_complete(house.spec_file, answers, source)


# What goes wrong on the way


def failing(error: Exception, times: int, *, after: bool) -> Callable[[Lease], None]:
    """Let the first commits of releases fail; `after`: when they have got through, unheard."""

    def alter(lease: Lease) -> None:
        whole, left = lease.commit, iter(range(times))

        def commit(checkpoint: bytes, *releases: Any) -> int | None:
            fails = bool(releases) and next(left, None) is not None
            if fails and not after:
                raise error
            number = whole(checkpoint, *releases)
            if fails:
                raise error
            return number

        lease.commit = commit  # type: ignore[method-assign]

    return alter


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_ledger_that_is_lost_is_waited_for(
    house: House, after: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether or not the commit had got through; it is told once that it is lost."""
    source = filled(house.folder / "input", files=2, rows=150)
    error = LedgerLostError("the ledger does not answer")
    with caplog.at_level(logging.WARNING):
        house.run(source, alter=failing(error, 4, after=after))
    check_complete(house.spec_file, check_released_once(house.place, house.answers), source)
    assert [record.getMessage() for record in caplog.records].count(str(error)) == 1


@pytest.mark.cases(2)
@pytest.mark.parametrize("text", [SPEC, SLIDING, LIMITED], ids=["tumbling", "sliding", "limited"])
def test_answers_that_others_have_overtaken_are_drawn_anew(tmp_path: Path, text: str) -> None:
    """What was drawn before never left, and is charged once."""
    house = House(tmp_path, text)
    source = filled(house.folder / "input", files=2, rows=150)
    outcome = house.run(source, alter=failing(StaleError("others"), 2, after=False))
    assert outcome.exhausted == (3 * SUBJECTS if text == LIMITED else 0)
    paid = outcome.windows * SUBJECTS - outcome.exhausted
    assert outcome.charged == {"door": paid * 10**9}
    check_complete(house.spec_file, check_released_once(house.place, house.answers), source)


@pytest.mark.usefixtures("eager")
def test_two_engines_on_one_run_release_no_window_twice(house: House) -> None:
    """The one that came first is fenced at its next commit."""
    source = filled(house.folder / "input", files=6, rows=150)
    inner: list[RunOutcome] = []

    def taken_over(lease: Lease) -> None:
        whole, calls = lease.commit, iter(range(100))

        def commit(checkpoint: bytes, *releases: Any) -> int | None:
            if next(calls) == 2:
                other = open_resumable_sink(house.folder / "other.jsonl")
                inner.append(house.run(source, sink=other))
            return whole(checkpoint, *releases)

        lease.commit = commit  # type: ignore[method-assign]

    with pytest.raises(FencedError):
        house.run(source, alter=taken_over)
    assert inner[0].finished
    assert inner[0].resumed
    check_complete(house.spec_file, released(house.place), source)


class Elsewhere(Sink):
    """A receiver that keeps what it gets, and does not always answer."""

    name = "elsewhere"

    def __init__(self, absent: int = 0, error: type[SinkError] = UnreachableError) -> None:
        self.batches: list[ReleaseBatch] = []
        self._absent = absent
        self._error = error
        self.attempts = 0
        self.open = threading.Event()
        self.open.set()

    def deliver(self, batch: ReleaseBatch) -> None:
        """Take it in, if anyone is there."""
        self.open.wait(20)
        self.attempts += 1
        if self.attempts <= self._absent:
            raise self._error("elsewhere does not answer; it is tried again")
        self.batches.append(batch)

    def close(self) -> None:
        """Nothing is held."""


@pytest.mark.usefixtures("eager")
def test_a_receiver_that_does_not_answer_is_tried_again(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    """With the same answers, in order, and it is told once."""
    source = filled(house.folder / "input", files=4, rows=150)
    sink = Elsewhere(absent=4)
    with caplog.at_level(logging.WARNING, "tacit.delivery"):
        outcome = house.run(source, sink=sink)
    assert len(sink.batches) == outcome.windows
    ids = [number for batch in sink.batches for number in batch.table["id"].to_pylist()]
    assert ids == released(house.place)["id"].to_list()
    assert sink.batches[0].consumers == {"exact": "care", "guarded": "city"}
    assert sum("does not answer" in record.getMessage() for record in caplog.records) == 1


def test_a_receiver_that_refuses_for_good_stops_the_run(house: House) -> None:
    source = filled(house.folder / "input", files=2, rows=150)
    with pytest.raises(SinkError, match="elsewhere"):
        house.run(source, sink=Elsewhere(absent=1, error=SinkError))
    house.run(source)
    check_complete(house.spec_file, check_released_once(house.place, house.answers), source)


@pytest.mark.usefixtures("eager")
def test_a_slow_receiver_slows_the_source(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only so much is released ahead of it."""
    monkeypatch.setattr(delivery, "MOST_WAITING", 2)
    source = filled(house.folder / "input", files=12, rows=100)
    sink = Elsewhere()
    sink.open.clear()
    seen: list[int] = []

    def later(run: Run) -> None:
        def watch() -> None:
            while not run.outcome.windows:
                time.sleep(0.01)
            time.sleep(0.5)
            seen.append(run.outcome.windows)
            sink.open.set()

        threading.Thread(target=watch).start()

    outcome = house.run(source, sink=sink, prepare=later)
    assert seen[0] <= 3
    assert outcome.windows > 3
    assert len(sink.batches) == outcome.windows


def test_a_run_that_is_told_to_stop_does_not_wait_for_ever_for_a_receiver(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has not arrived is delivered next time."""
    monkeypatch.setattr(retries, "GRACE", 0.2)
    monkeypatch.setattr(loop, "GRACE", 0.2)
    source = filled(house.folder / "input", files=2, rows=150)

    def stop_later(run: Run) -> None:
        threading.Timer(0.5, run.stop).start()

    outcome = house.run(source, sink=Elsewhere(absent=10**6), prepare=stop_later)
    assert outcome.undelivered
    sink = Elsewhere()
    again = house.run(source, sink=sink)
    assert not again.undelivered
    ids = [number for batch in sink.batches for number in batch.table["id"].to_pylist()]
    assert ids == released(house.place)["id"].to_list()


def test_answers_that_have_arrived_are_dropped_when_they_are_old(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "_SWEEP", 0.0)
    monkeypatch.setattr(settlement, "_COMMIT_SPACING", 0)
    source = filled(house.folder / "input", files=4, rows=100)
    first = house.run(source, retain=-60.0)
    for number in range(4, 8):
        tuples(1_700_000_040 + 120 * number, 100, number, 120).write_parquet(
            source / f"{number:04}.parquet"
        )
    outcome = house.run(source, retain=-60.0)
    kept = released(house.place)
    assert kept["id"].to_list()[-1] == first.answers + outcome.answers - 1
    assert kept.height <= outcome.answers


# Sources that live


@dataclass
class Live(Source):
    """A source that brings what it is given, and is silent afterwards."""

    frames: Sequence[pl.DataFrame]
    name: str = "live"
    live: bool = True
    acknowledged: list[int] = field(default_factory=list)
    silent: Callable[[], None] = lambda: None

    def schema(self) -> pa.Schema:
        """That of the tuples."""
        return tuples(0, 1, 0, 10).to_arrow().schema

    def acknowledge(self, receipt: Any) -> None:
        """Note it."""
        self.acknowledged.append(receipt)

    def read(self, columns: Sequence[str], keys: Sequence[str]) -> Iterator[Batch]:
        """One batch after the other, then silence."""
        nothing = tuples(0, 1, 0, 10)[:0].select(columns).to_arrow()
        for number, frame in enumerate(self.frames):
            table = frame.select(columns).rechunk().to_arrow().to_batches()[0]
            yield Batch(table, 1, 0, self.name, receipt=number)
        while True:
            self.silent()
            time.sleep(0.02)
            yield Batch(pa.RecordBatch.from_pylist([], nothing.schema), 1, 0, self.name)


def frames(count: int) -> list[pl.DataFrame]:
    """Tuples of two minutes each."""
    return [tuples(1_700_000_040 + 120 * n, 100, n, 120) for n in range(count)]


def test_only_what_is_safe_is_acknowledged(house: House) -> None:
    """Nothing before the commit that it is in; all of it soon afterwards, windows or not."""
    source = Live(frames(5))
    seen: list[tuple[int, list[int]]] = []

    def watched(lease: Lease) -> None:
        whole = lease.commit

        def commit(checkpoint: bytes, *releases: Any) -> int | None:
            before = list(source.acknowledged)
            number = whole(checkpoint, *releases)
            assert source.acknowledged == before
            seen.append((len(seen), before))
            return number

        lease.commit = commit  # type: ignore[method-assign]

    def stop_when_done(run: Run) -> None:
        def check() -> None:
            if source.acknowledged and source.acknowledged[-1] == 4:
                run.stop()

        source.silent = check

    outcome = house.run(source, alter=watched, prepare=stop_when_done)
    assert not outcome.finished
    assert seen[0][1] == []
    assert source.acknowledged == sorted(source.acknowledged)
    whole = pl.concat(frames(5))
    whole.write_parquet(house.folder / "whole.parquet")
    answers = check_released_once(house.place, house.answers)
    true = detect(house.spec, house.folder / "whole.parquet").polars()
    assert 0 < answers.height < true.height  # the last windows are open
    both = answers.join(
        true.with_columns(pl.col("subject", "query").cast(pl.String)),
        on=["window_start", "subject", "query"],
        suffix="_true",
    ).filter(pl.col("query") == "exact")
    assert both["detected"].equals(both["detected_true"], check_names=False)


def test_what_was_not_acknowledged_is_taken_once_it_comes_again(house: House) -> None:
    """A broker brings what it holds again; nothing of it is skipped."""
    first = Live(frames(3))
    with pytest.raises(BreakdownError):
        house.run(first, alter=breaking("commit", False, 2))
    assert first.acknowledged in ([0], [1], [2])
    again = first.acknowledged[-1] + 1
    second = Live(frames(6)[again:])

    def stop_when_done(run: Run) -> None:
        def check() -> None:
            if second.acknowledged and second.acknowledged[-1] == len(second.frames) - 1:
                run.stop()

        second.silent = check

    house.run(second, prepare=stop_when_done)
    answers = check_released_once(house.place, house.answers)
    pl.concat(frames(6)).write_parquet(house.folder / "whole.parquet")
    true = detect(house.spec, house.folder / "whole.parquet").polars()
    both = answers.join(
        true.with_columns(pl.col("subject", "query").cast(pl.String)),
        on=["window_start", "subject", "query"],
        suffix="_true",
    ).filter(pl.col("query") == "exact")
    assert both.height == answers.height // 2
    assert both["detected"].equals(both["detected_true"], check_names=False)


CLOCK = SPEC.replace("lateness: 20 s", "lateness: 20 s, close: clock")


def test_a_silent_source_still_closes_windows_by_the_clock(tmp_path: Path) -> None:
    """On schedule: when the clock has passed their end and the lateness."""
    house = House(tmp_path, CLOCK)
    source = Live([])
    now = [1_700_000_040.0]

    def later(run: Run) -> None:
        def check() -> None:
            if run.outcome.windows == 3:
                run.stop()
            else:
                now[0] += 10

        source.silent = check

    house.run(source, prepare=later, now=lambda: now[0])
    answers = check_released_once(house.place, house.answers)
    starts = answers["window_start"].unique().sort().dt.epoch("s").to_list()
    assert starts == [1_700_000_040, 1_700_000_100, 1_700_000_160]
    assert now[0] >= 1_700_000_240
    assert answers.height == 3 * SUBJECTS * 2


def test_no_tuple_closes_a_window_before_the_clock_does(tmp_path: Path) -> None:
    house = House(tmp_path, CLOCK)
    source = Live([tuples(1_700_000_060, 300, 1, 100)])

    def later(run: Run) -> None:
        calls = iter(range(100))

        def check() -> None:
            if next(calls) == 5:
                run.stop()

        source.silent = check

    outcome = house.run(source, prepare=later, now=lambda: 1_700_000_050.0)
    assert outcome.windows == 0
    assert source.acknowledged == [0]


def test_a_run_keeps_to_its_kind_of_noise(house: House) -> None:
    """With a seed answers can be made again, so they are not private; both must not be mixed."""
    source = filled(house.folder / "input", files=1, rows=300)
    house.run(source, noise=Noise(SeededSource(1)))
    with pytest.raises(StateError, match=r"started with seed=.* another run with name="):
        house.run(source)
    house.run(source, noise=Noise(SeededSource(2)))


def test_a_run_that_is_private_cannot_go_on_with_a_seed(house: House) -> None:
    source = filled(house.folder / "input", files=1, rows=300)
    house.run(source)
    with pytest.raises(StateError, match=r"started without seed=.* Continue without it"):
        house.run(source, noise=Noise(SeededSource(1)))
    house.run(source)


@pytest.mark.parametrize(("named", "right"), [("[p1, p2]", True), ("[p1, q2, q3]", False)])
def test_a_name_that_was_not_learned_ends_the_run_before_its_first_release(
    named: str, right: bool, tmp_path: Path
) -> None:
    """Also when it is started again: what was learned is in its state."""
    text = SPEC.replace("epsilon: 1.0", f"epsilon: 1.0, subjects: {named}")
    text = text.replace("{file: subjects.txt}", "{learn: 1 min}")
    house = House(tmp_path, text)
    source = Live(frames(4))

    def until_all_is_safe(run: Run) -> None:
        def check() -> None:
            if source.acknowledged and source.acknowledged[-1] == 3:
                run.stop()

        source.silent = check

    if right:
        house.run(source, prepare=until_all_is_safe)
        assert house.answers.stat().st_size
        return
    for _ in range(2):
        with pytest.raises(SpecificationError, match=r"2 subjects .*: 'q2', 'q3'\."):
            house.run(source, prepare=until_all_is_safe)
    assert not house.answers.exists() or not house.answers.stat().st_size
    with Ledger.open(house.place) as ledger:
        told = read_statement(ledger)
    assert (told.releases, told.subjects, told.horizons) == (0, 0, ())


def test_names_that_look_like_a_protected_one_are_logged_when_subjects_were_learned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = SPEC.replace("epsilon: 1.0", "epsilon: 1.0, subjects: [p1]")
    house = House(tmp_path, text.replace("{file: subjects.txt}", "{learn: 1 min}"))
    more = pl.concat(frames(4))
    twin = more.filter(pl.col("who") == "p1").with_columns(who=pl.lit("P01 "))
    source = Live([pl.concat([more, twin]).sort("at", maintain_order=True)])

    def until_it_is_safe(run: Run) -> None:
        source.silent = lambda: run.stop() if source.acknowledged else None

    house.run(source, prepare=until_it_is_safe)
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [("'P01 ' looks like 'p1'" in line) for line in said] == [True]


def test_files_cannot_be_closed_by_the_clock(tmp_path: Path) -> None:
    house = House(tmp_path, CLOCK)
    source = filled(tmp_path / "input", files=1, rows=10)
    with pytest.raises(SourceError, match="close: events"):
        house.run(source)


def test_an_engine_that_is_silent_notices_that_it_was_taken_over(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it has nothing to release: it would hold its source for itself."""
    monkeypatch.setattr(loop, "_WATCH", 0.1)
    source = Live([])
    calls = iter(range(1000))

    def take_over() -> None:
        if next(calls) == 3:
            with Ledger.open(house.place) as ledger:
                ledger.take_over("home", "another")

    source.silent = take_over
    with pytest.raises(FencedError):
        house.run(source)


@pytest.mark.usefixtures("eager")
def test_a_full_disk_stops_the_run_with_a_clear_message(house: House) -> None:
    """Nothing that was not charged was delivered, and with more space it goes on."""
    source = filled(house.folder / "input", files=60, rows=40)

    def tight(ledger: Ledger) -> None:
        engine = ledger.database._engine
        with engine.connect() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        engine.dispose()

        def limit(connection: Any, _: Any) -> None:
            connection.execute(f"PRAGMA max_page_count = {int(pages or 0) + 1}")

        sa.event.listen(engine, "connect", limit)

    with pytest.raises(LedgerError, match="disk is full"):
        house.run(source, opened=tight)
    assert house.answers.exists()
    seen = house.answers.read_text().count("\n")
    assert seen <= released(house.place).height
    house.run(source)
    check_complete(house.spec_file, check_released_once(house.place, house.answers), source)
