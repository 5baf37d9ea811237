"""A distributed engine in one process: pieces wait in queues, everything may be lost and redone.

It keeps what Flink keeps: pieces of one reader reach a shard in order, a checkpoint holds all
states and what was told until then, and after a loss all goes on from the last one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np

from tacit.connectors.files import open_source
from tacit.engines.setup import assign
from tacit.engines.sharded.counts import TupleCounts
from tacit.engines.sharded.job import Partition, ShardedJob
from tacit.engines.sharded.lines import ShardLine
from tacit.engines.sharded.reader import PartitionReader
from tacit.engines.sharded.shard import LateTuples, Shard
from tacit.pipeline.run import Run
from tacit.pipeline.versions import SpecVersion
from tacit.planning.planner import plan_without_history
from tacit.spec.specification import Specification


def made(
    spec: Specification,
    files: list[tuple[str, Path]],
    shards: int,
    *,
    protected: bool = False,
    version: SpecVersion | None = None,
) -> ShardedJob:
    """A job over files; subjects as a run on one machine has them."""
    inputs = assign(spec, [(stream, open_source(path)) for stream, path in files])
    subjects = Run(spec, inputs).engine.subjects
    return ShardedJob(
        version or SpecVersion(spec, plan_without_history(spec, "uniform")),
        subjects,
        np.arange(len(subjects)),
        tuple(Partition(stream, str(path)) for stream, path in files),
        shards,
        protected,
    )


@dataclass
class Kept:
    """A checkpoint."""

    readers: dict[int, bytes | None]
    shards: dict[int, bytes | None]
    queues: dict[tuple[int, int], list[bytes]]
    lines: list[str]
    letters: list[bytes]
    counts: list[TupleCounts]


@dataclass
class Simulation:
    """Runs a job to its end."""

    job: ShardedJob
    random: Random
    loss: float = 0.0
    """How likely everything is lost at a step."""
    lines: list[str] = field(default_factory=list)
    letters: list[bytes] = field(default_factory=list)
    counts: list[TupleCounts] = field(default_factory=list)
    late: list[LateTuples] = field(default_factory=list)
    losses: int = 0

    def run(self) -> list[ShardLine]:
        """What all shards told until all were finished."""
        self._go_on(
            Kept(
                dict.fromkeys(range(len(self.job.partitions))),
                dict.fromkeys(self.job.layout.nonempty),
                {},
                [],
                [],
                [],
            )
        )
        kept = self._checkpoint()
        while True:
            if self.random.random() < self.loss and self.losses < 20:
                self.losses += 1
                self._go_on(kept)
            elif self.random.random() < 0.2:
                kept = self._checkpoint()
            choices: list[int | tuple[int, int]] = [*self.reading]
            choices += [key for key, queue in self.queues.items() if queue]
            if not choices:
                return [ShardLine.from_line(text) for text in self.lines]
            choice = self.random.choice(choices)
            if isinstance(choice, int):
                self._read(choice)
            else:
                self._take(choice)

    def _read(self, number: int) -> None:
        step = self.readers[number].step()
        for shard, piece in step.batches:
            self.queues.setdefault((number, shard), deque()).append(piece)
        if step.dead_letters:
            self.letters.append(step.dead_letters)
        self.counts.append(self.readers[number].counts)
        if step.done:
            self.reading.discard(number)

    def _take(self, key: tuple[int, int]) -> None:
        shard = self.shards[key[1]]
        for found in shard.take(self.queues[key].popleft()):
            if isinstance(found, LateTuples):
                self.late.append(found)
            else:
                self.lines.append(ShardLine.of(key[1], found).to_line())
        self.counts.append(shard.counts)
        if shard.finished:
            self.lines.append(ShardLine(key[1]).to_line())

    def _checkpoint(self) -> Kept:
        return Kept(
            {number: reader.state() for number, reader in self.readers.items()},
            {number: shard.state() for number, shard in self.shards.items()},
            {key: list(queue) for key, queue in self.queues.items()},
            list(self.lines),
            list(self.letters),
            list(self.counts),
        )

    def _go_on(self, kept: Kept) -> None:
        self.readers = {
            number: PartitionReader(self.job, number, state)
            for number, state in kept.readers.items()
        }
        self.shards = {
            number: Shard(self.job, number, state) for number, state in kept.shards.items()
        }
        self.queues = {key: deque(queue) for key, queue in kept.queues.items()}
        self.lines, self.letters = list(kept.lines), list(kept.letters)
        self.counts = list(kept.counts)
        self.reading = set(self.readers)
