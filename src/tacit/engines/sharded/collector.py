"""The collector: it joins the answers of all shards for a window into one release in the ledger.

A window is released when every shard has sent its answers, together with its charges in one
transaction, and delivered from the ledger. The ledger accepts each window once. If a shard sends a
window again, with other noise, it is discarded. Counts are drawn here, and what is remembered of
them is written in the same transaction.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tacit.answers.codec import join
from tacit.engines.sharded.count_share import CountShare
from tacit.engines.sharded.job import ShardedJob
from tacit.engines.sharded.job_counts import (
    JobCounts,
    Memory,
    find_uncounted,
    format_memory,
    parse_memory,
)
from tacit.engines.sharded.lines import ShardLine
from tacit.errors import LedgerLostError, StaleError, StateError
from tacit.ledger.drafts import ReleaseDraft
from tacit.ledger.lease import Lease

_AT_ONCE: Final = 64
"""The most windows in one transaction."""
_FIRST: Final = "first"
"""The key of the schedule's first window in a checkpoint."""
_OTHERS: Final = (
    "another run has charged the same subjects in this ledger since the job started, and its shards"
    " cannot see that. Use only one run for subjects with a limit, or start a new job"
)


@dataclass(frozen=True, slots=True)
class _UnconfirmedWindows:
    """Windows that were drawn, and are perhaps in the ledger."""

    ready: list[list[ShardLine]]
    drafts: list[ReleaseDraft]
    memory: Memory
    """What is remembered of their counts."""

    def is_about(self, ready: list[list[ShardLine]]) -> bool:
        """Return whether these windows begin with them, and no shard has sent one of them again."""
        pairs = list(zip(self.ready, ready, strict=False))
        same = [
            len(own) == len(other) and all(a is b for a, b in zip(own, other, strict=True))
            for own, other in pairs
        ]
        return len(pairs) == len(self.ready) and all(same)


class Collector:
    """Releases windows in their order, as soon as they are complete."""

    def __init__(self, job: ShardedJob, lease: Lease) -> None:
        self._job = job
        self._lease = lease
        self._windows = job.version.spec.windows
        self._lasting = self._windows.panes > 1 or job.version.plan.has_memory
        """Whether what is drawn for a window is used for later windows."""
        self._paced = any(one.pacing is not None for one in job.version.plan.mechanisms)
        self._accounts = lease.open_accounts(job.ids, job.accounts, job.zones)
        self._received: dict[int, dict[tuple[int, ...], ShardLine]] = {}
        """The lines for each window, by the shards that they are about."""
        until = lease.read_until()
        self._next: int | None = None if until is None else self._number(until)
        self._last = _read_marks(lease.read_checkpoint())
        """The mark of each shard's answers in the last released window."""
        spec, memory = job.version.spec, parse_memory(self._last)
        self._counts = JobCounts(job, memory) if spec.count_queries else None
        self._count_share = CountShare(job.version)
        self._unwritten: _UnconfirmedWindows | None = None
        """What was drawn for a commit whose result is not known."""
        first = self._last.pop(_FIRST, None)
        self._first = self._next if first is None else int(first)
        """The first window of the schedule; None before it is known."""
        self._shards = frozenset(job.layout.nonempty)
        self._finished: set[int] = set()
        self.exhausted = 0
        """How many subjects did not pay in the last released window."""

    @property
    def finished(self) -> bool:
        """Whether all shards are finished and everything is released."""
        return self._finished >= self._shards and not self._received

    @property
    def windows(self) -> int:
        """How many windows are released since the job started."""
        return 0 if self._next is None or self._first is None else self._next - self._first

    @property
    def next_start(self) -> int | None:
        """The start time of the first window that is not released; None before any is known."""
        return None if self._next is None else self._start(self._next)

    @property
    def next_window(self) -> int | None:
        """The first window that is not released; None before any is known."""
        return self._next

    def take(self, lines: Iterable[ShardLine]) -> None:
        """Receive lines from shards; repeated lines are ignored."""
        for line in lines:
            if line.finished:
                self._finished.update(line.shards)
                continue
            if self._next is None:
                self._next = self._first = line.first
            if line.window >= self._next:
                self._receive(line)
            elif self._lasting and line.window == self._next - 1:
                self._check_mark(line)

    def _receive(self, line: ShardLine) -> None:
        """Store a line; drop those about the same shards from before a restart.

        If a job continues from an older state, its shards close windows again, perhaps in other
        groups. All shards of a line are in step, so those of a line that is dropped do so too.
        """
        if not self._shards.issuperset(line.shards):
            raise StateError("a line from a shard is damaged")
        found = self._received.setdefault(line.window, {})
        before = [one for one in found if not set(one).isdisjoint(line.shards)]
        if self._lasting and any(found[one].mark != line.mark for one in before):
            # Later windows follow from the draws that are dropped here.
            for window, others in self._received.items():
                if window > line.window:
                    for known in [one for one in others if not set(one).isdisjoint(line.shards)]:
                        del others[known]
        if line.shards not in found:
            for known in before:
                del found[known]
        found[line.shards] = line

    def release(self) -> list[tuple[int, ReleaseDraft]]:
        """Commit the next complete windows in one transaction; return each with its number.

        There may be more complete windows, unless the list is empty.
        """
        ready: list[list[ShardLine]] = []
        shards = len(self._job.layout.nonempty)
        while self._next is not None and len(ready) < _AT_ONCE:
            found = self._received.get(self._next + len(ready), {})
            if sum(map(len, found)) < shards:
                break
            ready.append([found[known] for known in sorted(found)])
        return self._commit(ready) if ready else []

    def _commit(self, ready: list[list[ShardLine]]) -> list[tuple[int, ReleaseDraft]]:
        """Commit these windows, or the first of them."""
        before = {} if self._counts is None else self._counts.memory
        unwritten = self._unwritten
        if unwritten is not None and unwritten.is_about(ready):
            # The ledger may have them: counts that are drawn again would be others.
            ready, drafts, memory = unwritten.ready, unwritten.drafts, unwritten.memory
        else:
            drafts = [self._draft(lines) for lines in ready]
            memory = {} if self._counts is None else self._counts.memory
        last = {str(shard): line.mark for line in ready[-1] for shard in line.shards}
        texts = {_FIRST: str(self._first), **last, **format_memory(memory)}
        try:
            number = self._lease.commit(json.dumps(texts).encode(), *drafts) or 0
        except StaleError as error:
            raise StateError(_OTHERS) from error
        except LedgerLostError:
            self._accounts.forget()  # they include the charges of these windows
            self._unwritten = _UnconfirmedWindows(ready, drafts, memory)
            if self._counts is not None:
                self._counts.memory = before
            raise
        self._unwritten, self._last = None, last
        if self._counts is not None:
            self._counts.memory = memory
        for lines in ready:
            del self._received[lines[0].window]
        self._next = ready[-1][0].window + 1
        return list(enumerate(drafts, number - len(drafts) + 1))

    def _draft(self, lines: list[ShardLine]) -> ReleaseDraft:
        windows, version = self._windows, self._job.version
        start = self._start(lines[0].window)
        prices = self._merge_prices(lines)
        exhausted = self._merge_exhausted(lines)
        paid = np.where(exhausted, 0, prices)
        silent, counted = exhausted, None
        if self._counts is not None:
            bits = self._counts.read(lines)
            price = self._counts.price(bits)
            uncounted = find_uncounted(self._accounts, start, paid, price)
            price = np.where(uncounted, 0, price)
            self._check_exhausted(start, exhausted, prices, price)
            counted = self._counts.draw(bits, uncounted, exhausted, lines)
            paid, silent = paid + price, exhausted & ~price.any(axis=0)
        else:
            self._check_exhausted(start, exhausted, prices, np.zeros_like(prices))
        self.exhausted = int(np.count_nonzero(exhausted))
        return ReleaseDraft(
            first=start,
            windows=1,
            size=windows.size,
            slide=windows.pane,
            fingerprint=version.spec.fingerprint,
            plan=version.plan_digest if self._job.protected else "true answers",
            answers=len(self._job.subjects) * len(version.spec.subject_queries),
            body=join([line.body for line in lines], counted),
            charges=self._accounts.charge(start, silent, None, paid),
        )

    def _merge_prices(self, lines: list[ShardLine]) -> NDArray[np.int64]:
        """Merge what the window costs the subjects of all shards."""
        accounts = len(self._job.accounts)
        whole = np.zeros((accounts, len(self._job.subjects)), np.int64)
        for line in lines:
            members = self._job.layout.members_of(line.shards)
            own = np.zeros(accounts * len(members), np.int64)
            if line.prices.size > len(own):
                raise StateError("a line from a shard is damaged")
            own[: line.prices.size] = line.prices.reshape(-1)
            whole[:, members] = own.reshape(accounts, len(members))
        return whole

    def _merge_exhausted(self, lines: list[ShardLine]) -> NDArray[np.bool_]:
        """Merge the subjects of all shards that do not pay for answers."""
        whole = np.zeros(len(self._job.subjects), np.bool_)
        for line in lines if self._job.limited else ():
            if line.exhausted is not None:
                whole[self._job.layout.members_of(line.shards)] = line.exhausted
        return whole

    def _check_exhausted(
        self,
        start: int,
        exhausted: NDArray[np.bool_],
        prices: NDArray[np.int64],
        counted: NDArray[np.int64],
    ) -> None:
        """Check against the ledger who pays for answers; `counted` is what counts cost."""
        if not self._job.limited:
            return
        beyond = self._accounts.find_exhausted(start, np.where(prices > 0, prices + counted, 0))
        # With pacing, a subject may save its limit for later, or for counts.
        saved = self._paced or self._count_share.paced
        if (beyond & ~exhausted if saved else beyond != exhausted).any():
            raise StateError(_OTHERS)

    def _check_mark(self, line: ShardLine) -> None:
        """Refuse to continue if later windows would follow from noise that was drawn again."""
        if any(self._last.get(str(shard)) != line.mark for shard in line.shards):
            raise StateError(
                "the job was started from a state that is older than its last release: noise would"
                " be drawn again, and used beside what was released. Start it from its last"
                " checkpoint or savepoint, or as another run"
            )

    def _start(self, window: int) -> int:
        return (window - self._windows.panes + 1) * self._windows.pane

    def _number(self, start: int) -> int:
        return start // self._windows.pane + self._windows.panes - 1


def _read_marks(checkpoint: bytes | None) -> dict[str, str]:
    if checkpoint is None:
        return {}
    try:
        kept: dict[str, str] = json.loads(checkpoint)
    except ValueError as error:
        raise StateError(
            "the ledger has a run of this name from an engine on one machine; give the job"
            " another name"
        ) from error
    return kept
