"""Release once: a run that survives anything, between its sources, a ledger and its outlets.

tuples --take-----> windows that are closed
       --answer---> a release: noise is drawn
       --commit---> release, charges, state and the sources' positions: all of them or nothing
       --deliver--> outlets, from the ledger, until it has arrived

What was drawn and not committed never leaves. After a crash the run goes on from its last
commit: a window is released once, and a tuple that its source was told to be safe is in it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

import numpy as np

from tacit.answers.answers import Answers
from tacit.answers.packing import pack
from tacit.connectors.deadletters import DeadLetters
from tacit.connectors.outlets import Outlet
from tacit.connectors.sources import Source
from tacit.counting import count
from tacit.engines.charging import Accountant, Bill
from tacit.engines.checkpoints import Checkpoint
from tacit.engines.delivery import Delivery
from tacit.engines.intake import PULSE, Intake, Positions, Taken
from tacit.engines.local import Input, protected
from tacit.engines.reloading import Columns, Reloads, written
from tacit.engines.status import Status
from tacit.engines.succession import Succession
from tacit.engines.terms import Terms
from tacit.errors import LedgerLostError, SourceError, StaleError, StateError
from tacit.events.subjects import Subjects
from tacit.ledger.directory import Directory
from tacit.ledger.lease import Draft, Lease
from tacit.ledger.ledger import Ledger
from tacit.options import option
from tacit.pipeline.engine import Engine
from tacit.pipeline.flow import Flow
from tacit.pipeline.shard import Handed
from tacit.planning.plan import Plan
from tacit.privacy.noise import Noise
from tacit.spec.specification import Specification

_MOST_ANSWERS: Final = 1 << 22
"""Answers that are drawn before they are released."""
_SOON, _LATER = 0.2, 5.0
"""Seconds between checkpoints without a release: where a source waits for them, and else."""
_APART: Final = 10
"""So many times its own cost lies at least between two of them."""
_GRACE: Final = 10.0
"""Seconds for what is under way when a run is told to stop."""
_FIRST, _LONGEST = 0.05, 5.0
"""Seconds between attempts to reach the ledger."""
_AT_ONCE: Final = 8
"""The same for releases from files."""
_CATCHING_UP: Final = 5.0
"""Seconds after a restart for tuples that waited meanwhile, whatever comes."""
_WATCH: Final = 2.0
"""Seconds without a commit after which it is seen whether the run is still one's own."""
_SWEEP: Final = 60.0
"""Seconds between looks for answers that need no longer be kept."""

log = logging.getLogger("tacit.ledger")
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True)
class Outcome:
    """What came of a run since it was begun or resumed."""

    resumed: bool = False
    finished: bool = False
    """Whether its input came to an end; else it was told to stop."""
    windows: int = 0
    answers: int = 0
    charged: dict[str, int] = field(default_factory=dict)
    """By private pattern, in nano-epsilon, summed over subjects and windows."""
    exhausted: int = 0
    """Windows of subjects whose limit was reached, all counted."""
    undelivered: bool = False
    """Whether something has not arrived everywhere: it is delivered next time."""


class Durable:
    """A protected run whose releases are charged and kept in a ledger until they have arrived.

    Only one engine can work on a run: one that is made takes the run over from any other.
    `released` is shown all answers when they are committed. Answers that have arrived are dropped
    from the ledger after `retain` seconds. `now` is the clock on the wall.
    """

    def __init__(
        self,
        spec: Specification,
        inputs: Sequence[Input],
        plan: Plan,
        ledger: Ledger,
        outlets: Sequence[Outlet],
        *,
        run: str,
        noise: Noise | None = None,
        dead_letters: DeadLetters | None = None,
        progress: Callable[[Source, int], None] | None = None,
        released: Callable[[Answers], None] | None = None,
        retain: float | None = None,
        now: Callable[[], float] = time.time,
        reread: Callable[[], Terms] | None = None,
    ) -> None:
        if spec.windows.close == "clock" and not all(one.source.live for one in inputs):
            raise SourceError(
                "windows close by the clock (windows.close: clock), but files are replayed faster"
                " or slower than that; read a source that lives, or write close: events"
            )
        self.outcome = Outcome()
        self.status = Status()
        self._ledger = ledger
        self._name = run
        self._now = now
        self._retain = retain
        self._released = released
        self._outlets = outlets
        self._stopping = threading.Event()
        self._lease: Lease
        self._positions: Positions = {}
        noise = noise or Noise()
        self.engine: Succession
        self.detection = protected(
            spec,
            inputs,
            plan,
            noise=noise,
            dead_letters=dead_letters,
            progress=progress,
            snapshot=lambda: self._take_over(spec, private=noise.private),
            engine=partial(self._succession, Terms(spec, plan), noise),
        )
        self._reloads = Reloads(self.detection, self.engine, self.status.public, reread)
        self._accountants: dict[Terms, Accountant] = {}
        self._intake = Intake(self.detection, self._positions)
        self._delivery = Delivery(self._lease, outlets, Directory(ledger))
        self._handed: list[Handed] = []
        self._volume = 0
        self._dirty = False
        self._committed = time.monotonic()
        self._cost = self._last_cost = 0.0
        """Seconds of a commit, and of the last one."""
        self._dropped = self._looked = self._committed
        self._caught_up = 0.0
        """When tuples that waited while the run was down have had their time."""
        self._private = noise.private
        self._learning = bool(self.engine.learning)
        self._sliding = spec.windows.panes > 1
        """Whether windows are released one block at a time: their panes were drawn before."""

    def stop(self) -> None:
        """Take nothing more; what was taken is kept for the next time. Any thread may say so."""
        self._stopping.set()

    def reload(self) -> None:
        """Read the specification and the plan anew, and go by them from the next window on.

        Where they are wrong, the old ones stay. Any thread may say so.
        """
        self._reloads.ask()

    def run(self) -> Outcome:
        """Go on until the input ends or `stop` is called."""
        with closing(self._delivery):
            self._delivery.start()
            self._reloads.warn()
            if self.outcome.resumed:
                self._caught_up = time.monotonic() + _CATCHING_UP
            self.status.connecting = True
            self._begin()
            self.outcome.finished = self._take_all()
            if self.outcome.finished:
                self._hold(self.engine.hand_rest())
            if self._handed or self._dirty:
                self._commit()
            self._deliver_rest()
        return self.outcome

    def _begin(self) -> None:
        """Say that the run has begun, once every source gets what is sent from now on."""
        if self.status.connecting and all(one.source.listening for one in self.detection.inputs):
            self.status.connecting = False
            log.info("the run %s %s", self._name, "goes on" if self.outcome.resumed else "begins")

    def _take_over(self, spec: Specification, *, private: bool) -> bytes | None:
        """Become the one engine of this run; the state that the last one left, if there is any."""
        self._lease = self._ledger.take_over(self._name, spec.fingerprint)
        kept = self._lease.checkpoint()
        if kept is None:
            return None
        checkpoint = Checkpoint.from_bytes(kept)
        if checkpoint.private != private:
            raise StateError(_seeded() if private else _unseeded())
        self.outcome.resumed = True
        self._positions = checkpoint.positions
        return checkpoint.snapshot

    def _succession(
        self, terms: Terms, noise: Noise, flow: Flow, subjects: Subjects, **options: Any
    ) -> Engine:
        self.engine = Succession(terms, flow, subjects, noise=noise, **options)
        # Each window is a release: which windows close together depends on private events too.
        self.engine.most_windows = 1
        return self.engine

    def _take_all(self) -> bool:
        """Take what comes; whether it came to an end."""
        ended = False
        while not ended and not self._stopping.is_set():
            self._turn()
            ended = self._take_some()
            if not ended and (self._dirty or self._handed or self._intake.receipts):
                self._commit()  # a receipt means nothing to a source that is read anew
        return ended

    def _take_some(self) -> bool:
        """Take what comes until sources are to be read anew; whether it came to an end."""
        reading = self._reloads.columns
        with closing(self._intake.flow(self._patience)) as flow:
            self._tick()
            for taken in flow:
                self._begin()
                self._tick()  # before tuples are taken: how many came is not to delay a release
                if taken is not None:
                    self._dirty |= len(taken.arrivals) > 0
                    self._take(taken)
                self._settle()
                self._announce()
                self._reloads.offer(reading)
                if self._stopping.is_set() or self._must_read_anew(reading):
                    return False
        return True

    def _must_read_anew(self, reading: Columns) -> bool:
        """Whether sources are to be read anew for the next step of a reload, if one is due."""
        if not self.engine.due:
            return False
        if not self._intake.live:
            return True  # what was read ahead is extracted by the terms of before
        self._turn()
        return any(wanted - reading[name] for name, wanted in self._reloads.columns.items())

    def _turn(self) -> None:
        """Take the steps of a reload that are due, while nothing is read ahead."""
        if self.engine.due and self._handed:
            self._commit()  # they are under the terms of before
        self._reloads.turn()
        engine = self.engine
        self._lease.fingerprint = engine.latest.spec.fingerprint
        terms = [engine.terms, *([] if engine.heir is None else [engine.heir.terms])]
        self._accountants = {
            one: self._accountants.get(one) or Accountant(engine, one, self._lease) for one in terms
        }

    def _take(self, taken: Taken) -> None:
        self._hold(self.engine.hand(taken.arrivals), taken)
        self._intake.advance(taken, len(taken.arrivals))

    def _tick(self) -> None:
        """Where windows close by the clock, release those that it closes, at once."""
        if not self.engine.clock.ticking:
            return
        # Windows stay open for tuples that waited while the run was down, for a fixed time: if
        # what comes decided it, private tuples would decide which others are late.
        catching_up = time.monotonic() < self._caught_up
        self._hold(self.engine.tick(int(self._now() * 1_000_000), catching_up=catching_up))
        if self._handed:
            self._settle()

    def _announce(self) -> None:
        """Where subjects were learned, warn of what is known of them as soon as they are."""
        if self._learning and not self.engine.learning:
            self._learning = False
            self._reloads.warn()

    def _patience(self) -> float:
        """Seconds until something is to be done, whether or not tuples come."""
        if not self.engine.clock.ticking:
            return PULSE
        left = self._caught_up - time.monotonic()
        if left <= 0:
            left = self.engine.clock.next_close / 1_000_000 - self._now()
        return min(PULSE, left)

    def _hold(self, closing_now: Iterable[Handed], taken: Taken | None = None) -> None:
        """Keep windows as they close until they are released, which must be soon for many."""
        for handed in closing_now:
            self._handed.append(handed)
            windows, slots, _ = handed.closed.words.shape
            self._volume += windows * slots * len(self.engine.flow.names)
            if self._volume >= _MOST_ANSWERS or self._sliding or self.engine.crossing:
                if taken is not None:
                    self._intake.advance(taken, self.engine.laid)
                self._commit()

    def _settle(self) -> None:
        """Between batches: release what is closed, or write a checkpoint where it is time."""
        self._delivery.check()
        self._look()
        elapsed = time.monotonic() - self._committed
        if self._handed:
            # From files nobody waits for a single window: those of some time go together.
            due = self._intake.live or elapsed >= _AT_ONCE * self._cost
        else:
            waited = _SOON if self._intake.receipts else _LATER
            due = self._intake.receipts or self._dirty
            due = due and elapsed >= max(waited, _APART * self._cost)
        if due:
            self._commit()
        elif time.monotonic() - max(self._committed, self._looked) >= _WATCH:
            self._insist(self._lease.until)  # raises where another engine has taken over
            self._looked = time.monotonic()

    def _commit(self) -> None:
        """Make all that was taken safe, and release the windows that it closed."""
        if self._handed:
            self._release()
        else:
            self._write()
        self._intake.acknowledge()
        self._dirty = False
        self._committed = time.monotonic()
        self._await_room()
        self._drop_old()

    def _write(self, *drafts: Draft) -> int | None:
        """A checkpoint and releases, on the disk; the number of the last of them."""
        began = time.monotonic()
        fingerprint, state = self.detection.spec.fingerprint, self.engine.snapshot()
        positions = self._intake.positions
        checkpoint = Checkpoint(fingerprint, positions, state, self._private).to_bytes()
        number = self._insist(self._lease.commit, checkpoint, *drafts)
        cost = time.monotonic() - began
        # One that took unusually long says little of the next.
        self._cost, self._last_cost = min(cost, self._last_cost), cost
        return number

    def _release(self) -> None:
        """Answer the windows that are held, and commit; what was not committed is drawn anew."""
        terms = self.engine.terms_of(self._handed[0])
        accountant = self._accountants[terms]
        while True:
            bills = self._insist(self._bills, accountant)
            answers = [
                self.engine.answer(handed, bill.exhausted)
                for handed, bill in zip(self._handed, bills, strict=True)
            ]
            drafts = [
                self._draft(part, bill, terms) for part, bill in zip(answers, bills, strict=True)
            ]
            try:
                last = self._write(*drafts)
            except StaleError:
                accountant.forget()
                continue
            self._handed, self._volume = [], 0
            for number, (part, bill, draft) in enumerate(zip(answers, bills, drafts, strict=True)):
                self._count(part, bill, draft)
                self._delivery.released((last or 0) - len(drafts) + 1 + number)
            return

    def _bills(self, accountant: Accountant) -> list[Bill]:
        try:
            return [
                accountant.bill(handed, blind=self.engine.blind(handed)) for handed in self._handed
            ]
        except LedgerLostError:
            accountant.forget()  # some of it may be reckoned in
            raise

    def _draft(self, answers: Answers, bill: Bill, terms: Terms) -> Draft:
        ids, order = self._accountants[terms].ids(), self.engine.shard.order
        return Draft(
            first=answers.first * answers.step,
            windows=answers.windows,
            size=answers.size,
            slide=answers.step,
            fingerprint=terms.spec.fingerprint,
            plan=terms.plan_digest,
            answers=len(answers),
            body=pack([answers], [ids if order is None else ids[order]], terms.consumers),
            charges=bill.charges,
        )

    def _count(self, answers: Answers, bill: Bill, draft: Draft) -> None:
        outcome = self.outcome
        outcome.windows += draft.windows
        outcome.answers += draft.answers
        charged: dict[str, int] = {}
        for charge in draft.charges:
            amount = charge.amount * charge.windows * int(np.count_nonzero(charge.ids))
            charged[charge.private] = charged.get(charge.private, 0) + amount
        for private, amount in charged.items():
            outcome.charged[private] = outcome.charged.get(private, 0) + amount
        outcome.exhausted += 0 if bill.exhausted is None else int(bill.exhausted.sum())
        if self._released is not None:
            self._released(answers)
        self._publish(answers, draft, charged)

    def _publish(self, last: Answers, draft: Draft, charged: Mapping[str, int]) -> None:
        windows = self.detection.spec.windows
        until = draft.first + (draft.windows - 1) * draft.slide + draft.size
        self.status.public.release(
            draft.windows,
            until,
            until + draft.slide + windows.lateness,
            slide=draft.slide,
            subjects=int(last.registered[-1].sum()),
            exhausted=0 if last.exhausted is None else int(last.exhausted.sum()),
            charged=charged,
        )
        log.info("released %s up to %s", count(draft.windows, "window"), written(until))

    def _look(self) -> None:
        """How the run goes, for whoever watches it."""
        unreadable = self.detection.unreadable
        self.status.look(self.engine, unreadable)
        self.status.commit_seconds = self._cost
        self.status.public.undelivered = self._delivery.waiting
        self.status.public.retries = self._delivery.retries

    def _await_room(self) -> None:
        """A slow outlet slows the sources: nothing is taken while too much waits for it."""
        while not (self._delivery.has_room(_SOON) or self._stopping.is_set()):
            self._delivery.check()

    def _deliver_rest(self) -> None:
        """Deliver all that is released; not for ever where the run was told to stop."""
        deadline: float | None = None
        while not self._delivery.is_done(_SOON):
            self._delivery.check()
            if self._stopping.is_set():
                deadline = deadline or time.monotonic() + _GRACE
                if time.monotonic() > deadline:
                    self.outcome.undelivered = True
                    return
        self._delivery.check()

    def _drop_old(self) -> None:
        """Now and then, drop the answers that have arrived long ago."""
        if self._retain is None or time.monotonic() - self._dropped < _SWEEP:
            return
        self._dropped = time.monotonic()
        before = int((self._now() - self._retain) * 1_000_000)
        names = [outlet.name for outlet in self._outlets]
        self._insist(self._lease.drop, names, before)

    def _insist(self, attempt: Callable[P, R], *given: P.args, **named: P.kwargs) -> R:
        """Wait for a ledger that does not answer; nothing is acknowledged meanwhile."""
        delay, failed, deadline = _FIRST, False, None
        while True:
            try:
                result = attempt(*given, **named)
            except LedgerLostError as error:
                if not failed:
                    log.warning("%s", error)
                failed = True
                if self._stopping.is_set():
                    deadline = deadline or time.monotonic() + _GRACE
                    if time.monotonic() > deadline:
                        raise
                time.sleep(min(delay, _SOON) if deadline else delay)
                delay = min(2 * delay, _LONGEST)
            else:
                if failed:
                    log.warning("the ledger %s answers again", self._ledger.name)
                return result


def _seeded() -> str:
    return (
        f"this run was begun with {option('seed')}, so its answers are not private, and it cannot"
        f" go on with noise that is: begin another run with {option('name')}, or go on with"
        f" {option('seed')}"
    )


def _unseeded() -> str:
    return (
        f"this run was begun without {option('seed')}: with one its answers would no longer be"
        f" private. Go on without it, or begin another run with {option('name')}"
    )
