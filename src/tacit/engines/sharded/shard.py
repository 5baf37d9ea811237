"""A shard: the open windows of some subjects, closed when every partition has passed them.

Pieces of a partition are laid in their order, and those that lie too far ahead wait. The one
that is furthest behind never does, so that all come to their turn.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tacit.answers.codec import pack
from tacit.engines.sharded.checks import check_windows
from tacit.engines.sharded.counts import TupleCounts
from tacit.engines.sharded.job import ShardedJob
from tacit.engines.sharded.pieces import ShardBatch
from tacit.engines.sharded.saved_state import SavedState, check_array, check_places, restoring
from tacit.events.subjects import Subjects
from tacit.ledger.accounts import Accounts, Amounts, Key
from tacit.pipeline.accountant import list_accounts
from tacit.pipeline.batches import MergedBatch, Rows
from tacit.pipeline.window_state import ClosedWindows
from tacit.pipeline.window_state import WindowState as Windows
from tacit.windows.clock import LATE, NONE, REASONS, TAKEN, Verdicts

_TRUE: Final = "true"
"""The mark of answers that no noise is drawn for."""


@dataclass(frozen=True, slots=True)
class ShardAnswers:
    """The answers of one window for a shard's subjects."""

    window: int
    """Its number, by the pane that it ends with."""
    first: int
    """The first window of the schedule."""
    exhausted: NDArray[np.bool_] | None
    """Whose limit is reached, in the order of the shard's subjects; None where nobody has one."""
    body: bytes
    mark: str
    """Drawn with the noise: answers that are drawn again may be the same, their mark is not."""


@dataclass(frozen=True, slots=True)
class LateTuples:
    """Tuples that came after others had given up waiting for their partition."""

    partition: int
    subjects: pa.Array
    times: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _OpeningBalance:
    """What a shard's subjects had spent before the job."""

    spent: dict[Key, Amounts]

    def __call__(self, key: Key) -> Amounts:
        return self.spent.get(key, np.zeros(0, np.int64)).copy()


class Shard:
    """Takes pieces, and gives the answers of windows as they close."""

    def __init__(self, job: ShardedJob, number: int, state: bytes | None = None) -> None:
        self._job = job
        windows = job.terms.spec.windows
        self._size, self._panes = windows.pane, windows.panes
        self._streams = list(job.terms.spec.streams)
        members = job.layout.members(number)
        self._ids = job.ids[members]
        subjects = Subjects()
        subjects.add(job.subjects.names.take(pa.array(members)))
        flow = job.compiled
        self._windows = Windows(
            flow.evaluator, flow.policies, subjects, self._size, 2 * job.capacity, self._panes
        )
        self._accounts = _accounts(job, members, subjects)
        self._first = self._next = NONE
        self._progress: dict[int, ShardBatch] = {}
        """The last piece of each partition that was laid, without its tuples."""
        self._waiting: dict[int, deque[bytes]] = {}
        self._late = 0
        """Tuples that readers took and that were late here, since the job began."""
        self._number = number
        self.finished = False
        """Whether all partitions are finished and all windows closed."""
        if state is not None:
            self._restore(state)

    def take(self, given: bytes) -> Iterator[ShardAnswers | LateTuples]:
        """Take a piece; the answers of the windows that it closes."""
        partition = ShardBatch.partition_of(given)
        check_places("partition", np.array([partition]), len(self._job.partitions))
        self._waiting.setdefault(partition, deque()).append(given)
        if len(self._progress.keys() | self._waiting.keys()) < len(self._job.partitions):
            return  # where the schedule begins is not known yet
        while True:
            yield from self._lay_what_fits()
            stop = self._closable()
            if stop <= self._next:
                break
            yield from self._close(stop)
        done = all(piece.finished for piece in self._progress.values())
        self.finished = done and not any(self._waiting.values())

    def state(self) -> bytes:
        """All of it but what the job says."""
        arrays, frames = self._windows.state()
        own = {name: part for name, part in arrays.items() if not name.startswith("subjects.")}
        blobs = {f"progress.{n}": piece.to_bytes() for n, piece in self._progress.items()}
        for number, waiting in self._waiting.items():
            blobs |= {f"waiting.{number}.{place}": piece for place, piece in enumerate(waiting)}
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
        """What it refused although readers had taken it, since the job began."""
        return TupleCounts(
            f"shard {self._number}", -self._late, {REASONS[LATE]: self._late} if self._late else {}
        )

    def _read(self, given: bytes) -> ShardBatch:
        """A piece that fits this shard: compiled code takes its places as they are."""
        piece = ShardBatch.from_bytes(given)
        check_places("slots", piece.slots, self._windows.panes.slots)
        check_places("stream", np.array([piece.stream]), len(self._streams))
        check_array("masks", piece.masks, np.uint64, (None, self._job.words))
        return piece

    def _lay_what_fits(self) -> Iterator[LateTuples]:
        """Lay the pieces that the windows which are held have room for."""
        end = (self._lowest() + self._windows.panes.capacity) * self._size
        for partition, waiting in self._waiting.items():
            while waiting:
                piece = self._read(waiting[0])
                if piece.times.max(initial=NONE) >= end:
                    break
                waiting.popleft()
                yield from self._insert(piece)
                self._progress[partition] = piece.without_tuples()

    def _insert(self, piece: ShardBatch) -> Iterator[LateTuples]:
        if not len(piece.times):
            return
        open_from = NONE if self._next == NONE else self._next * self._size
        late = piece.times < open_from
        verdicts = np.where(late, np.uint8(LATE), np.uint8(TAKEN))
        rows: tuple[Rows, ...] = ()
        if piece.attributes is not None:
            rows = (Rows(self._streams[piece.stream], piece.attributes),)
        arrivals = MergedBatch(piece.times, piece.slots, piece.masks, rows)
        self._windows.insert(arrivals, Verdicts.of(verdicts), 0, len(arrivals))
        if late.any():
            self._late += int(np.count_nonzero(late))
            names = self._windows.subjects.names.take(pa.array(piece.slots[late]))
            yield LateTuples(piece.partition, names, piece.times[late])

    def _lowest(self) -> int:
        """The first window that a tuple may still be laid into."""
        if self._next != NONE:
            return self._next
        pieces = [*self._progress.values()]
        pieces += [self._read(one[0]) for one in self._waiting.values() if one]
        floors = [min(piece.least, piece.closed) for piece in pieces if piece.least != NONE]
        return min(floors, default=0)

    def _closable(self) -> int:
        """The first window that cannot be closed yet; where the schedule begins is settled."""
        pieces = list(self._progress.values())
        waited_for = [piece.closed for piece in pieces if not (piece.finished or piece.idle)]
        if len(pieces) < len(self._job.partitions):
            return self._next
        if waited_for:
            stop = min(waited_for)
        elif all(piece.finished for piece in pieces):
            stop = max(piece.ended for piece in pieces)
            stop += 0 if stop == NONE else self._panes - 1  # panes to come complete the last ones
        else:
            return self._next
        if self._next == NONE:
            used = [piece.least for piece in pieces if piece.least != NONE]
            if not used or stop <= (first := min(used)):
                return NONE
            self._first = self._next = first
        return stop

    def _close(self, stop: int) -> Iterator[ShardAnswers]:
        """Close windows up to one, as many as are held at a time."""
        held = self._windows.panes.capacity
        begin, self._next = self._next, min(stop, self._next + held)
        for handed in self._windows.close(begin, self._next, 1):
            yield self._answered(handed)

    def _answered(self, handed: ClosedWindows) -> ShardAnswers:
        exhausted = None
        if self._accounts is not None:
            start = (handed.panes.first - self._panes + 1) * self._size
            exhausted = self._accounts.find_exhausted(start)
            self._accounts.charge(start, exhausted)
        answers = self._windows.answer(handed, exhausted)
        body = pack([answers], [self._ids], self._job.terms.consumers)
        mark = secrets.token_hex(16) if self._job.protected else _TRUE
        return ShardAnswers(handed.panes.first, self._first, exhausted, body, mark)

    def _restore(self, state: bytes) -> None:
        saved = SavedState.from_bytes(state)
        with restoring():
            self._take_up(saved)

    def _take_up(self, saved: SavedState) -> None:
        kept, blobs = saved.plain, saved.blobs
        subjects = self._windows.subjects
        named = {f"subjects.{name}": part for name, part in subjects.state().items()}
        balances = {
            cast("Key", tuple(key)): check_array(
                f"balance.{place}", saved.arrays[f"balance.{place}"], np.int64, (len(subjects),)
            )
            for place, key in enumerate(kept["balances"])
        }
        own = {n: part for n, part in saved.arrays.items() if not n.startswith("balance.")}
        check_windows(self._windows, own, saved.frames)
        self._windows.restore({**own, **named}, dict(saved.frames))
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


def _accounts(job: ShardedJob, members: NDArray[np.int64], subjects: Subjects) -> Accounts | None:
    """The accounts of a shard's subjects, if any private pattern has a limit.

    What they spend follows the schedule, so every shard can tell by itself who is exhausted.
    """
    private = job.terms.spec.private
    if not job.protected or all(one.limit is None for one in private):
        return None
    ids = job.ids[members]
    spent = {}
    for key, amounts in job.opening.items():
        known = ids < len(amounts)
        spent[key] = np.zeros(len(ids), np.int64)
        spent[key][known] = amounts[ids[known]]
    return Accounts(
        np.arange(len(members)), list_accounts(job.terms, subjects.names), _OpeningBalance(spent)
    )
