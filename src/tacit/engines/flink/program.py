"""The job as Flink runs it: readers and shards as keyed functions, lines of text into files.

    partitions (a line for each, in files that are watched)
        --by partition-->  readers   state: positions and clock
        --by shard------>  shards    state: open windows
        --> staged files, which appear when a checkpoint is complete

Readers drive themselves by timers, so that checkpoints come between two batches. Nothing here
knows what privacy is.

States (`sharded/saved.py`) and what goes from readers to shards (`sharded/pieces.py`) are bytes in
formats of our own, and lines are text. PyFlink's default, a pickle, is used for none of them:
reading a pickle can run any code.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from pyflink.common import Duration, Types, WatermarkStrategy
from pyflink.common.serialization import Encoder
from pyflink.datastream import (
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from pyflink.datastream.connectors.file_system import (
    FileSink,
    FileSource,
    RollingPolicy,
    StreamFormat,
)
from pyflink.datastream.state import ValueStateDescriptor

from tacit.engines.flink.folders import Folders
from tacit.engines.flink.progress import Progress
from tacit.engines.flink.states import BytesState
from tacit.engines.sharded.counts import COUNTS
from tacit.engines.sharded.job import ShardedJob
from tacit.engines.sharded.lines import LETTERS, ShardLine, letter
from tacit.engines.sharded.reader import PartitionReader
from tacit.engines.sharded.shard import LateTuples, Shard
from tacit.windows.clock import LATE, REASONS

PIECE: Final = Types.TUPLE([Types.INT(), Types.PRIMITIVE_ARRAY(Types.BYTE())])
"""A shard, and what is for it."""
READER: Final = ValueStateDescriptor("reader", Types.STRING())
DUE: Final = ValueStateDescriptor("due", Types.LONG())
"""When a reader's next turn is, in milliseconds since 1970."""
SHARD: Final = ValueStateDescriptor("shard", Types.STRING())
_SOON: Final = 1
_TURN: Final = 0.1
"""Seconds that a reader goes on for."""
_AHEAD: Final = 16
"""Windows that a reader may be ahead of the others: what comes early is in the shards' states."""
_HELD_BACK: Final = 20
"""Milliseconds until a reader that is ahead of the others looks again."""


def build(
    env: StreamExecutionEnvironment, folders: Folders, partitions: list[int], shards: list[int]
) -> None:
    """Define the job; `partitions` and `shards` are the keys that Flink knows them by."""
    source = (
        FileSource.for_record_stream_format(
            StreamFormat.text_line_format(), folders.partitions.as_uri()
        )
        .monitor_continuously(Duration.of_millis(500))
        .build()
    )
    begun = env.from_source(source, WatermarkStrategy.no_watermarks(), "partitions")
    begun.set_parallelism(1).uid("partitions")
    root = os.fspath(folders.root)
    read = (
        begun.key_by(_Key(partitions), key_type=Types.INT())
        .process(ReaderFunction(root, partitions), output_type=PIECE)
        .name("readers")
        .uid("readers")
    )
    told = (
        read.key_by(_Key(shards), key_type=Types.INT())
        .process(ShardFunction(root), output_type=Types.STRING())
        .name("shards")
        .uid("shards")
    )
    sink = (
        FileSink.for_row_format(folders.staged.as_uri(), Encoder.simple_string_encoder())
        .with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy())
        .build()
    )
    told.sink_to(sink).name("staged").uid("staged")


@lru_cache(maxsize=4)
def _job(root: str) -> ShardedJob:
    """Read once in each process, and made ready."""
    job = ShardedJob.read(Folders(Path(root)).job)
    _ = job.compiled, job.layout.place
    return job


class _Key:
    """The key that a partition or a shard has in Flink, chosen so that they spread evenly."""

    def __init__(self, keys: list[int]) -> None:
        self._keys = keys

    def __call__(self, element: Any) -> int:
        number = element[0] if isinstance(element, tuple) else int(element)
        return self._keys[number]


class ReaderFunction(KeyedProcessFunction):  # type: ignore[misc]
    """One reader for each partition of this task."""

    def __init__(self, root: str, partitions: list[int]) -> None:
        self._root = root
        self._numbers = {key: number for number, key in enumerate(partitions)}

    def open(self, runtime_context: RuntimeContext) -> None:
        """Begin, or go on after a failure: readers are made when they are needed."""
        self._state = BytesState(runtime_context.get_state(READER))
        self._due = runtime_context.get_state(DUE)
        self._readers: dict[int, PartitionReader] = {}
        _job(self._root)
        self._progress = Progress(Folders(Path(self._root)).progress)

    def process_element(self, _: str, ctx: KeyedProcessFunction.Context) -> None:
        """A partition is to be read, from where it was left.

        It is said at every start and after every failure: a timer that is set while a checkpoint
        is made is not in it, so a reader could wait for it for ever.
        """
        due = self._due.value()
        if due is not None:
            ctx.timer_service().delete_processing_time_timer(due)
        self._come_back(ctx, _SOON)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        """Read what comes for a while: states are sent to Flink after every turn."""
        if timestamp != self._due.value():
            return
        number = self._numbers[ctx.get_current_key()]
        if number not in self._readers:
            self._readers[number] = PartitionReader(_job(self._root), number, self._state.load())
        reader, messenger = self._readers[number], _job(self._root).layout.nonempty[0]
        counts = reader.counts
        end = time.monotonic() + _TURN
        wait: int | None = _SOON
        while time.monotonic() < end:
            self._report(number, reader)
            most = min(_AHEAD, _job(self._root).capacity)
            if self._progress.too_far_ahead(number, reader.closed, most):
                wait = _HELD_BACK
                break
            step = reader.step()
            yield from step.pieces
            if step.letters:
                yield messenger, LETTERS + step.letters
            if step.done or step.wait:
                wait = None if step.done else int(step.wait * 1000)
                break
        self._report(number, reader)
        if reader.counts != counts:
            yield messenger, reader.counts.written().encode()
        self._state.save(reader.state)
        self._come_back(ctx, wait)

    def _report(self, number: int, reader: PartitionReader) -> None:
        self._progress.tell(number, reader.closed if reader.waited_for else None)

    def _come_back(self, ctx: KeyedProcessFunction.Context, wait: int | None) -> None:
        """Set a partition's next turn in so many milliseconds; None where it is done."""
        if wait is None:
            self._due.clear()
            return
        due = ctx.timer_service().current_processing_time() + wait
        ctx.timer_service().register_processing_time_timer(due)
        self._due.update(due)


class ShardFunction(KeyedProcessFunction):  # type: ignore[misc]
    """The shards of this task."""

    def __init__(self, root: str) -> None:
        self._root = root

    def open(self, runtime_context: RuntimeContext) -> None:
        """Begin, or go on after a failure: shards are made when they are needed."""
        self._state = BytesState(runtime_context.get_state(SHARD))
        self._shards: dict[int, Shard] = {}
        _job(self._root)

    def process_element(
        self, value: tuple[int, bytes], _: KeyedProcessFunction.Context
    ) -> Iterator[Any]:
        """A piece of a partition, or what a reader has for the driver."""
        number, piece = value[0], bytes(value[1])
        if piece.startswith(LETTERS):
            letters = piece.removeprefix(LETTERS).decode().rstrip("\n")
            yield from map(letter, letters.split("\n"))  # not at what else may break lines
            return
        if piece.startswith(COUNTS.encode()):
            yield piece.decode()
            return
        if number not in self._shards:
            self._shards[number] = Shard(_job(self._root), number, self._state.load())
        shard = self._shards[number]
        finished, counts = shard.finished, shard.counts
        for told in shard.take(piece):
            if isinstance(told, LateTuples):
                yield from map(letter, self._letters(told))
            else:
                yield ShardLine.of(number, told).written()
        if shard.counts != counts:
            yield shard.counts.written()
        if shard.finished and not finished:
            yield ShardLine(number).written()
        self._state.save(shard.state)

    def _letters(self, late: LateTuples) -> Iterator[str]:
        partition = _job(self._root).partitions[late.partition]
        for subject, moment in zip(late.subjects.to_pylist(), late.times.tolist(), strict=True):
            yield json.dumps(
                {
                    "stream": partition.stream,
                    "source": partition.source,
                    "reason": REASONS[LATE],
                    "time": moment,
                    "subject": str(subject),
                }
            )
