"""The Flink program: readers and shards are keyed functions, which write lines into files.

    ticks (one a second in each task)
        --by partition-->  readers   state: positions and clock
        --by task------->  shards    state: open windows, by shard
        --> staged files, which appear when a checkpoint is complete
    ticks
        -->  releaser (one)   no state: staged files -> ledger -> sinks

Readers run by timers, so checkpoints happen between two batches. A tick starts the timer of a
reader that has none: at the start, and after every failure. The job needs nothing outside of Flink
to go on.

States (`sharded/saved_state.py`) and batches (`sharded/batches.py`) are bytes in our own formats,
and lines are text. PyFlink's default, pickle, is not used: decoding a pickle can run any code.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from pyflink.common import Types
from pyflink.common.serialization import Encoder
from pyflink.datastream import (
    DataStream,
    FlatMapFunction,
    KeyedProcessFunction,
    ProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from pyflink.datastream.connectors.file_system import BucketAssigner, FileSink, RollingPolicy
from pyflink.datastream.state import ValueStateDescriptor
from pyflink.java_gateway import get_gateway
from pyflink.util.java_utils import get_field

from tacit.engines.flink.folders import Folders
from tacit.engines.flink.key_groups import divide_shards
from tacit.engines.flink.progress import Progress
from tacit.engines.flink.states import BytesState, KeyedStates
from tacit.engines.flink.worker_guard import end_with_taskmanager
from tacit.engines.sharded.job import ShardedJob
from tacit.engines.sharded.lines import DEAD_LETTERS
from tacit.engines.sharded.reader import IDLE_SECONDS, PartitionReader
from tacit.engines.sharded.worker import ShardWorker

BATCH: Final = Types.TUPLE([Types.INT(), Types.PRIMITIVE_ARRAY(Types.BYTE())])
"""The first shard of a task, and a batch for all shards of the task."""
READER: Final = ValueStateDescriptor("reader", Types.STRING())
DUE: Final = ValueStateDescriptor("due", Types.LONG())
"""The time of a reader's next turn, in milliseconds since 1970."""
SHARD: Final = ValueStateDescriptor("shard", Types.STRING())
_SHARDS_BUNDLE: Final = 10_000
"""Milliseconds for which batches to shards may be kept together. After them the states of all
shards are written. A checkpoint comes sooner as a rule, and what shards report is seen with the
next checkpoint in any case.
"""
_SOON: Final = 1
_TURN: Final = 0.1
"""Seconds of a reader's turn."""
_PAUSE: Final = 0.02
"""Seconds between the turns of readers that have nothing to read, for each reader of a task."""
_AHEAD: Final = 16
"""The most windows that a reader may be ahead: early tuples are stored in the shards' states."""
_HELD_BACK: Final = 20
"""Milliseconds until a reader that is ahead of the others tries again."""


def build(
    env: StreamExecutionEnvironment, folders: Folders, partitions: list[int], shards: list[int]
) -> None:
    """Define the job; `partitions` and `shards` are their keys in Flink."""
    ticks = _ticks(env)
    root = os.fspath(folders.root)
    ticks.process(ReleaserFunction(root), output_type=Types.INT()).set_parallelism(1).name(
        "releaser"
    ).uid("releaser")
    read = (
        ticks.flat_map(_Partitions(len(partitions)), output_type=Types.INT())
        .key_by(_Key(partitions), key_type=Types.INT())
        .process(ReaderFunction(root, partitions, shards), output_type=BATCH)
        .name("readers")
        .uid("readers")
    )
    result = (
        read.key_by(_Key(shards), key_type=Types.INT())
        .process(ShardFunction(root, shards), output_type=Types.STRING())
        .name("shards")
        .uid("shards")
    )
    _set_bundle_time(result, _SHARDS_BUNDLE)
    sink = (
        FileSink.for_row_format(folders.staged.as_uri(), Encoder.simple_string_encoder())
        .with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
        .with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy())
        .build()
    )
    result.sink_to(sink).name("staged").uid("staged")


def _set_bundle_time(stream: DataStream, milliseconds: int) -> None:
    """Set for one operator how long Flink may keep its input and output together.

    PyFlink has this setting for a whole job only.
    """
    operator = stream._j_data_stream.getTransformation().getOperator()
    field = get_field(operator.getClass(), "config")
    configuration = get_gateway().jvm.org.apache.flink.configuration.Configuration(
        operator.getConfiguration()
    )
    configuration.setString("python.fn-execution.bundle.time", str(milliseconds))
    field.set(operator, configuration)


def _ticks(env: StreamExecutionEnvironment) -> DataStream:
    """Return a stream of one number a second in each task, without an end.

    This source is written in Java, and it goes on after a failure without any help. It runs in
    every task, so that all Python workers start at the same time.
    """
    java = get_gateway().jvm.org.apache.flink.streaming.api.functions.source.datagen
    zeros = java.RandomGenerator.intGenerator(0, 0)
    source = java.DataGeneratorSource(zeros, env.get_parallelism(), None)
    stream = env._j_stream_execution_environment.addSource(
        source, "ticks", Types.INT().get_java_type_info()
    )
    return DataStream(stream).uid("ticks")


class _Partitions(FlatMapFunction):  # type: ignore[misc]
    """Turns a tick into one for each partition of this task's share."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions

    def open(self, runtime_context: RuntimeContext) -> None:
        """Start, or restart after a failure."""
        tasks = runtime_context.get_number_of_parallel_subtasks()
        self._share = range(runtime_context.get_index_of_this_subtask(), self._partitions, tasks)

    def flat_map(self, _: int) -> Iterator[int]:
        """Yield the numbers of the partitions."""
        yield from self._share


@lru_cache(maxsize=4)
def _job(root: str) -> ShardedJob:
    """Read and compile the job once in each process."""
    end_with_taskmanager()
    job = ShardedJob.read(Folders(Path(root)).job)
    _ = job.compiled, job.layout.place
    gc.freeze()  # what is loaded now stays: searches for garbage need not visit it
    return job


class _Key:
    """Selects the Flink key of a partition or shard; the keys spread evenly."""

    def __init__(self, keys: list[int]) -> None:
        self._keys = keys

    def __call__(self, element: Any) -> int:
        number = element[0] if isinstance(element, tuple) else element
        return self._keys[number]


class ReaderFunction(KeyedProcessFunction):  # type: ignore[misc]
    """The readers of this task, one for each partition."""

    def __init__(self, root: str, partitions: list[int], shards: list[int]) -> None:
        self._root = root
        self._numbers = {key: number for number, key in enumerate(partitions)}
        self._shards = shards

    def open(self, runtime_context: RuntimeContext) -> None:
        """Start, or restart after a failure; readers are created on first use."""
        self._state = BytesState(runtime_context.get_state(READER))
        self._due = runtime_context.get_state(DUE)
        self._readers: dict[int, PartitionReader] = {}
        self._scheduled: set[int] = set()
        """The partitions that have a timer, or are done."""
        # All operators of the job have the same parallelism.
        tasks = runtime_context.get_number_of_parallel_subtasks()
        groups = runtime_context.get_max_number_of_parallel_subtasks()
        found = divide_shards(self._shards, _job(self._root).layout.nonempty, groups, tasks)
        self._lanes = [lane for lane in found if lane]
        self._progress = Progress(Folders(Path(self._root)).progress)

    def process_element(self, partition: int, ctx: KeyedProcessFunction.Context) -> None:
        """Schedule a partition after a start or failure, to be read from its last position.

        Flink 2.3 may lose a timer: one that Python sets during a checkpoint is not part of it.
        """
        if partition in self._scheduled:
            return
        due = self._due.value()
        if due is not None:
            ctx.timer_service().delete_processing_time_timer(due)
        self._scheduled.add(partition)
        self._schedule(ctx, _SOON)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        """Read for one turn; Flink gets the state after every turn."""
        if timestamp != self._due.value():
            return
        number = self._numbers[ctx.get_current_key()]
        self._scheduled.add(number)
        if number not in self._readers:
            job, state = _job(self._root), self._state.load()
            self._readers[number] = PartitionReader(job, number, state, self._lanes)
        reader, messenger = self._readers[number], self._lanes[0][0]
        reader.patience = IDLE_SECONDS / len(self._readers)  # the others wait meanwhile
        counts = reader.counts
        end = time.monotonic() + _TURN
        wait: int | None = _SOON
        while time.monotonic() < end:
            self._report(number, reader)
            if self._is_too_far_ahead(reader):
                wait = _HELD_BACK
                break
            step = reader.step()
            yield from step.batches
            if step.dead_letters:
                yield messenger, DEAD_LETTERS + step.dead_letters
            if step.done or step.wait:
                pause = max(step.wait, _PAUSE * len(self._readers))
                wait = None if step.done else int(pause * 1000)
                break
        self._report(number, reader)
        if reader.counts != counts:
            yield messenger, reader.counts.to_line().encode()
        self._state.save(reader.state)
        self._schedule(ctx, wait)

    def close(self) -> None:
        """Close all sources, so that no connection outlives its task."""
        for reader in self._readers.values():
            reader.close()

    def _is_too_far_ahead(self, reader: PartitionReader) -> bool:
        most = min(_AHEAD, _job(self._root).capacity)
        return len(self._numbers) > 1 and self._progress.is_too_far_ahead(reader.closed, most)

    def _report(self, number: int, reader: PartitionReader) -> None:
        self._progress.report(number, reader.closed if reader.blocks_others else None)

    def _schedule(self, ctx: KeyedProcessFunction.Context, wait: int | None) -> None:
        """Schedule a partition's next turn in `wait` milliseconds; None if it is done."""
        if wait is None:
            self._due.clear()
            return
        due = ctx.timer_service().current_processing_time() + wait
        ctx.timer_service().register_processing_time_timer(due)
        self._due.update(due)


class ShardFunction(KeyedProcessFunction):  # type: ignore[misc]
    """The shards of this task. They are evaluated together, and each has its own state in Flink."""

    def __init__(self, root: str, shards: list[int]) -> None:
        self._root = root
        self._keys = shards

    def open(self, runtime_context: RuntimeContext) -> None:
        """Start, or restart after a failure; the states are read when the first batch comes."""
        self._worker: ShardWorker | None = None
        self._own = divide_shards(
            self._keys,
            _job(self._root).layout.nonempty,
            runtime_context.get_max_number_of_parallel_subtasks(),
            runtime_context.get_number_of_parallel_subtasks(),
        )[runtime_context.get_index_of_this_subtask()]
        keys = [self._keys[shard] for shard in self._own]
        self._states = KeyedStates(runtime_context, SHARD, keys)

    def process_element(
        self, value: tuple[int, bytes], _: KeyedProcessFunction.Context
    ) -> Iterator[Any]:
        """Process a batch of a partition, or pass a reader's message on to the driver."""
        if self._worker is None:
            states = dict(zip(self._own, self._states.load(), strict=True))
            self._worker = ShardWorker(_job(self._root), states)
        yield from self._worker.take(bytes(value[1]))
        self._states.save(self._state_of)

    def _state_of(self, place: int) -> bytes:
        assert self._worker is not None, "states are saved after a batch"
        return self._worker.state(self._own[place])


class ReleaserFunction(ProcessFunction):  # type: ignore[misc]
    """Releases windows in a thread, so that checkpoints do not wait for the ledger or a sink."""

    def __init__(self, root: str) -> None:
        self._root = root

    def open(self, runtime_context: RuntimeContext) -> None:
        """Start, or restart after a failure."""
        # One task of the job needs the ledger and the sinks: the others start without them.
        from tacit.engines.flink.releaser import PaceThread, ReleaserThread

        end_with_taskmanager()
        folders = Folders(Path(self._root))
        self._pace = PaceThread(Progress(folders.progress))
        self._releaser = ReleaserThread(folders)
        self._add_metrics(runtime_context)
        self._pace.start()
        self._releaser.start()

    def process_element(self, _: int, __: ProcessFunction.Context) -> Iterator[Any]:
        """Fail if the releaser has failed; Flink then starts the job again."""
        self._releaser.check()
        return iter(())

    def close(self) -> None:
        """Stop the threads, so that none outlives its task."""
        self._pace.stop()
        self._releaser.stop()

    def _add_metrics(self, runtime_context: RuntimeContext) -> None:
        """Add metrics to Flink's: whole numbers that depend on the public schedule only."""
        group = runtime_context.get_metrics_group().add_group("tacit")
        group.gauge("windowsReleased", lambda: self._releaser.status.windows)
        group.gauge("releasedUntil", lambda: (self._releaser.status.until or 0) // 1_000_000)
        group.gauge("subjectsExhausted", lambda: self._releaser.status.exhausted)
        group.gauge("releasesUndelivered", lambda: self._releaser.status.undelivered)
        group.gauge("deliveryRetries", lambda: self._releaser.status.retries)
