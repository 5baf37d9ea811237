"""What every source and every sink must do, checked against the real thing.

A connector's tests subclass `SourceChecks` with a fixture `feed`, or `SinkChecks` with a
fixture `receiver`: the other end of the connector, as `Feed` and `Receiver` describe it.
"""

# ruff: noqa: D102 - the name of a test says what it is about
from __future__ import annotations

import contextlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from tacit.connectors.files import open_source
from tacit.errors import SinkError, UnreachableError
from tacit.events.columntypes import ColumnTypes
from tacit.events.streams import ColumnType, Stream
from tacit.pipeline.sinks import ReleaseBatch, Sink
from tacit.pipeline.sources import Batch, Rejected, Source
from tests.longer import longer
from tests.processes import FORKSERVER

PATIENCE = 60.0
MANY = 16_000
"""Tuples of 6 kB each: 92 MiB, more than a source may hold."""
SUBJECTS = ("plain", 'quo"ted', "new\nline", "a,b", "Ärger 😀", "")
CONSUMERS = {"jam": "city", "rush": "city", "visit": "clinic"}


class Feed(ABC):
    """The other end of a source: who brings the tuples.

    A tuple is {"subject": text, "at": milliseconds since the epoch, "n": whole number}.
    """

    partitions = 1
    """How many sequences it has, each of which keeps its order."""
    acknowledges = False
    """Whether it brings again, after a restart without a token, what was not acknowledged."""
    secrets: Sequence[str] = ()
    """What the source knows and must not tell."""

    @abstractmethod
    def open(self) -> Source:
        """The source, as a run opens it; also by another process, to which this is sent."""

    @abstractmethod
    def send(self, rows: Sequence[dict[str, Any]], partition: int = 0) -> None:
        """Bring these tuples."""

    @abstractmethod
    def send_raw(self, payload: bytes) -> None:
        """Bring something that is no tuple, in the first sequence."""


class SourceChecks:
    """The list of checks for sources that live."""

    def test_tuples_arrive_whole_and_each_sequence_keeps_its_order(self, feed: Feed) -> None:
        sent = [tuples(1000 * part, 300) for part in range(feed.partitions)]
        for start in range(0, 300, 100):
            for part, rows in enumerate(sent):
                feed.send(rows[start : start + 100], part)
        found = Reading(feed.open()).take(300 * feed.partitions)
        assert sorted(found, key=lambda row: row["n"]) == [row for rows in sent for row in rows]
        for part in range(feed.partitions):
            numbers = [row["n"] for row in found if row["n"] // 1000 == part]
            assert numbers == sorted(numbers)

    def test_tuples_that_come_while_it_reads_arrive(self, feed: Feed) -> None:
        feed.send(tuples(0, 5))
        reading = Reading(feed.open())
        assert numbers(reading.take(5, close=False)) == list(range(5))
        feed.send(tuples(5, 5))
        assert numbers(reading.take(5)) == list(range(5, 10))

    def test_in_silence_empty_batches_come_several_times_a_second(self, feed: Feed) -> None:
        feed.send(tuples(0, 5))
        reading = Reading(feed.open())
        reading.take(5, close=False)
        reading.silence()
        deadline = time.monotonic() + PATIENCE
        seconds = float("inf")
        while seconds >= 4 * 0.5:  # a busy machine may stop this process for longer
            assert time.monotonic() < deadline, f"4 batches took {seconds} s"
            begin = time.monotonic()
            batches = [reading.next() for _ in range(4)]
            seconds = time.monotonic() - begin
            assert all(batch.table.num_rows == 0 for batch in batches)
            assert len({batch.table.schema for batch in batches}) == 1
        reading.close()

    def test_it_ends_soon_when_nobody_reads_any_more(self, feed: Feed) -> None:
        feed.send(tuples(0, 5))
        reading = Reading(feed.open())
        reading.take(5, close=False)
        begin = time.monotonic()
        reading.close()
        assert time.monotonic() - begin < 5

    def test_what_cannot_be_read_is_rejected_with_a_reason_and_the_rest_goes_on(
        self, feed: Feed
    ) -> None:
        feed.send(tuples(0, 3))
        for payload in BROKEN:
            feed.send_raw(payload)
        feed.send(tuples(3, 3))
        reading = Reading(feed.open())
        assert numbers(reading.take(6)) == list(range(6))
        assert len(reading.rejected) == len(BROKEN)
        assert all(line.reason and line.place >= 0 for line in reading.rejected)

    def test_a_value_that_does_not_fit_its_type_is_null_and_the_others_are_kept(
        self, feed: Feed
    ) -> None:
        feed.send(tuples(0, 3))
        source = feed.open()
        source.schema()
        if not source.textual:
            pytest.skip("its columns have types of their own")
        feed.send([tuples(2, 1)[0] | {"n": "many"}])
        feed.send(tuples(3, 3))
        reading = Reading(source)
        assert numbers(reading.take(7)) == [0, 1, 2, None, 3, 4, 5]
        assert not reading.rejected

    def test_a_key_that_an_object_lacks_is_null(self, feed: Feed) -> None:
        feed.send(tuples(0, 1))
        source = feed.open()
        assert not source.schema().names or not source.keyed
        if not source.keyed:
            pytest.skip("its rows all have the same columns")
        at = tuples(1, 1)[0]["at"]
        feed.send([{"at": at}])
        assert Reading(source).take(2) == [*tuples(0, 1), {"subject": None, "at": at, "n": None}]

    def test_resumed_at_a_token_it_brings_exactly_the_rest(self, feed: Feed) -> None:
        for round_ in range(4):
            for part in range(feed.partitions):
                feed.send(tuples(1000 * part + 50 * round_, 50), part)
        total = 200 * feed.partitions
        first = Reading(feed.open())
        first.take(total, close=False)
        first.close()
        feed.send(tuples(200, 10))
        whole = [*first.rows, *tuples(200, 10)]
        for taken in (total // 7, total * 3 // 7, total * 5 // 7):
            source = feed.open()
            rows = first.resume(source, taken)
            again = Reading(source).take(total + 10 - taken + rows)[rows:]
            assert sorted(numbers(again)) == sorted(numbers(whole[taken:]))
            for part in range(feed.partitions):
                kept = [row["n"] for row in again if row["n"] // 1000 == part]
                assert kept == sorted(kept)

    def test_what_was_not_acknowledged_comes_again_and_the_other_does_not(self, feed: Feed) -> None:
        if not feed.acknowledges:
            pytest.skip("nothing is acknowledged to it")
        feed.send(tuples(0, 20))
        first = Reading(feed.open())
        first.take(20, close=False)
        first.close()
        second = Reading(feed.open())
        assert numbers(second.take(20, close=False)) == list(range(20))
        second.acknowledge()
        second.silence()
        second.acknowledge()
        second.close()
        feed.send(tuples(20, 10))
        assert numbers(Reading(feed.open()).take(10)) == list(range(20, 30))

    def test_a_slow_reader_holds_it_back_and_memory_stays_bounded(self, feed: Feed) -> None:
        padding = {"padding": "x" * 6000}
        for step in range(10):
            rows = [row | padding for row in tuples(step * MANY // 10, MANY // 10)]
            feed.send(rows, step % feed.partitions)
        with ProcessPoolExecutor(1, FORKSERVER) as pool:
            grown, count = pool.submit(read_slowly, feed).result(4 * PATIENCE)
        assert count == MANY
        assert grown < 80 << 20, f"{grown >> 20} MiB were held of 92"

    def test_a_source_keeps_its_name_and_tells_no_secret(self, feed: Feed) -> None:
        feed.send(tuples(0, 1))
        source, again = feed.open(), feed.open()
        assert source.name == again.name
        shown = f"{source.name} {source!r}"
        assert not [secret for secret in feed.secrets if secret in shown]


BROKEN = (b"no payload at all", b"\xff\xfe\x00", b"17")


def column_types(**types: ColumnType) -> ColumnTypes:
    """Types as a run gives them to the columns of a stream."""
    return ColumnTypes(Stream(subject="subject", time="at"), types)


TYPES = column_types(subject="text", at="integer", n="integer")
COLUMNS = tuple(TYPES.types)


class Reading:
    """Reads a source as the engine does, and remembers where each row can be resumed."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.rows: list[dict[str, Any]] = []
        self.rejected: list[Rejected] = []
        self.offsets: dict[str, int] = {}
        """The offset after what was read, by partition; negative if it is not known."""
        self._places: list[tuple[Any, int]] = []
        self._origins: list[tuple[str, int]] = []
        """The partition and offset of each row, if the source has partitions."""
        self._token: Any = None
        self._since = 0
        self._receipts: dict[str | None, Any] = {}
        self._reader = source.batches(COLUMNS, ["subject"], TYPES)

    def next(self) -> Batch:
        """The next batch."""
        batch = next(self._reader)
        self.rejected += batch.rejected
        for part in batch.partitions:
            assert batch.places is not None
            own = batch.places[part.begin : part.end].tolist()
            assert own == sorted(own)
            assert all(part.token <= offset < part.after for offset in own)
            self._origins += [(part.name, offset) for offset in own]
            self.offsets[part.name] = part.after
            self.rejected += part.rejected
            if part.receipt is not None:
                self._receipts[part.name] = part.receipt
        if batch.token != self._token:
            self._token, self._since = batch.token, 0
        self._places += [(self._token, self._since + row) for row in range(batch.table.num_rows)]
        self._since += batch.table.num_rows
        self.rows += batch.table.to_pylist()
        if batch.receipt is not None:
            self._receipts[None] = batch.receipt
        return batch

    def take(self, count: int, *, close: bool = True) -> list[dict[str, Any]]:
        """The next so many rows; none may come after them."""
        before, deadline = len(self.rows), time.monotonic() + PATIENCE
        while len(self.rows) - before < count:
            assert time.monotonic() < deadline, f"{len(self.rows) - before} of {count} rows came"
            self.next()
        if close:
            self.silence()
            self.close()
        return self.rows[before:]

    def silence(self) -> None:
        """Wait until nothing more comes."""
        silent = 0
        while silent < 2:
            silent = 0 if self.next().table.num_rows else silent + 1

    def place(self, row: int) -> tuple[Any, int]:
        """The token at which this row is resumed, and how many rows come before it there."""
        return self._places[row]

    def resume(self, source: Source, taken: int) -> int:
        """Resume a source after so many rows; how many of them it brings again."""
        if not self.offsets:
            token, rows = self.place(taken)
            source.resume(json.loads(json.dumps(token)))
            return rows
        tokens = dict(self.offsets)
        for name, offset in reversed(self._origins[taken:]):
            tokens[name] = offset
        source.resume_partitions(json.loads(json.dumps(tokens)))
        return 0

    def acknowledge(self) -> None:
        """All that was read is safe."""
        for receipt in self._receipts.values():
            self.source.acknowledge(json.loads(json.dumps(receipt)))

    def close(self) -> None:
        """Read no more."""
        self._reader.close()  # type: ignore[attr-defined]


def read_slowly(feed: Feed) -> tuple[int, int]:
    """How much memory grows while nobody takes what comes, and how many rows come then."""
    import psutil

    flow: Iterator[Batch] = feed.open().batches(COLUMNS, ["subject"], TYPES)
    count = 0
    deadline = time.monotonic() + PATIENCE
    while not count and time.monotonic() < deadline:
        count += next(flow).table.num_rows
    before = psutil.Process().memory_info().rss
    most = 0
    with closing(flow):  # type: ignore[type-var]
        for _ in range(10):
            time.sleep(0.05)
            most = max(most, psutil.Process().memory_info().rss - before)
        deadline = time.monotonic() + PATIENCE
        while count < MANY and time.monotonic() < deadline:
            count += next(flow).table.num_rows
            most = max(most, psutil.Process().memory_info().rss - before)
    return most, count


def tuples(first: int, count: int) -> list[dict[str, Any]]:
    """Some tuples, a second apart."""
    return [
        {"subject": f"s{n % 7}", "at": 1_200_000_000_000 + 1000 * n, "n": n}
        for n in range(first, first + count)
    ]


def numbers(rows: Sequence[dict[str, Any]]) -> list[int]:
    """Which tuples these are."""
    return [row["n"] for row in rows]


class Receiver(ABC):
    """The other end of a sink: where a consumer finds the answers."""

    exactly_once = True
    """Whether a batch that is delivered again after a crash must not be seen twice."""
    secrets: Sequence[str] = ()
    """What the sink knows and must not tell."""

    @abstractmethod
    def open(self) -> Sink:
        """The sink to this receiver, as a run opens it."""

    @abstractmethod
    def received(self) -> list[dict[str, Any]]:
        """All answers that a consumer sees by now, in order: times as ISO 8601 text."""

    @abstractmethod
    def away(self) -> AbstractContextManager[None]:
        """While this lasts, the receiver takes nothing."""


class SinkChecks:
    """The list of checks for sinks."""

    def test_a_consumer_sees_every_answer_in_the_order_of_releases(
        self, receiver: Receiver
    ) -> None:
        batches = [batch(1), batch(2, 1), batch(5, 40)]
        with receiver.open() as sink:
            sink.recover(None)
            for each in batches:
                sink.deliver(each)
        assert_same(receiver.received(), answers(*batches))

    def test_deliveries_go_on_after_a_restart(self, receiver: Receiver) -> None:
        batches = [batch(release) for release in range(1, 6)]
        position = None
        for each in batches:
            with receiver.open() as sink:
                sink.recover(position)
                position = remembered(sink.deliver(each))
        assert_same(receiver.received(), answers(*batches))

    @pytest.mark.parametrize("done", [0, *longer(1), 2])
    def test_what_was_delivered_but_not_remembered_is_not_seen_twice(
        self, receiver: Receiver, done: int
    ) -> None:
        batches = [batch(release) for release in range(1, 5)]
        positions: list[Any] = [None]
        with receiver.open() as sink:
            sink.recover(None)
            positions.extend(remembered(sink.deliver(each)) for each in batches[: done + 1])
        with receiver.open() as sink:
            sink.recover(positions[done])
            for each in batches[done:]:
                sink.deliver(each)
        assert_once(receiver, *batches)

    def test_a_batch_that_failed_arrives_when_the_receiver_is_back(
        self, receiver: Receiver
    ) -> None:
        with receiver.open() as sink:
            sink.recover(None)
            position = remembered(sink.deliver(batch(1)))
            with receiver.away(), pytest.raises(UnreachableError):
                sink.deliver(batch(2))
            position = deliver_in_time(sink, batch(2))
        with receiver.open() as sink:
            sink.recover(position)
            sink.deliver(batch(3))
        assert_once(receiver, batch(1), batch(2), batch(3))

    def test_a_restart_finds_a_receiver_that_is_away_and_goes_on_when_it_is_back(
        self, receiver: Receiver
    ) -> None:
        with receiver.open() as sink:
            sink.recover(None)
            position = remembered(sink.deliver(batch(1)))
        with receiver.away(), receiver.open() as sink, pytest.raises(UnreachableError):
            begin_with(sink, position, batch(2))
        with receiver.open() as sink:
            recover_in_time(sink, position)
            deliver_in_time(sink, batch(2))
        assert_once(receiver, batch(1), batch(2))

    def test_a_sink_that_was_replaced_adds_nothing_more(self, receiver: Receiver) -> None:
        first, second = receiver.open(), receiver.open()
        first.recover(None)
        position = remembered(first.deliver(batch(1)))
        with contextlib.suppress(UnreachableError):
            second.recover(position)
            position = remembered(second.deliver(batch(2)))
            second.deliver(batch(3))
        with contextlib.suppress(SinkError):
            first.deliver(batch(2))
        first.close()
        second.close()
        with receiver.open() as sink:
            sink.recover(position)
            for release in (2, 3, 4):
                sink.deliver(batch(release))
        assert_once(receiver, *map(batch, (1, 2, 3, 4)))

    def test_a_large_batch_arrives_whole(self, receiver: Receiver) -> None:
        large = batch(1, 5_000)
        with receiver.open() as sink:
            sink.recover(None)
            sink.deliver(large)
        assert_same(receiver.received(), answers(large))

    def test_a_sink_keeps_its_name_and_tells_no_secret(self, receiver: Receiver) -> None:
        with receiver.open() as sink, receiver.open() as again:
            assert sink.name == again.name
            shown = f"{sink.name} {sink!r} {vars(sink).get('url', '')}"
        assert not [secret for secret in receiver.secrets if secret in shown]


def batch(release: int, rows: int = 12) -> ReleaseBatch:
    """Some answers of this release, the same whenever they are asked for; ids never repeat."""
    start = datetime(2008, 2, 2, 13, 30, tzinfo=UTC) + timedelta(minutes=release)
    kind = pa.timestamp("us", "UTC")
    queries = list(CONSUMERS)
    table = pa.table(
        {
            "id": pa.array([1_000_000 * release + row for row in range(rows)], pa.int64()),
            "window_start": pa.array([start] * rows, kind),
            "window_end": pa.array([start + timedelta(seconds=59.5)] * rows, kind),
            "subject": pa.array([SUBJECTS[row % 6] for row in range(rows)]).dictionary_encode(),
            "consumer": pa.array(
                [CONSUMERS[queries[row % 3]] for row in range(rows)]
            ).dictionary_encode(),
            "query": pa.array([queries[row % 3] for row in range(rows)]).dictionary_encode(),
            "detected": pa.array([row % 2 == 0 for row in range(rows)]),
            "confidence": pa.array([row % 100 / 128 for row in range(rows)], pa.float32()),
        }
    )
    return ReleaseBatch(release, table, CONSUMERS)


def answers(*batches: ReleaseBatch) -> list[dict[str, Any]]:
    """What a consumer must see of them."""
    rows = [row for each in batches for row in each.table.to_pylist()]
    for row in rows:
        row["window_start"] = row["window_start"].strftime("%Y-%m-%dT%H:%M:%SZ")
        row["window_end"] = row["window_end"].strftime("%Y-%m-%dT%H:%M:%S.500Z")
    return rows


def assert_same(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    """All rows, in this order; a difference is shown by ids, since rows are many."""
    assert [row["id"] for row in found] == [row["id"] for row in wanted]
    assert found == wanted


def assert_once(receiver: Receiver, *batches: ReleaseBatch) -> None:
    """Every answer of these is seen, once where that is promised, else the same each time."""
    found, wanted = receiver.received(), answers(*batches)
    if not receiver.exactly_once:
        seen: dict[int, dict[str, Any]] = {}
        for row in found:
            assert seen.setdefault(row["id"], row) == row
        found = list(seen.values())
    assert_same(found, wanted)


def remembered(position: Any) -> Any:
    """A position as a ledger gives it back."""
    return json.loads(json.dumps(position))


def deliver_in_time(sink: Sink, what: ReleaseBatch) -> Any:
    """Try a delivery until it succeeds, as the engine does."""
    return remembered(_in_time(lambda: sink.deliver(what)))


def begin_with(sink: Sink, position: Any, first: ReleaseBatch) -> None:
    """What a run does first."""
    sink.recover(position)
    sink.deliver(first)


def recover_in_time(sink: Sink, position: Any) -> None:
    """Try to recover until it succeeds."""
    _in_time(lambda: sink.recover(position))


def _in_time(attempt: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return attempt()
        except UnreachableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def file_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of answers, as another program reads it."""
    if not path.name.endswith((".csv", ".jsonl", ".ndjson", ".gz", ".zst")):
        return [row for batch in open_source(path).batches() for row in batch.table.to_pylist()]
    with pa.input_stream(str(path), compression="detect") as file:
        data = file.read()
    if ".csv" not in path.name:
        return [json.loads(line) for line in data.split(b"\n") if line]
    frame = pl.read_csv(data, schema_overrides={"subject": pl.String})
    return frame.with_columns(pl.col("subject").fill_null("")).to_dicts()
