"""A shard: the open windows of some subjects. A window closes when every partition has passed it.

Batches of a partition are inserted in their order. A batch that is too far ahead waits. The
partition that is furthest behind never waits, so all batches are inserted in the end.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tacit.answers.codec import pack
from tacit.engines.sharded.batches import ShardBatch
from tacit.engines.sharded.checks import check_windows
from tacit.engines.sharded.counts import TupleCounts
from tacit.engines.sharded.job import ShardedJob
from tacit.engines.sharded.saved_state import SavedState, check_array, check_places, restoring
from tacit.events.masks import EventMasks
from tacit.events.subjects import Subjects
from tacit.ledger.accounts import Accounts, Amounts, Key
from tacit.pipeline.batches import MergedBatch, Rows
from tacit.pipeline.pacing import Pacer
from tacit.pipeline.window_state import ClosedWindows, WindowState
from tacit.privacy.randomness import SecureSource
from tacit.windows.clock import LATE, NONE, REASONS, TAKEN, Verdicts

_TRUE: Final = "true"
"""The mark of answers without noise."""


@dataclass(frozen=True, slots=True)
class ShardAnswers:
    """The answers of one window for a shard's subjects."""

    window: int
    """Its number: that of its last pane."""
    first: int
    """The first window of the schedule."""
    exhausted: NDArray[np.bool_] | None
    """Subjects whose limit is reached, in the shard's order; None if there are no limits."""
    body: bytes
    prices: NDArray[np.int64]
    """`[account][subject]`: what the window costs those who are not exhausted."""
    mark: str
    """Random, drawn with the noise: answers that are drawn again have another mark."""


@dataclass(frozen=True, slots=True)
class LateTuples:
    """Tuples that arrived after the others had stopped waiting for their partition."""

    partition: int
    subjects: pa.Array
    times: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _OpeningBalance:
    """What a shard's subjects had spent before the job started."""

    spent: dict[Key, Amounts]

    def __call__(self, key: Key) -> Amounts:
        return self.spent.get(key, np.zeros(0, np.int64)).copy()


class Shard:
    """Receives batches, and yields the answers of windows as they close."""

    def __init__(self, job: ShardedJob, number: int, state: bytes | None = None) -> None:
        self._job = job
        windows = job.version.spec.windows
        self._size, self._panes = windows.pane, windows.panes
        self._streams = list(job.version.spec.streams)
        members = job.layout.members(number)
        self._ids = job.ids[members]
        subjects = Subjects()
        subjects.add(job.subjects.names.take(pa.array(members)))
        compiled = job.compiled
        self._windows = WindowState(
            compiled.evaluator,
            compiled.policies,
            subjects,
            self._size,
            2 * job.capacity,
            self._panes,
        )
        self._accounts = _open_accounts(job, members) if job.limited else None
        self._pacer = Pacer(
            job.version.spec,
            [mechanism.pacing for mechanism in job.version.plan.mechanisms],
            SecureSource(),
        )
        self._first = self._next = NONE
        self._progress: dict[int, ShardBatch] = {}
        """The last inserted batch of each partition, without its tuples."""
        self._waiting: dict[int, deque[bytes]] = {}
        self._late = 0
        """Tuples that readers accepted but that were late here, since the job started."""
        self._number = number
        self.finished = False
        """Whether all partitions are finished and all windows closed."""
        if state is not None:
            self._restore(state)

    def take(self, given: bytes) -> Iterator[ShardAnswers | LateTuples]:
        """Receive a batch and yield the answers of the windows that it closes."""
        partition = ShardBatch.read_partition(given)
        check_places("partition", np.array([partition]), len(self._job.partitions))
        self._waiting.setdefault(partition, deque()).append(given)
        if len(self._progress.keys() | self._waiting.keys()) < len(self._job.partitions):
            return  # the start of the schedule is not known yet
        while True:
            yield from self._insert_ready()
            stop = self._find_closable()
            if stop <= self._next:
                break
            yield from self._close(stop)
        done = all(batch.finished for batch in self._progress.values())
        self.finished = done and not any(self._waiting.values())

    def state(self) -> bytes:
        """Return the state, without what the job contains."""
        arrays, frames = self._windows.state()
        own = {name: part for name, part in arrays.items() if not name.startswith("subjects.")}
        blobs = {f"progress.{n}": batch.to_bytes() for n, batch in self._progress.items()}
        for number, waiting in self._waiting.items():
            blobs |= {f"waiting.{number}.{place}": batch for place, batch in enumerate(waiting)}
        balances = {} if self._accounts is None else self._accounts.balances
        kept = {
            "first": self._first,
            "next": self._next,
            "progress": list(self._progress),
            "waiting": [(number, len(waiting)) for number, waiting in self._waiting.items()],
            "balances": list(balances),
            "finished": self.finished,
            "late": self._late,
        }
        own |= {f"balance.{place}": spent for place, spent in enumerate(balances.values())}
        return SavedState(kept, own, frames, blobs).to_bytes()

    @property
    def counts(self) -> TupleCounts:
        """The tuples that it refused although readers had accepted them."""
        return TupleCounts(
            f"shard {self._number}", -self._late, {REASONS[LATE]: self._late} if self._late else {}
        )

    def _read(self, given: bytes) -> ShardBatch:
        """Decode a batch and check that it fits: compiled code uses its slots unchecked."""
        batch = ShardBatch.from_bytes(given)
        check_places("slots", batch.slots, self._windows.panes.slots)
        check_places("stream", np.array([batch.stream]), len(self._streams))
        check_array("masks", batch.masks, np.uint64, (None, self._job.words))
        return batch

    def _insert_ready(self) -> Iterator[LateTuples]:
        """Insert the batches that fit into the open windows."""
        end = (self._find_lowest() + self._windows.panes.capacity) * self._size
        for partition, waiting in self._waiting.items():
            while waiting:
                batch = self._read(waiting[0])
                if batch.times.max(initial=NONE) >= end:
                    break
                waiting.popleft()
                yield from self._insert(batch)
                self._progress[partition] = batch.without_tuples()

    def _insert(self, batch: ShardBatch) -> Iterator[LateTuples]:
        if not len(batch.times):
            return
        open_from = NONE if self._next == NONE else self._next * self._size
        late = batch.times < open_from
        verdicts = np.where(late, np.uint8(LATE), np.uint8(TAKEN))
        rows: tuple[Rows, ...] = ()
        if batch.attributes is not None:
            rows = (Rows(self._streams[batch.stream], batch.attributes),)
        merged = MergedBatch(batch.times, batch.slots, EventMasks(batch.masks), rows)
        self._windows.insert(merged, Verdicts.of(verdicts), 0, len(merged))
        if late.any():
            self._late += int(np.count_nonzero(late))
            names = self._windows.subjects.names.take(pa.array(batch.slots[late]))
            yield LateTuples(batch.partition, names, batch.times[late])

    def _find_lowest(self) -> int:
        """Find the first window that can still receive a tuple."""
        if self._next != NONE:
            return self._next
        batches = [*self._progress.values()]
        batches += [self._read(one[0]) for one in self._waiting.values() if one]
        floors = [min(batch.least, batch.closed) for batch in batches if batch.least != NONE]
        return min(floors, default=0)

    def _find_closable(self) -> int:
        """Find the first window that cannot be closed yet; fix the start of the schedule."""
        batches = list(self._progress.values())
        awaited = [batch.closed for batch in batches if not (batch.finished or batch.idle)]
        if len(batches) < len(self._job.partitions):
            return self._next
        if awaited:
            stop = min(awaited)
        elif all(batch.finished for batch in batches):
            stop = max(batch.ended for batch in batches)
            stop += 0 if stop == NONE else self._panes - 1  # later panes complete the last windows
        else:
            return self._next
        if self._next == NONE:
            used = [batch.least for batch in batches if batch.least != NONE]
            if not used or stop <= (first := min(used)):
                return NONE
            self._first = self._next = first
        return stop

    def _close(self, stop: int) -> Iterator[ShardAnswers]:
        """Close windows up to `stop`, at most as many as are open at a time."""
        held = self._windows.panes.capacity
        begin, self._next = self._next, min(stop, self._next + held)
        for closed in self._windows.close(begin, self._next, 1):
            yield self._answer(closed)

    def _answer(self, closed: ClosedWindows) -> ShardAnswers:
        exhausted = None
        prices = self._windows.price(closed, self._job.claims)[0]
        if self._accounts is not None:
            start = (closed.panes.first - self._panes + 1) * self._size
            exhausted = self._accounts.find_exhausted(start, prices)
            if self._pacer.active:
                gains, policies = self._windows.gains(), self._windows.policy_numbers()
                exhausted |= self._pacer.find_declined(
                    self._accounts, start, prices, gains, policies
                )
            self._accounts.charge(start, exhausted, None, prices)
        answers = self._windows.answer(closed, exhausted)
        body = pack([answers], [self._ids], self._job.version.consumers)
        mark = secrets.token_hex(16) if self._job.protected else _TRUE
        return ShardAnswers(closed.panes.first, self._first, exhausted, body, prices, mark)

    def _restore(self, state: bytes) -> None:
        saved = SavedState.from_bytes(state)
        with restoring():
            self._restore_parts(saved)

    def _restore_parts(self, saved: SavedState) -> None:
        kept, blobs = saved.plain, saved.blobs
        subjects = self._windows.subjects
        names = {f"subjects.{name}": part for name, part in subjects.state().items()}
        balances = {
            cast("Key", tuple(key)): check_array(
                f"balance.{place}", saved.arrays[f"balance.{place}"], np.int64, (len(subjects),)
            )
            for place, key in enumerate(kept["balances"])
        }
        own = {n: part for n, part in saved.arrays.items() if not n.startswith("balance.")}
        check_windows(self._windows, own, saved.frames)
        self._windows.restore({**own, **names}, dict(saved.frames))
        self._first, self._next = int(kept["first"]), int(kept["next"])
        self._progress = {int(n): self._read(blobs[f"progress.{n}"]) for n in kept["progress"]}
        self._waiting = {
            int(number): deque(blobs[f"waiting.{number}.{place}"] for place in range(count))
            for number, count in kept["waiting"]
        }
        known = np.array([*self._progress, *self._waiting], np.int64)
        check_places("partitions", known, len(self._job.partitions))
        if self._accounts is not None:
            self._accounts.balances = balances
        self._late, self.finished = int(kept["late"]), bool(kept["finished"])


def _open_accounts(job: ShardedJob, members: NDArray[np.int64]) -> Accounts:
    """Create the accounts of a shard's subjects.

    Spending follows from public events, so every shard can compute by itself who is exhausted.
    """
    ids = job.ids[members]
    spent = {}
    for key, amounts in job.opening.items():
        known = ids < len(amounts)
        spent[key] = np.zeros(len(ids), np.int64)
        spent[key][known] = amounts[ids[known]]
    return Accounts(
        np.arange(len(members)),
        [replace(account, mask=account.mask[members]) for account in job.accounts],
        _OpeningBalance(spent),
        None if job.zones is None else job.zones.take(members),
    )
