"""Turn closed windows into released answers: charge, draw, commit, deliver.

A commit writes the release, its charges, the state of the engine and the positions of the sources
in one transaction. Noise that was drawn and not committed is never released. Without a ledger
nothing is charged or written; windows are released as they close.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from tacit.answers.answers import Answers
from tacit.answers.codec import pack
from tacit.errors import LedgerLostError, StaleError
from tacit.ledger.drafts import ReleaseDraft
from tacit.ledger.none import NoLease
from tacit.pipeline.accountant import NO_CHARGES, Accountant, WindowCharges
from tacit.pipeline.checkpoints import Checkpoint
from tacit.pipeline.delivery import Delivery, DirectDelivery
from tacit.pipeline.engine import Engine
from tacit.pipeline.reader import Reader
from tacit.pipeline.retries import LedgerRetry
from tacit.pipeline.status import PublicStatus
from tacit.pipeline.times import format_time
from tacit.pipeline.versions import SpecVersion
from tacit.pipeline.window_state import ClosedWindows
from tacit.quantities import count

if TYPE_CHECKING:
    from tacit.ledger.lease import Lease

_MOST_ANSWERS: Final = 1 << 22
"""The most answers that are drawn before a commit."""
_SOON, _PATIENT, _LATER = 0.2, 1.0, 5.0
"""Seconds between checkpoints without a release: if a source waits for one, if a source keeps
tuples until one, and otherwise."""
_APART: Final = 10
"""Two such checkpoints are at least this many times the cost of one apart."""
_COMMIT_SPACING: Final = 8
"""With files, two commits of releases are at least this many times the cost of one apart."""

log = logging.getLogger("tacit.ledger")


@dataclass(slots=True)
class RunOutcome:
    """What a run has done since it was started or resumed."""

    resumed: bool = False
    finished: bool = False
    """Whether its input ended; else it was asked to stop."""
    windows: int = 0
    answers: int = 0
    charged: dict[str, int] = field(default_factory=dict)
    """By private pattern, in nano-epsilon, summed over subjects and windows."""
    exhausted: int = 0
    """Pairs of a window and a subject that did not pay: a limit was reached, or saved for later."""
    delivered: int = 0
    """Answers that a sink received: also those of earlier releases that it did not have."""
    undelivered: bool = False
    """Whether some sink lacks answers: they are delivered at the next start."""


class Settlement:
    """Collects closed windows and releases them."""

    def __init__(
        self,
        engine: Engine,
        reader: Reader,
        lease: Lease | NoLease,
        delivery: Delivery | DirectDelivery,
        retry: LedgerRetry,
        *,
        private: bool,
        outcome: RunOutcome,
        public: PublicStatus,
    ) -> None:
        self._engine = engine
        self._reader = reader
        self._lease = lease
        self._delivery = delivery
        self._retry = retry
        self._private = private
        self._outcome = outcome
        self._public = public
        self._accountants: dict[SpecVersion | None, Accountant] = {}
        self._closed: list[ClosedWindows] = []
        self._volume = 0
        self.changed = False
        """Whether tuples were read since the last commit."""
        self.committed = time.monotonic()
        """The time of the last commit."""
        self.cost = self._last_cost = 0.0
        """Typical seconds of a commit, and the seconds of the last one."""
        self._each_window = not lease.durable or engine.compiled.spec.windows.panes > 1
        """Whether windows are released one by one: without a ledger, and where windows slide."""

    @property
    def pending(self) -> bool:
        """Whether there is anything to release."""
        return bool(self._closed)

    @property
    def unwritten(self) -> bool:
        """Whether there is anything to commit."""
        return self.pending or (self._lease.durable and self.changed)

    def update_versions(self) -> None:
        """After a step of a reload, keep accountants for the versions in use."""
        engine, lease = self._engine, self._lease
        if isinstance(lease, NoLease):
            return
        latest = engine.latest
        assert latest is not None
        lease.fingerprint = latest.spec.fingerprint
        self._accountants = {
            version: self._accountants.get(version) or Accountant(engine, version, lease)
            for version in engine.windows.versions
        }

    def add(self, closed: ClosedWindows) -> bool:
        """Collect closed windows; return whether they must be released now."""
        self._closed.append(closed)
        windows, slots, _ = closed.panes.words.shape
        self._volume += windows * slots * max(1, len(self._engine.compiled.names))
        return self._volume >= _MOST_ANSWERS or self._each_window or self._engine.between_versions

    def is_due(self) -> bool:
        """Return whether a commit is due."""
        elapsed = time.monotonic() - self.committed
        if self._closed:
            # With files no consumer waits for a single window, so several share a commit.
            return self._reader.live or elapsed >= _COMMIT_SPACING * self.cost
        if not self._lease.durable:
            return False
        waited = _LATER
        if self._reader.has_receipts:
            waited = _SOON if self._reader.has_urgent_receipts else _PATIENT
        wanted = self._reader.has_receipts or self.changed
        return wanted and elapsed >= max(waited, _APART * self.cost)

    def commit(self) -> Iterator[Answers]:
        """Commit everything read so far, and release the collected windows."""
        if self._closed:
            yield from self._release()
        else:
            self._write()
        if self._lease.durable:
            self._reader.acknowledge()
        self.changed = False
        self.committed = time.monotonic()

    def _write(self, *drafts: ReleaseDraft) -> int:
        """Write a checkpoint and releases; return the number of the last release."""
        if not self._lease.durable:
            return 0
        began = time.monotonic()
        fingerprint, state = self._lease.fingerprint, self._engine.snapshot()
        letters = self._reader.dead_letters.sync()
        checkpoint = Checkpoint(fingerprint, self._reader.positions, state, self._private, letters)
        number = self._retry(self._lease.commit, checkpoint.to_bytes(), *drafts)
        cost = time.monotonic() - began
        # A single slow commit does not predict the next.
        self.cost, self._last_cost = min(cost, self._last_cost), cost
        return number or 0

    def _release(self) -> Iterator[Answers]:
        """Answer and commit the collected windows; draw again if the commit was refused."""
        closed = self._closed
        version = self._engine.windows.find_version(closed[0])
        accountant = self._accountants.get(version)
        memory = self._engine.windows.memory
        while True:
            bills: list[WindowCharges] = []
            answers: list[Answers] = []
            drifts: list[float | None] = []
            for one in closed:
                bill = NO_CHARGES
                if accountant is not None:
                    bill = self._retry(self._bill, accountant, one)
                bills.append(bill)
                answers.append(self._engine.answer(one, bill.exhausted, bill.uncounted))
                # As of this window: which windows are committed together is not public.
                drifts.append(None if accountant is None else self._engine.find_drift(one))
            drafts: list[ReleaseDraft] = []
            if accountant is not None and version is not None:
                drafts = [
                    self._draft(part, bill, version, accountant)
                    for part, bill in zip(answers, bills, strict=True)
                ]
            try:
                last = self._write(*drafts)
            except StaleError:
                assert accountant is not None
                accountant.forget()
                # The draws are thrown away, and what was remembered of them too.
                self._engine.windows.restore_memory(memory)
                continue
            self._closed, self._volume = [], 0
            for place, (part, bill, drift) in enumerate(zip(answers, bills, drifts, strict=True)):
                self._outcome.windows += part.windows
                if accountant is not None:
                    self._count(part, bill, drift)
                self._delivery.release(last - len(answers) + 1 + place, part)
                yield part
            return

    def _bill(self, accountant: Accountant, closed: ClosedWindows) -> WindowCharges:
        public_only = self._engine.windows.is_public_only(closed)
        try:
            return accountant.bill(closed, public_only=public_only)
        except LedgerLostError:
            accountant.forget()  # some of it may be charged already
            raise

    def _draft(
        self, answers: Answers, bill: WindowCharges, version: SpecVersion, accountant: Accountant
    ) -> ReleaseDraft:
        ids, order = accountant.ledger_ids(), self._engine.window_state.order
        return ReleaseDraft(
            first=answers.first * answers.step,
            windows=answers.windows,
            size=answers.size,
            slide=answers.step,
            fingerprint=version.spec.fingerprint,
            plan=version.plan_digest,
            answers=len(answers),
            body=pack([answers], [ids if order is None else ids[order]], version.consumers),
            charges=bill.charges,
        )

    def _count(self, answers: Answers, bill: WindowCharges, drift: float | None) -> None:
        outcome = self._outcome
        outcome.answers += len(answers)
        charged: dict[str, int] = {}
        for charge in bill.charges:
            amount = charge.amount * charge.windows * int(np.count_nonzero(charge.ids))
            charged[charge.private] = charged.get(charge.private, 0) + amount
        for private, amount in charged.items():
            outcome.charged[private] = outcome.charged.get(private, 0) + amount
        outcome.exhausted += 0 if bill.exhausted is None else int(bill.exhausted.sum())
        self._publish(answers, charged, drift)

    def _publish(self, answers: Answers, charged: Mapping[str, int], drift: float | None) -> None:
        first, slide = answers.first * answers.step, answers.step
        until = first + (answers.windows - 1) * slide + answers.size
        self._public.release(
            answers.windows,
            until,
            until + slide + self._engine.compiled.spec.windows.lateness,
            slide=slide,
            subjects=int(answers.registered[-1].sum()),
            exhausted=0 if answers.exhausted is None else int(answers.exhausted.sum()),
            charged=charged,
            drift=drift,
        )
        log.info("released %s up to %s", count(answers.windows, "window"), format_time(until))
