"""The collector: what all shards have told of a window becomes one release in the ledger.

A window is released when every shard has told of it, with what it costs in the same transaction,
and delivered from there. The ledger takes each window once: should a shard tell of it again,
with other noise, nobody hears of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tacit.answers.codec import join
from tacit.engines.sharded.job import ShardedJob
from tacit.engines.sharded.lines import ShardLine
from tacit.errors import LedgerLostError, StaleError, StateError
from tacit.ledger.drafts import Draft
from tacit.ledger.lease import Lease
from tacit.pipeline.accountant import list_accounts

_AT_ONCE: Final = 64
"""Windows that are released in one transaction at most."""
_OTHERS: Final = (
    "others have charged the same subjects to this ledger since the job began, and its shards"
    " cannot know of it. Let one run charge a subject with a limit, or begin a job anew"
)


class Collector:
    """Releases windows in their order, as soon as they are complete."""

    def __init__(
        self,
        job: ShardedJob,
        lease: Lease,
        released: Callable[[int, Draft], None] = lambda *_: None,
    ) -> None:
        self._job = job
        self._lease = lease
        self._released = released
        spec = job.terms.spec
        self._windows = spec.windows
        self._limited = job.protected and any(one.limit is not None for one in spec.private)
        accounts = list_accounts(job.terms, job.subjects.names) if job.protected else []
        self._accounts = lease.open_accounts(job.ids, accounts)
        self._received: dict[int, dict[int, ShardLine]] = {}
        until = lease.read_until()
        self._next: int | None = None if until is None else self._number(until)
        self._last = _marks(lease.read_checkpoint())
        """The mark of what each shard told of the window that was released last."""
        self._finished: set[int] = set()

    @property
    def finished(self) -> bool:
        """Whether all shards are finished and everything is released."""
        return self._finished >= set(self._job.layout.nonempty) and not self._received

    @property
    def next_window(self) -> int | None:
        """The first window that is not released; None before any is known."""
        return self._next

    def take(self, lines: Iterable[ShardLine]) -> None:
        """What shards have told; what they told before may come again."""
        for line in lines:
            if line.finished:
                self._finished.add(line.shard)
                continue
            if self._next is None:
                self._next = line.first
            if line.window >= self._next:
                self._received.setdefault(line.window, {})[line.shard] = line
            elif self._windows.panes > 1 and line.window == self._next - 1:
                self._check_same(line)

    def release(self) -> int:
        """Release what is complete; how many windows that were."""
        shards, total = self._job.layout.nonempty, 0
        while self._next is not None:
            ready: list[list[ShardLine]] = []
            while len(ready) < _AT_ONCE:
                told = self._received.get(self._next + len(ready), {})
                if len(told) < len(shards):
                    break
                ready.append([told[shard] for shard in shards])
            if not ready:
                break
            self._commit(ready)
            total += len(ready)
        return total

    def _commit(self, ready: list[list[ShardLine]]) -> None:
        drafts = [self._draft(lines) for lines in ready]
        last = {str(line.shard): line.mark for line in ready[-1]}
        try:
            number = self._lease.commit(json.dumps(last).encode(), *drafts) or 0
        except StaleError as error:
            raise StateError(_OTHERS) from error
        except LedgerLostError:
            self._accounts.forget()  # what these windows cost is reckoned in
            raise
        self._last = last
        for place, (lines, draft) in enumerate(zip(ready, drafts, strict=True)):
            del self._received[lines[0].window]
            self._released(number - len(drafts) + 1 + place, draft)
        self._next = ready[-1][0].window + 1

    def _draft(self, lines: list[ShardLine]) -> Draft:
        windows, terms = self._windows, self._job.terms
        start = self._start(lines[0].window)
        exhausted = self._exhausted(lines, start)
        return Draft(
            first=start,
            windows=1,
            size=windows.size,
            slide=windows.pane,
            fingerprint=terms.spec.fingerprint,
            plan=terms.plan_digest if self._job.protected else "true answers",
            answers=len(self._job.subjects) * len(terms.spec.queries),
            body=join([line.body for line in lines]),
            charges=self._accounts.charge(start, exhausted),
        )

    def _exhausted(self, lines: list[ShardLine], start: int) -> NDArray[np.bool_]:
        """Whose limit is reached, as the shards have reckoned and the ledger has it too."""
        whole = np.zeros(len(self._job.subjects), np.bool_)
        if not self._limited:
            return whole
        for line in lines:
            if line.exhausted is not None:
                whole[self._job.layout.members(line.shard)] = line.exhausted
        if not np.array_equal(whole, self._accounts.find_exhausted(start)):
            raise StateError(_OTHERS)
        return whole

    def _check_same(self, line: ShardLine) -> None:
        """Refuse to go on from where panes would be drawn a second time."""
        if self._last.get(str(line.shard)) != line.mark:
            raise StateError(
                "the job was started from a state that is older than what it has released: panes"
                " that released windows have would be drawn again for later ones. Start it from"
                " its last checkpoint or savepoint"
            )

    def _start(self, window: int) -> int:
        return (window - self._windows.panes + 1) * self._windows.pane

    def _number(self, start: int) -> int:
        return start // self._windows.pane + self._windows.panes - 1


def _marks(checkpoint: bytes | None) -> dict[str, str]:
    if checkpoint is None:
        return {}
    try:
        kept: dict[str, str] = json.loads(checkpoint)
    except ValueError as error:
        raise StateError(
            "the ledger has this run under the same name from an engine on one machine; give the"
            " job another name"
        ) from error
    return kept
