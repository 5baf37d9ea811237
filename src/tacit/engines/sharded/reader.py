"""A reader: one partition's tuples, judged in their own order and divided among the shards.

Several sources on one machine are merged in the order of their progress, so that the watermark
that a tuple meets there is its own source's. A reader that knows only its own source therefore
judges as that one does: which tuples are late does not depend on how many readers there are.
"""

from __future__ import annotations

import io
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tacit.connectors.openers import open_input
from tacit.engines.sharded.counts import TupleCounts
from tacit.engines.sharded.job import ShardedJob
from tacit.engines.sharded.pieces import ShardBatch
from tacit.engines.sharded.saved_state import SavedState, check_array, restoring
from tacit.kernels import compiled
from tacit.pipeline.batches import MergedBatch
from tacit.pipeline.deadletters import DeadLetters
from tacit.pipeline.engine import RefusedRows
from tacit.pipeline.reader import Input, Position, Positions, Reader, RegistryExtractor
from tacit.pipeline.sources import Batch
from tacit.windows.clock import NONE, TAKEN, Clock, Verdicts

IDLE_SECONDS: Final = 0.05
"""Seconds that a reader waits for tuples before others have their turn."""


@dataclass
class ReaderStep:
    """What came of a turn."""

    pieces: list[tuple[int, bytes]] = field(default_factory=list)
    """For each shard, in order."""
    letters: bytes = b""
    """Dead letters, a JSON line for each."""
    wait: float = 0.0
    """Seconds until the next turn is worth it."""
    done: bool = False
    """Whether there will be no other."""


class PartitionReader:
    """Reads one partition, a batch at each turn."""

    def __init__(self, job: ShardedJob, number: int, state: bytes | None = None) -> None:
        partition = job.partitions[number]
        self.spec = job.terms.spec
        self._job = job
        self._number = number
        self._input = Input(partition.stream, open_input(partition.source, follow=partition.follow))
        windows = self.spec.windows
        self._clock = Clock.at_rest(
            windows.pane, windows.lateness, windows.jumps[1], windows.start_time, job.capacity
        )
        self._since = np.full(len(job.subjects), NONE, np.int64)
        self._done = self._idle = self._was_idle = False
        self._taken, self._refused = 0, Counter[str]()
        """How many tuples were taken, and refused by which reason, since the job began."""
        positions: Positions = {} if state is None else self._restore(state)
        self._rows = 0
        """Rows that came from the source to this object."""
        self._rejected: deque[tuple[int, Batch]] = deque()
        """Batches with lines that cannot be read, and the number of rows up to their ends.

        They are reported when those rows are taken: with the position that a checkpoint has, so
        that going on from there reports each line once. Those of a batch without any row may come
        twice.
        """
        self._letters = io.BytesIO()
        self._dead_letters = DeadLetters.to_file(self._letters)
        self._reader = Reader(
            self.spec.streams,
            [self._input],
            RegistryExtractor(job.compiled, job.subjects),
            windows.jumps[1],
            positions=positions,
            dead_letters=self._dead_letters,
            rejected=self._rejected,
        )
        self._batches = self._reader.read(lambda: IDLE_SECONDS)
        self._heard = time.monotonic()

    # Turns

    @property
    def closed(self) -> int:
        """The first open window; NONE before the first tuple."""
        return self._clock.closed if self._clock.newest is not None else NONE

    @property
    def waited_for(self) -> bool:
        """Whether others have to wait for it."""
        return not (self._done or self._idle)

    def step(self) -> ReaderStep:
        """Take what comes next."""
        if self._done:
            return ReaderStep(done=True)
        step = ReaderStep()
        try:
            batch = next(self._batches)
        except StopIteration:
            self._done = step.done = True
            step.pieces = list(self._messages())
        else:
            self._turn(step, batch)
        while self._rejected and (self._rejected[0][0] <= self._rows or self._done):
            _, read = self._rejected.popleft()
            self._dead_letters.add_lines(self._input.stream, read.source, read.rejected)
        step.letters = self._letters.getvalue()
        self._letters.seek(0)
        self._letters.truncate()
        for (_, reason), times in self._dead_letters.counts.items():
            self._refused[reason] += times
        self._dead_letters.counts.clear()
        return step

    def _turn(self, step: ReaderStep, batch: MergedBatch | None) -> None:
        """What comes of tuples, or of none."""
        if batch is not None and len(batch):
            self._rows += len(batch)
            self._heard, self._idle = time.monotonic(), False
            step.pieces = list(self._divide(batch))
            return
        silent = time.monotonic() - self._heard > self._job.idle / 1_000_000
        if silent and not self._idle:
            self._idle = self._was_idle = True
            step.pieces = list(self._messages())
        step.wait = IDLE_SECONDS

    def state(self) -> bytes:
        """Where it is, to go on from in any process."""
        kept = {
            "positions": self._reader.positions,
            "done": self._done,
            "idle": self._idle,
            "was idle": self._was_idle,
            "taken": self._taken,
            "refused": self._refused,
        }
        return SavedState(kept, {"clock": self._clock.state}).to_bytes()

    def _restore(self, state: bytes) -> Positions:
        """Go on from a state; where the source was left."""
        saved, clock = SavedState.from_bytes(state), self._clock.state
        with restoring():
            kept = saved.plain
            self._done, self._idle = bool(kept["done"]), bool(kept["idle"])
            self._was_idle = bool(kept["was idle"])
            self._taken = int(kept["taken"])
            self._refused.update({reason: int(n) for reason, n in kept["refused"].items()})
            saved_clock = check_array("clock", saved.arrays["clock"], clock.dtype, clock.shape)
            self._clock = replace(self._clock, state=saved_clock)
            return {
                key: Position(token=one["token"], rows=int(one["rows"]), progress=one["progress"])
                for key, one in kept["positions"].items()
            }

    @property
    def counts(self) -> TupleCounts:
        """What it has taken and refused since the job began."""
        return TupleCounts(f"reader {self._number}", self._taken, dict(self._refused))

    def _divide(self, batch: MergedBatch) -> Iterator[tuple[int, bytes]]:
        """The tuples that are taken, in pieces; a piece is not longer than windows are held.

        Those that no pattern looks at stay here, unless others may have gone on without this
        partition: then shards have to see for themselves which tuples are late.
        """
        clock = self._clock
        verdicts = Verdicts.blank(len(batch))
        begin = 0
        while begin < len(batch):
            end = clock.judge(batch.slots, batch.times, self._since, begin, 0, True, verdicts)
            clock.mark_closed(clock.closed)
            each = verdicts.each
            self._taken += int(np.count_nonzero(each[begin:end] == TAKEN))
            self._refuse(batch, begin, np.flatnonzero(each[begin:end]), each)
            yield from self._cut(batch, each, begin, end)
            begin = end
        self._reader.advance(batch, len(batch))

    def _cut(
        self, batch: MergedBatch, verdicts: NDArray[np.uint8], begin: int, end: int
    ) -> Iterator[tuple[int, bytes]]:
        layout = self._job.layout
        sent = verdicts[begin:end] == TAKEN
        if not self._was_idle:
            sent &= (batch.masks[begin:end] & self._job.looked_at).any(axis=1)
        starts, rows, places, times, masks = _scattered(
            batch.slots,
            batch.times,
            batch.masks,
            begin,
            sent,
            layout.shard,
            layout.place,
            layout.shards,
        )
        compared = self._job.compiled.evaluator.attributes.get(self._input.stream, ())
        for shard in layout.nonempty:
            own = slice(starts[shard], starts[shard + 1])
            attributes = None
            if compared and own.start < own.stop:
                origin, chosen, _ = next(batch.trace(rows[own]))
                attributes = origin.table.select(list(compared)).take(pa.array(chosen))
            yield shard, self._piece(places[own], times[own], masks[own], attributes)

    def _messages(self) -> Iterator[tuple[int, bytes]]:
        """Word for every shard that has no tuples with it."""
        places, times = np.empty(0, np.int32), np.empty(0, np.int64)
        masks = np.empty((0, self._job.words), np.uint64)
        piece = self._piece(places, times, masks, None)
        for shard in self._job.layout.nonempty:
            yield shard, piece

    def _piece(
        self,
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


@compiled
def _scattered(
    slots: NDArray[np.int32],
    times: NDArray[np.int64],
    masks: NDArray[np.uint64],
    begin: int,
    sent: NDArray[np.bool_],
    shard: NDArray[np.int32],
    place: NDArray[np.int32],
    shards: int,
) -> tuple[
    NDArray[np.int64], NDArray[np.int64], NDArray[np.int32], NDArray[np.int64], NDArray[np.uint64]
]:
    """Where each shard's tuples begin, of those from `begin` on that are sent, and these in order.

    Of each: which tuple it is, the place of its subject, its time and its mask.
    """
    starts = np.zeros(shards + 1, np.int64)
    for i in range(len(sent)):
        if sent[i]:
            starts[shard[slots[begin + i]] + 1] += 1
    for number in range(shards):
        starts[number + 1] += starts[number]
    at, total, words = starts[:-1].copy(), starts[-1], masks.shape[1]
    rows, places = np.empty(total, np.int64), np.empty(total, np.int32)
    moved, events = np.empty(total, np.int64), np.empty((total, words), np.uint64)
    for i in range(begin, begin + len(sent)):
        if sent[i - begin]:
            slot = slots[i]
            own = shard[slot]
            to = at[own]
            at[own] = to + 1
            rows[to], places[to], moved[to] = i, place[slot], times[i]
            for word in range(words):
                events[to, word] = masks[i, word]
    return starts, rows, places, moved, events
