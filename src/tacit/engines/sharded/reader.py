"""A reader: it judges one partition's tuples in their order and divides them among the shards.

A batch is divided into one message for each lane: the shards that one task has at the moment.

On one machine several sources are merged in order of their progress, so each tuple is judged by the
watermark of its own source. A reader knows only its own source and judges in the same way. So which
tuples are late does not depend on the number of readers.
"""

from __future__ import annotations

import io
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tacit.buffers import allocate
from tacit.connectors.openers import open_input
from tacit.engines.sharded.batches import ShardBatch
from tacit.engines.sharded.counts import TupleCounts
from tacit.engines.sharded.job import ShardedJob
from tacit.engines.sharded.saved_state import SavedState, check_array, restoring
from tacit.events.columns import freeze
from tacit.kernels import compiled
from tacit.pipeline.batches import MergedBatch
from tacit.pipeline.deadletters import DeadLetters
from tacit.pipeline.engine import RefusedRows
from tacit.pipeline.reader import Input, Position, Positions, Reader, RegistryExtractor
from tacit.windows.clock import NONE, TAKEN, Clock, Verdicts

IDLE_SECONDS: Final = 0.05
"""Seconds between two looks of a reader for new tuples."""
_AWAY_SECONDS: Final = 60.0
"""Seconds for which the others wait at least for a source that does not answer."""
_IDLE_STEPS: Final = 4
"""The fewest steps without a tuple after which a source is idle. A process that was stopped for a
while has not looked for tuples meanwhile.
"""


@dataclass
class ReaderStep:
    """The result of a step."""

    batches: list[tuple[int, bytes]] = field(default_factory=list)
    """The first shard of a lane and a batch for the whole lane, in order."""
    dead_letters: bytes = b""
    """Dead letters, one JSON line each."""
    wait: float = 0.0
    """Seconds to wait before the next step."""
    done: bool = False
    """Whether this was the last step."""


class PartitionReader:
    """Reads one partition, one batch per step."""

    def __init__(
        self,
        job: ShardedJob,
        number: int,
        state: bytes | None = None,
        lanes: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """`lanes` are all shards that have subjects, in order, divided; by default all at once."""
        partition = job.partitions[number]
        every = [job.layout.nonempty] if lanes is None else lanes
        self._lanes = [np.array(lane, np.int32) for lane in every]
        self.spec = job.version.spec
        self._job = job
        self._number = number
        source = open_input(partition.source, follow=partition.follow)
        source.separate_by(self.spec.streams[partition.stream].delimiter)
        if partition.share is not None:
            source.take_share(*partition.share)
        self.patience = IDLE_SECONDS
        """Seconds that a step waits for tuples."""
        self._input = Input(partition.stream, source)
        windows = self.spec.windows
        self._clock = Clock.initial(
            windows.pane, windows.lateness, windows.jumps[1], windows.start_time, job.capacity
        )
        self._since = np.full(len(job.subjects), NONE, np.int64)
        self._done = self._idle = self._was_idle = False
        self._taken, self._refused = 0, Counter[str]()
        """How many tuples were accepted, and refused by reason, since the job started."""
        positions: Positions = {} if state is None else self._restore(state)
        self._letter_buffer = io.BytesIO()
        self._dead_letters = DeadLetters.to_file(self._letter_buffer)
        self._reader = Reader(
            self.spec.streams,
            [self._input],
            RegistryExtractor(job.compiled, job.subjects),
            windows.jumps[1],
            positions=positions,
            dead_letters=self._dead_letters,
        )
        self._batches = self._reader.read(lambda: self.patience)
        self._silence = 0.0
        """Seconds without a tuple, in which it looked for tuples."""
        self._looked = time.monotonic()

    # Steps

    @property
    def closed(self) -> int:
        """The first open window; NONE before the first tuple."""
        return self._clock.closed if self._clock.newest is not None else NONE

    @property
    def blocks_others(self) -> bool:
        """Whether other readers have to wait for it."""
        return not (self._done or self._idle)

    def step(self) -> ReaderStep:
        """Process the next batch."""
        if self._done:
            return ReaderStep(done=True)
        step = ReaderStep()
        try:
            batch = next(self._batches)
        except StopIteration:
            self._done = step.done = True
            step.batches = list(self._progress_batches())
        else:
            self._process(step, batch)
        step.dead_letters = self._letter_buffer.getvalue()
        self._letter_buffer.seek(0)
        self._letter_buffer.truncate()
        for (_, reason), times in self._dead_letters.counts.items():
            self._refused[reason] += times
        self._dead_letters.counts.clear()
        return step

    def _process(self, step: ReaderStep, batch: MergedBatch | None) -> None:
        """Process a batch, or the lack of one."""
        before, self._looked = self._looked, time.monotonic()
        if batch is not None and len(batch):
            self._silence, self._idle = 0.0, False
            step.batches = list(self._divide(batch))
            return
        if batch is not None:  # unreadable lines, or the position in a partition without tuples
            self._reader.advance(batch, 0)
        patience = self._job.idle / 1_000_000
        self._silence += min(self._looked - before, patience / _IDLE_STEPS)
        if self._reader.awaiting:  # it may have tuples, and was not asked or has not answered yet
            patience = max(patience, _AWAY_SECONDS)
        if self._silence >= patience and not self._idle:
            self._idle = self._was_idle = True
            step.batches = list(self._progress_batches())
        step.wait = IDLE_SECONDS

    def close(self) -> None:
        """Close the source; nothing is read any more."""
        self._batches.close()

    def state(self) -> bytes:
        """Return the state, to continue from in any process."""
        kept = {
            "positions": self._reader.positions,
            "done": self._done,
            "was idle": self._was_idle,
            "taken": self._taken,
            "refused": self._refused,
        }
        return SavedState(kept, {"clock": self._clock.state}).to_bytes()

    def _restore(self, state: bytes) -> Positions:
        """Restore a state; return the positions of the source."""
        saved, clock = SavedState.from_bytes(state), self._clock.state
        with restoring():
            kept = saved.plain
            self._done = bool(kept["done"])
            self._was_idle = bool(kept["was idle"])
            self._taken = int(kept["taken"])
            self._refused.update({reason: int(n) for reason, n in kept["refused"].items()})
            saved_clock = check_array("clock", saved.arrays["clock"], clock.dtype, clock.shape)
            self._clock = replace(self._clock, state=saved_clock)
            return {key: _check_position(one) for key, one in kept["positions"].items()}

    @property
    def counts(self) -> TupleCounts:
        """How many tuples it has accepted and refused since the job started."""
        return TupleCounts(f"reader {self._number}", self._taken, dict(self._refused))

    def _divide(self, batch: MergedBatch) -> Iterator[tuple[int, bytes]]:
        """Yield the accepted tuples in batches that span no more windows than a shard holds.

        Tuples that no pattern uses are not sent, unless others may have continued without this
        partition: then shards must see themselves which tuples are late.
        """
        clock = self._clock
        verdicts = Verdicts.allocate(len(batch))
        begin = 0
        while begin < len(batch):
            end = clock.judge(batch.slots, batch.times, self._since, begin, 0, True, verdicts)
            clock.mark_closed(clock.closed)
            each = verdicts.each
            self._taken += int(np.count_nonzero(each[begin:end] == TAKEN))
            self._refuse(batch, begin, np.flatnonzero(each[begin:end]), each)
            yield from self._split(batch, each, begin, end)
            begin = end
        self._reader.advance(batch, len(batch))

    def _split(
        self, batch: MergedBatch, verdicts: NDArray[np.uint8], begin: int, end: int
    ) -> Iterator[tuple[int, bytes]]:
        layout = self._job.layout
        slots, times = freeze(batch.slots[begin:end]), freeze(batch.times[begin:end])
        masks = freeze(batch.masks[begin:end].dense)
        sent = verdicts[begin:end] == TAKEN
        if not self._was_idle:
            _keep_used(masks, self._job.used_types, sent)
            if self._job.only_presence:
                slots, times, masks, sent = self._combine(slots, times, masks, sent)
        starts, rows, places, times, masks = _scattered(
            slots, times, masks, sent, layout.shard, layout.place, layout.shards
        )
        rows += begin
        compared = self._job.compiled.evaluator.attributes.get(self._input.stream, ())
        counts = np.diff(starts)
        for lane in self._lanes:
            own = slice(starts[lane[0]], starts[lane[-1] + 1])
            attributes = None
            if compared and own.start < own.stop:
                attributes = _select_attributes(batch, rows[own], compared)
            tuples = places[own], times[own], masks[own]
            yield int(lane[0]), self._encode_batch(lane, counts[lane], *tuples, attributes)

    def _combine(
        self,
        slots: NDArray[np.int32],
        times: NDArray[np.int64],
        masks: NDArray[np.uint64],
        sent: NDArray[np.bool_],
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.uint64], NDArray[np.bool_]]:
        """Combine the tuples of a subject in a window into one, at the window's start.

        If there are few tuples, they are returned as they are: that is faster.
        """
        size = self.spec.windows.pane
        earliest, latest = _find_extent(times, sent)
        first, subjects = earliest // size, len(self._job.subjects)
        windows = latest // size - first + 1
        if windows * subjects > len(times):
            return slots, times, masks, sent
        table = allocate((windows, subjects, masks.shape[1]), np.uint64)
        table[:] = 0
        _add_presence(slots, times, masks, sent, first, size, table)
        numbers, found = np.nonzero(table.any(axis=2))
        return (
            freeze(found.astype(np.int32)),
            freeze((first + numbers) * size),
            freeze(table[numbers, found]),
            np.ones(len(found), np.bool_),
        )

    def _progress_batches(self) -> Iterator[tuple[int, bytes]]:
        """Yield for every lane a batch with the progress and no tuples."""
        places, times = np.empty(0, np.int32), np.empty(0, np.int64)
        masks = np.empty((0, self._job.words), np.uint64)
        for lane in self._lanes:
            counts = np.zeros(len(lane), np.int64)
            yield int(lane[0]), self._encode_batch(lane, counts, places, times, masks, None)

    def _encode_batch(
        self,
        shards: NDArray[np.int32],
        counts: NDArray[np.int64],
        places: NDArray[np.int32],
        times: NDArray[np.int64],
        masks: NDArray[np.uint64],
        attributes: pa.RecordBatch | None,
    ) -> bytes:
        clock, least = self._clock, self._clock.first_window
        seen = clock.newest is not None
        return ShardBatch(
            self._number,
            list(self.spec.streams).index(self._input.stream),
            least if least is not None and seen else NONE,
            clock.closed if seen else NONE,
            clock.ended if seen else NONE,
            self._idle,
            self._done,
            shards,
            counts,
            places,
            times,
            masks,
            attributes,
        ).to_bytes()

    def _refuse(
        self,
        batch: MergedBatch,
        begin: int,
        chosen: NDArray[np.int64],
        verdicts: NDArray[np.uint8],
    ) -> None:
        for rows, lines, places in batch.trace(begin + chosen):
            self._reader.refuse(RefusedRows(rows, lines, batch.times[places], verdicts[places]))


def _select_attributes(
    batch: MergedBatch, rows: NDArray[np.int64], columns: Sequence[str]
) -> pa.RecordBatch:
    """Return the columns that conditions compare of these rows, in their order."""
    parts, places = [], []
    for origin, chosen, where in batch.trace(rows):
        parts.append(origin.table.select(list(columns)).take(pa.array(chosen)))
        places.append(where)
    if len(parts) == 1:
        return parts[0]
    table = pa.Table.from_batches(parts).unify_dictionaries().combine_chunks()
    # `trace` returns the rows of one origin after the other: back to the order of the tuples.
    (found,) = table.take(pa.array(_find_order(rows, np.concatenate(places)))).to_batches()
    return found


def _find_order(rows: NDArray[np.int64], traced: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where each row is among the traced ones."""
    order = np.argsort(traced)
    return order[np.searchsorted(traced[order], rows)]


@compiled
def _keep_used(
    masks: NDArray[np.uint64], used: NDArray[np.uint64], sent: NDArray[np.bool_]
) -> None:
    """Clear `sent` for tuples without an event of a used type."""
    for i in range(len(sent)):
        found = np.uint64(0)
        for word in range(len(used)):
            found |= masks[i, word] & used[word]
        sent[i] &= found != 0


@compiled
def _find_extent(times: NDArray[np.int64], sent: NDArray[np.bool_]) -> tuple[int, int]:
    """Return the earliest and the latest time to send; the same if there is none."""
    earliest, latest, seen = 0, 0, False
    for i in range(len(sent)):
        if sent[i]:
            earliest = min(earliest, times[i]) if seen else times[i]
            latest = max(latest, times[i]) if seen else times[i]
            seen = True
    return earliest, latest


@compiled
def _add_presence(
    slots: NDArray[np.int32],
    times: NDArray[np.int64],
    masks: NDArray[np.uint64],
    sent: NDArray[np.bool_],
    first: int,
    size: int,
    table: NDArray[np.uint64],
) -> None:
    """Set the bits of `[window][subject]`, from the window `first` on."""
    window, start = 0, first * size
    for i in range(len(sent)):
        if sent[i]:
            if not 0 <= times[i] - start < size:
                window = times[i] // size - first
                start = (first + window) * size
            for word in range(masks.shape[1]):
                table[window, slots[i], word] |= masks[i, word]


@compiled
def _scattered(
    slots: NDArray[np.int32],
    times: NDArray[np.int64],
    masks: NDArray[np.uint64],
    sent: NDArray[np.bool_],
    shard: NDArray[np.int32],
    place: NDArray[np.int32],
    shards: int,
) -> tuple[
    NDArray[np.int64], NDArray[np.int64], NDArray[np.int32], NDArray[np.int64], NDArray[np.uint64]
]:
    """Group the tuples to send by shard.

    Returns where each shard's tuples start, and for each tuple its row, the place of its subject,
    its time and its mask.
    """
    starts = np.zeros(shards + 1, np.int64)
    for i in range(len(sent)):
        if sent[i]:
            starts[shard[slots[i]] + 1] += 1
    for number in range(shards):
        starts[number + 1] += starts[number]
    at, total, words = starts[:-1].copy(), starts[-1], masks.shape[1]
    rows, places = np.empty(total, np.int64), np.empty(total, np.int32)
    moved, events = np.empty(total, np.int64), np.empty((total, words), np.uint64)
    for i in range(len(sent)):
        if sent[i]:
            slot = slots[i]
            own = shard[slot]
            to = at[own]
            at[own] = to + 1
            rows[to], places[to], moved[to] = i, place[slot], times[i]
            for word in range(words):
                events[to, word] = masks[i, word]
    return starts, rows, places, moved, events


def _check_position(plain: Mapping[str, Any]) -> Position:
    """Return a position from plain data; raise an error if it is malformed."""
    position = Position(token=plain["token"], rows=int(plain["rows"]), progress=plain["progress"])
    if "lines" in plain:
        position["lines"] = int(plain["lines"])
    if "partitions" in plain:
        parts = plain["partitions"].items()
        position["partitions"] = {str(name): _check_position(part) for name, part in parts}
    return position
