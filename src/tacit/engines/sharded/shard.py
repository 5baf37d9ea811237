"""Shards: the open windows of some subjects. A window closes when every partition has passed it.

Batches of a partition are inserted in their order. A batch that is too far ahead waits. The
partition that is furthest behind never waits, so all batches are inserted in the end.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tacit.answers.codec import pack
from tacit.engines.sharded.batches import ShardBatch
from tacit.engines.sharded.checks import check_windows
from tacit.engines.sharded.count_share import CountShare
from tacit.engines.sharded.counts import TupleCounts
from tacit.engines.sharded.division import SlotRanges, divide_windows, join_windows
from tacit.engines.sharded.job import ShardedJob
from tacit.engines.sharded.saved_state import SavedState, check_array, check_places, restoring
from tacit.errors import StateError
from tacit.events.masks import EventMasks
from tacit.events.subjects import Subjects
from tacit.ledger.accounts import Accounts, Amounts, Key
from tacit.pipeline.batches import MergedBatch, Rows
from tacit.pipeline.pacing import Pacer
from tacit.pipeline.window_state import ClosedWindows, WindowState
from tacit.privacy.mechanisms.counts import CountBits
from tacit.privacy.randomness import SecureSource
from tacit.windows.clock import LATE, NONE, REASONS, TAKEN, Verdicts

_TRUE: Final = "true"
"""The mark of answers without noise."""


@dataclass(frozen=True, slots=True)
class ShardAnswers:
    """The answers of one window for the subjects of some shards."""

    shards: tuple[int, ...]
    window: int
    """Its number: that of its last pane."""
    first: int
    """The first window of the schedule."""
    exhausted: NDArray[np.bool_] | None
    """Subjects whose limit is reached, one shard after the other; None if there are no limits."""
    body: bytes
    prices: NDArray[np.int64]
    """`[account][subject]`: what the window costs those who are not exhausted."""
    mark: str
    """Random, drawn with the noise: answers that are drawn again have another mark."""
    counts: NDArray[np.bool_] | None = None
    """`[2][count][subject]`: for whom a count is open, and for whom its pattern is detected. They
    are exact, and for the collector only; None if nothing is counted."""


@dataclass(frozen=True, slots=True)
class LateTuples:
    """Tuples that arrived after the others had stopped waiting for their partition."""

    partition: int
    subjects: pa.Array
    times: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _OpeningBalance:
    """What subjects had spent before the job started."""

    spent: dict[Key, Amounts]

    def __call__(self, key: Key) -> Amounts:
        return self.spent.get(key, np.zeros(0, np.int64)).copy()


class ShardGroup:
    """Some shards that are in step: receives batches, and yields answers as windows close.

    All their subjects are evaluated together, so a group of many shards costs hardly more than one
    shard. Each shard has its own saved state, and can be in another group later.
    """

    def __init__(
        self, job: ShardedJob, numbers: Sequence[int], saved: Sequence[SavedState] = ()
    ) -> None:
        """`saved` are the states of all these shards, or empty for new ones."""
        self._job = job
        self.numbers = tuple(numbers)
        windows = job.version.spec.windows
        self._size, self._panes = windows.pane, windows.panes
        self._streams = list(job.version.spec.streams)
        members = job.layout.members_of(self.numbers)
        self._ranges = SlotRanges.of([len(job.layout.members(number)) for number in numbers])
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
        self._share = CountShare(job.version)
        self._first = self._next = NONE
        self._progress: dict[int, ShardBatch] = {}
        """The last inserted batch of each partition, without its tuples."""
        self._waiting: dict[int, deque[ShardBatch]] = {}
        self._late = np.zeros(len(self.numbers), np.int64)
        """Tuples of each shard that readers accepted but that were late here."""
        self.finished = False
        """Whether all partitions are finished and all windows closed."""
        if saved:
            with restoring():
                self._restore(saved)

    def take(self, batch: ShardBatch) -> Iterator[ShardAnswers | LateTuples]:
        """Receive a batch for these shards and yield the answers of the windows that it closes."""
        self._check(batch)
        self._waiting.setdefault(batch.partition, deque()).append(batch)
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

    def states(self) -> list[bytes]:
        """Return the state of each shard, without what the job contains."""
        arrays, frames = self._windows.state()
        own = {name: part for name, part in arrays.items() if not name.startswith("subjects.")}
        # In order of their numbers, so that it is the same for all shards that are in step.
        progress = {f"progress.{n}": one.to_bytes() for n, one in sorted(self._progress.items())}
        early = sorted((number, batches) for number, batches in self._waiting.items() if batches)
        balances = {} if self._accounts is None else self._accounts.balances
        shared = {
            "first": self._first,
            "next": self._next,
            "progress": sorted(self._progress),
            "waiting": [(number, len(batches)) for number, batches in early],
            "balances": list(balances),
            "finished": self.finished,
        }
        edges, found = self._ranges.edges, []
        for place, parts in enumerate(divide_windows(own, frames, self._ranges)):
            inner = slice(edges[place], edges[place + 1])
            spent = {f"balance.{n}": one[inner] for n, one in enumerate(balances.values())}
            waiting = {
                f"waiting.{number}.{n}": batch.select(self.numbers[place : place + 1]).to_bytes()
                for number, batches in early
                for n, batch in enumerate(batches)
            }
            plain = {**shared, "late": int(self._late[place])}
            state = SavedState(plain, {**parts[0], **spent}, parts[1], {**progress, **waiting})
            found.append(state.to_bytes())
        return found

    @property
    def counts(self) -> list[TupleCounts]:
        """The tuples that each shard refused although readers had accepted them."""
        return [
            TupleCounts(f"shard {number}", -late, {REASONS[LATE]: late} if late else {})
            for number, late in zip(self.numbers, self._late.tolist(), strict=True)
        ]

    def _check(self, batch: ShardBatch) -> None:
        """Check that a batch fits: compiled code uses its slots unchecked."""
        check_places("partition", np.array([batch.partition]), len(self._job.partitions))
        check_places("stream", np.array([batch.stream]), len(self._streams))
        check_array("masks", batch.masks, np.uint64, (None, self._job.words))
        sizes = np.repeat(np.diff(self._ranges.edges), batch.counts)
        if len(sizes) != len(batch.slots):
            raise StateError("a batch from a reader is for other shards than those of its task")
        check_places("slots", batch.slots - sizes, 0, least=-int(sizes.max(initial=0)))
        check_places("slots", batch.slots, self._windows.panes.slots)

    def _insert_ready(self) -> Iterator[LateTuples]:
        """Insert the batches that fit into the open windows."""
        end = (self._find_lowest() + self._windows.panes.capacity) * self._size
        for partition, waiting in self._waiting.items():
            while waiting and waiting[0].times.max(initial=NONE) < end:
                batch = waiting.popleft()
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
        slots = batch.slots + np.repeat(self._ranges.edges[:-1].astype(np.int32), batch.counts)
        merged = MergedBatch(batch.times, slots, EventMasks(batch.masks), rows)
        self._windows.insert(merged, Verdicts.of(verdicts), 0, len(merged))
        if late.any():
            owners = self._ranges.find(slots[late])
            self._late += np.bincount(owners, minlength=len(self._late))
            names = self._windows.subjects.names.take(pa.array(slots[late]))
            yield LateTuples(batch.partition, names, batch.times[late])

    def _find_lowest(self) -> int:
        """Find the first window that can still receive a tuple."""
        if self._next != NONE:
            return self._next
        batches = [*self._progress.values(), *(one[0] for one in self._waiting.values() if one)]
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
            exhausted = self._settle(self._accounts, closed, prices)
        answers = self._windows.answer(closed, exhausted, count=False)
        body = pack([answers], [self._ids], self._job.version.consumers)
        mark = secrets.token_hex(16) if self._job.protected else _TRUE
        bits = self._windows.read_counts(closed)
        counts = None if bits is None else _unpack_counts(bits, len(self._ids))
        return ShardAnswers(
            self.numbers, closed.panes.first, self._first, exhausted, body, prices, mark, counts
        )

    def _settle(
        self, accounts: Accounts, closed: ClosedWindows, prices: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Charge a window, as an `Accountant` does; return who does not pay for answers.

        Where counts are paced, the collector alone knows what they cost, and charges them: here
        their share of the limit is kept for them.
        """
        start = (closed.panes.first - self._panes + 1) * self._size
        first = (self._first - self._panes + 1) * self._size
        counted = np.zeros_like(prices)
        if self._share.paced:
            kept = self._share.find_kept(accounts, start, first)
        else:
            found = self._windows.price_counts(self._job.claims)
            if found is not None:
                counted = np.where(accounts.find_exhausted(start, found[0]), 0, found[0])
            kept = counted
        exhausted = accounts.find_exhausted(start, np.where(prices > 0, prices + kept, 0))
        if self._pacer.active:
            gains, policies = self._windows.gains(), self._windows.policy_numbers()
            exhausted |= self._pacer.find_declined(accounts, start, prices, gains, policies, kept)
        silent = exhausted & ~counted.any(axis=0)
        accounts.charge(start, silent, None, np.where(exhausted, 0, prices) + counted)
        return exhausted

    def _restore(self, saved: Sequence[SavedState]) -> None:
        """Restore the states of all shards; they must be in step."""
        windows, sizes = [], np.diff(self._ranges.edges).tolist()
        for state, size in zip(saved, sizes, strict=True):
            own = {n: part for n, part in state.arrays.items() if not n.startswith("balance.")}
            check_windows(self._windows, own, state.frames, size)
            windows.append((own, state.frames))
        arrays, frames = join_windows(windows, self._ranges)
        subjects = self._windows.subjects
        names = {f"subjects.{name}": part for name, part in subjects.state().items()}
        self._windows.restore({**arrays, **names}, frames)
        kept = saved[0].plain
        self._first, self._next = int(kept["first"]), int(kept["next"])
        blobs = saved[0].blobs
        # It is unknown what came meanwhile, so all partitions are awaited until they report again.
        self._progress = {
            int(n): replace(ShardBatch.from_bytes(blobs[f"progress.{n}"]), idle=False)
            for n in kept["progress"]
        }
        self._waiting = {
            int(number): deque(
                _join_batches([one.blobs[f"waiting.{number}.{place}"] for one in saved])
                for place in range(count)
            )
            for number, count in kept["waiting"]
        }
        known = np.array([*self._progress, *self._waiting], np.int64)
        check_places("partitions", known, len(self._job.partitions))
        for batches in self._waiting.values():
            for batch in batches:
                self._check(batch.select(self.numbers))
        if self._accounts is not None:
            self._accounts.balances = self._join_balances(saved, sizes)
        self._late = np.array([int(one.plain["late"]) for one in saved], np.int64)
        self.finished = bool(kept["finished"])

    def _join_balances(
        self, saved: Sequence[SavedState], sizes: Sequence[int]
    ) -> dict[Key, Amounts]:
        keys = [cast("Key", tuple(key)) for key in saved[0].plain["balances"]]
        return {
            key: np.concatenate(
                [
                    check_array(name, one.arrays[name], np.int64, (size,))
                    for one, size in zip(saved, sizes, strict=True)
                ]
            )
            for key, name in ((key, f"balance.{place}") for place, key in enumerate(keys))
        }


def _unpack_counts(bits: CountBits, subjects: int) -> NDArray[np.bool_]:
    """Return `[2][count][subject]` of one window."""
    words = np.stack([bits.opened[0], bits.detected[0]]).astype("<u8", copy=False)
    flags = np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little", count=subjects)
    return flags.view(np.bool_)


def _join_batches(given: Sequence[bytes]) -> ShardBatch:
    return ShardBatch.join([ShardBatch.from_bytes(one) for one in given])


def _open_accounts(job: ShardedJob, members: NDArray[np.int64]) -> Accounts:
    """Create the accounts of these subjects.

    Spending follows from public events, so every task can compute by itself who is exhausted.
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
