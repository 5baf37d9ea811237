"""The shards of one task, and what they report as lines of text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

from tacit.engines.sharded.batches import ShardBatch
from tacit.engines.sharded.counts import COUNTS
from tacit.engines.sharded.job import ShardedJob
from tacit.engines.sharded.lines import DEAD_LETTERS, ShardLine, format_dead_letter
from tacit.engines.sharded.saved_state import SavedState
from tacit.engines.sharded.shard import LateTuples, ShardGroup
from tacit.windows.clock import LATE, REASONS

_LATE: Final = REASONS[LATE]


class ShardWorker:
    """Evaluates the shards of a task, together where they are in step.

    They are, unless they come from tasks that received the batches of several partitions in
    different orders. A plan with memory learns in each shard by itself, so there every shard is
    evaluated by itself.
    """

    def __init__(self, job: ShardedJob, states: Mapping[int, bytes | None]) -> None:
        """`states` has the numbers of all shards of the task, and the states of those that ran."""
        self._job = job
        saved = {
            number: None if state is None else SavedState.from_bytes(state)
            for number, state in sorted(states.items())
        }
        groups: dict[object, list[int]] = {}
        for number, state in saved.items():
            alone = number if job.compiled.evaluator.remembers else None
            step = None if state is None else _describe_step(state)
            groups.setdefault((alone, step), []).append(number)
        self._groups = [
            ShardGroup(job, group, [one for number in group if (one := saved[number]) is not None])
            for group in groups.values()
        ]
        self._states: dict[int, bytes] = {}
        """The states after the last batch, if they were asked for."""

    @property
    def groups(self) -> int:
        """How many groups of shards are evaluated separately."""
        return len(self._groups)

    def take(self, given: bytes) -> Iterator[str]:
        """Receive a batch, or a message to pass on, and yield lines."""
        if given.startswith(DEAD_LETTERS):
            letters = given.removeprefix(DEAD_LETTERS).decode().rstrip("\n")
            yield from map(format_dead_letter, letters.split("\n"))  # not at other line breaks
            return
        if given.startswith(COUNTS.encode()):
            yield given.decode()
            return
        self._states.clear()
        batch = ShardBatch.from_bytes(given)
        for group in self._groups:
            finished, counts = group.finished, group.counts
            for result in group.take(batch.select(group.numbers)):
                if isinstance(result, LateTuples):
                    yield from map(format_dead_letter, self._dead_letters(result))
                else:
                    yield ShardLine.of(result).to_line()
            for before, now in zip(counts, group.counts, strict=True):
                if now != before:
                    yield now.to_line()
            if group.finished and not finished:
                yield ShardLine(group.numbers).to_line()

    def state(self, shard: int) -> bytes:
        """Return the state of a shard after the last batch."""
        if not self._states:
            for group in self._groups:
                self._states |= zip(group.numbers, group.states(), strict=True)
        return self._states[shard]

    def _dead_letters(self, late: LateTuples) -> Iterator[str]:
        partition = self._job.partitions[late.partition]
        for subject, moment in zip(late.subjects.to_pylist(), late.times.tolist(), strict=True):
            yield json.dumps(
                {
                    "stream": partition.stream,
                    "source": partition.source,
                    "reason": _LATE,
                    "time": moment,
                    "subject": str(subject),
                }
            )


def _describe_step(saved: SavedState) -> object:
    """Return what is the same for all shards that have received and closed the same."""
    plain = {name: part for name, part in saved.plain.items() if name != "late"}
    waiting = [
        ShardBatch.from_bytes(blob).progress
        for name, blob in saved.blobs.items()
        if name.startswith("waiting.")
    ]
    progress = {name: blob for name, blob in saved.blobs.items() if name.startswith("progress.")}
    return json.dumps(plain), tuple(progress.items()), tuple(waiting), tuple(sorted(saved.arrays))
