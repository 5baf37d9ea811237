"""A distributed engine in one process: pieces wait in queues, everything may be lost and redone.

It keeps what Flink keeps: pieces of one reader reach a task in order, a checkpoint comes after all
pieces that were sent before it, holds all states and what was told until then, and after a loss all
goes on from the last one, with the shards in other tasks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np

from tacit.connectors.files import open_source
from tacit.engines.setup import assign
from tacit.engines.sharded.counts import COUNTS, TupleCounts
from tacit.engines.sharded.job import Partition, ShardedJob
from tacit.engines.sharded.lines import ShardLine, parse_dead_letter
from tacit.engines.sharded.reader import PartitionReader
from tacit.engines.sharded.worker import ShardWorker
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
    late: list[str] = field(default_factory=list)
    losses: int = 0
    most_groups: int = 0
    """The most groups of shards that a task had to evaluate separately."""

    def run(self) -> list[ShardLine]:
        """What all shards told until all were finished."""
        self._go_on(
            Kept(
                dict.fromkeys(range(len(self.job.partitions))),
                dict.fromkeys(self.job.layout.nonempty),
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
        for text in self.workers[key[1]].take(self.queues[key].popleft()):
            letter = parse_dead_letter(text)
            if letter is not None:
                self.late.append(letter)
            elif text.startswith(COUNTS):
                self.counts.append(TupleCounts.from_line(text))
            else:
                self.lines.append(text)

    def _checkpoint(self) -> Kept:
        while full := [key for key, queue in self.queues.items() if queue]:
            self._take(self.random.choice(full))
        return Kept(
            {number: reader.state() for number, reader in self.readers.items()},
            {number: self.workers[lane[0]].state(number) for lane in self.lanes for number in lane},
            list(self.lines),
            list(self.letters),
            list(self.counts),
        )

    def _go_on(self, kept: Kept) -> None:
        shards = self.job.layout.nonempty
        tasks = self.random.randint(1, len(shards))
        edges = sorted(self.random.sample(range(1, len(shards)), tasks - 1))
        self.lanes = [
            shards[begin:end] for begin, end in zip([0, *edges], [*edges, len(shards)], strict=True)
        ]
        self.readers = {
            number: PartitionReader(self.job, number, state, self.lanes)
            for number, state in kept.readers.items()
        }
        self.workers = {
            lane[0]: ShardWorker(self.job, {number: kept.shards[number] for number in lane})
            for lane in self.lanes
        }
        self.most_groups = max(self.most_groups, *(one.groups for one in self.workers.values()))
        self.queues: dict[tuple[int, int], deque[bytes]] = {}
        self.lines, self.letters = list(kept.lines), list(kept.letters)
        self.counts = list(kept.counts)
        self.reading = set(self.readers)
