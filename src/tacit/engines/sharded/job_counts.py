"""Counts of a job: drawn once for all subjects, from what its shards report.

A shard reports for whom a count is open, and for whom its pattern is detected. These bits are
exact. They go to the collector and nowhere else: not into a log, a metric or an error. The
collector sums them up by group, leaves out who does not pay, and draws as one machine does
(`privacy/mechanisms/counts.py`): one draw for each count, group and window.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.answers.codec import unpack_bits
from tacit.answers.counts import CountAnswers
from tacit.engines.sharded.job import ShardedJob
from tacit.engines.sharded.lines import ShardLine
from tacit.errors import StateError
from tacit.ledger.accounts import Accounts
from tacit.pipeline.window_state import make_count_answers
from tacit.privacy.certainty import Certainty, Shares
from tacit.privacy.mechanisms.counts import MEMORY, CountBits, ReleasedBits
from tacit.privacy.mechanisms.mechanism import RunMemory, pack_slots
from tacit.windows.clock import NONE

Memory = Mapping[str, NDArray[Any]]
Bits = NDArray[np.bool_]


class JobCounts:
    """Prices and draws the counts of a job's windows, in their order."""

    def __init__(self, job: ShardedJob, memory: Memory) -> None:
        """`memory` is what was remembered of the windows before."""
        self._job = job
        self._evaluator = job.compiled.evaluator
        self._numbers = job.compiled.policies.assign(job.subjects)
        self._since = np.full(len(job.subjects), NONE, np.int64)
        self._windows = job.version.spec.windows
        self._estimated = bool(job.protected and job.version.plan.answer_counts)
        self.memory = memory

    def read(self, lines: Sequence[ShardLine]) -> CountBits:
        """Return who is open and who has the patterns, of all subjects, from all shards' lines."""
        counts = len(self._job.version.spec.count_queries)
        whole = np.zeros((2, counts, len(self._job.subjects)), np.bool_)
        for line in lines:
            members = self._job.layout.members_of(line.shards)
            if line.counts is None or line.counts.shape != (2, counts, len(members)):
                raise StateError("a line from a shard is damaged")
            whole[:, :, members] = line.counts
        opened, detected = (
            np.stack([pack_slots(flags) for flags in part])[np.newaxis] for part in whole
        )
        return CountBits(lines[0].window - self._windows.panes + 1, opened, detected)

    def price(self, bits: CountBits) -> NDArray[np.int64]:
        """Return `[account][subject]`: what the counts of a window cost."""
        job = self._job
        memory = RunMemory(self.memory)
        found = self._evaluator.price_count_bits(bits, job.claims, job.subjects.names, memory)
        return np.asarray(found[0])

    def draw(
        self, bits: CountBits, uncounted: Bits, exhausted: Bits, lines: Sequence[ShardLine]
    ) -> CountAnswers:
        """Draw the counts of a window, and remember them.

        Those in `uncounted` do not pay for counts, those in `exhausted` not for answers.
        """
        memory = RunMemory(self.memory)
        answers = self._read_answers(lines, exhausted) if self._estimated else None
        drawn = self._evaluator.draw_counts(
            bits, uncounted, self._since, self._job.subjects.names, memory, answers
        )
        self.memory = memory.after
        windows = self._windows
        counted = make_count_answers(
            self._evaluator, bits.first, windows.pane, windows.panes, drawn
        )
        assert counted is not None, "there are counts"
        return counted

    def _read_answers(self, lines: Sequence[ShardLine], exhausted: Bits) -> ReleasedBits:
        """Read the answers of a window, from which counts are estimated, as they are released."""
        subjects = len(self._job.subjects)
        queries = len(self._evaluator.names)
        bits = np.zeros((subjects, queries), np.bool_)
        sure = np.ones((subjects, queries), np.float32)
        for line in lines:
            members = self._job.layout.members_of(line.shards)
            bits[members], sure[members] = unpack_bits(line.body)
        columns = np.stack([pack_slots(flags) for flags in bits.T])[np.newaxis]
        policies = self._numbers + np.int32(len(self._job.compiled.policies)) * exhausted
        return ReleasedBits(columns, _ReleasedCertainty(sure), policies.astype(np.int32))


class _ReleasedCertainty(Certainty):
    """The confidences of answers as they are released."""

    def __init__(self, sure: NDArray[np.float32]) -> None:
        self._sure = sure
        """`[subject][query]` of one window."""

    def compute_confidence(
        self,
        query: int,
        windows: slice,  # noqa: ARG002 - there is one
        slots: slice,
        answers: Bits,  # noqa: ARG002
    ) -> Shares:
        """Return what is released with the answers."""
        return self._sure[np.newaxis, slots, query].astype(np.float64)


def find_uncounted(
    accounts: Accounts, start: int, prices: NDArray[np.int64], counted: NDArray[np.int64]
) -> Bits:
    """Return the subjects that cannot pay for the counts of a window beside its answers.

    `prices` is what they pay for answers, `counted` what counts would cost; both are
    `[account][subject]`.
    """
    return accounts.find_exhausted(start, np.where(counted > 0, prices + counted, 0))


def format_memory(memory: Memory) -> dict[str, str]:
    """Format what is remembered of counts as texts, for a checkpoint."""
    return {
        name: f"{len(part)}:{base64.b64encode(part.astype('<f8').tobytes()).decode()}"
        for name, part in memory.items()
    }


def parse_memory(kept: Mapping[str, str]) -> Memory:
    """Parse what `format_memory` returned, among other texts of a checkpoint."""
    found = {}
    try:
        for name in kept:
            if name.startswith(f"{MEMORY}."):
                rows, _, text = kept[name].partition(":")
                numbers = np.frombuffer(base64.b64decode(text, validate=True), "<f8")
                found[name] = numbers.reshape(int(rows), -1)
    except ValueError as error:
        raise StateError("the checkpoint of the job in the ledger is damaged") from error
    return found
