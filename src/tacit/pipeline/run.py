"""The run loop: one for frames, files, brokers and the service, with a ledger or without.

sources --read----> tuples in order of arrival
        --insert--> windows; those that close
        --settle--> a release: noise is drawn, charged and committed
        --deliver-> sinks

With a ledger a run survives crashes: it continues from its last commit, releases each window once,
and loses no tuple that was acknowledged to its source.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tacit.answers.answers import Answers
from tacit.answers.rows import answer_schema
from tacit.durations import format_duration
from tacit.kernels.threads import ALL_CORES, Workers
from tacit.ledger.none import NoLease, NoLedger
from tacit.pipeline.batches import MergedBatch
from tacit.pipeline.compiled_spec import CompiledSpec
from tacit.pipeline.deadletters import DeadLetters
from tacit.pipeline.delivery import open_delivery
from tacit.pipeline.evaluators import Evaluator
from tacit.pipeline.reader import IDLE_SECONDS, Input, InputStatus, Reader, check_different
from tacit.pipeline.refusals import Refusals
from tacit.pipeline.reloads import ReadColumns, RefusedReload, Reloads, check_inputs
from tacit.pipeline.retries import GRACE, LedgerRetry
from tacit.pipeline.settlement import RunOutcome, Settlement
from tacit.pipeline.sinks import Sink
from tacit.pipeline.startup import check_sources, open_engine, read_checkpoint, with_content
from tacit.pipeline.status import RunStatus
from tacit.pipeline.versions import SpecVersion
from tacit.pipeline.window_state import ClosedWindows
from tacit.planning.plan import Plan
from tacit.privacy.noise import Noise
from tacit.progress import ProgressCallback, ignore_progress
from tacit.quantities import count
from tacit.spec.columntypes import RecordedTypes
from tacit.spec.specification import Specification
from tacit.windows.clock import REASONS, TAKEN

if TYPE_CHECKING:
    from tacit.ledger.lease import Lease
    from tacit.ledger.ledger import Ledger

_SOON: Final = 0.2
_CATCHING_UP: Final = 5.0
"""Seconds after a restart in which windows wait for tuples that were sent meanwhile."""
_WATCH: Final = 2.0
"""Seconds without a commit after which the engine checks that it still owns the run."""
_READING: Final = 0.99
"""The share of the work that is done when everything is read; the rest is releasing and writing."""
_SWEEP: Final = 60.0
"""Seconds between two deletions of answers that need not be kept."""

log = logging.getLogger("tacit.ledger")


class Run:
    """A run over sources. Iterate over it for the answers as they are released, or call `run`.

    With a `plan` answers are protected; without one they are the true answers, or the results of
    `evaluator`. `noise` is the source of randomness.

    With a `ledger` only one engine can own a run of this `name`: a new one takes the run over.
    Releases are charged and stored there until all `sinks` have them, and deleted after `retain`
    seconds. `reread` reads the specification and the plan again for `reload`. `now` is the wall
    clock. `progress` is called between batches; it never gets 1, because the caller closes the
    sinks. `workers` are the threads that insert tuples and draw noise; the answers' law is the same
    for any number of them.
    """

    def __init__(
        self,
        spec: Specification,
        inputs: Sequence[Input],
        *,
        plan: Plan | None = None,
        evaluator: Evaluator | None = None,
        recorded: RecordedTypes | None = None,
        noise: Noise | None = None,
        ledger: Ledger | NoLedger | None = None,
        sinks: Sequence[Sink] = (),
        name: str = "tacit",
        dead_letters: DeadLetters | None = None,
        progress: ProgressCallback = ignore_progress,
        retain: float | None = None,
        reread: Callable[[], SpecVersion] | None = None,
        now: Callable[[], float] = time.time,
        workers: Workers = ALL_CORES,
    ) -> None:
        ledger = ledger or NoLedger()
        durable = not isinstance(ledger, NoLedger)
        check_sources(spec, inputs, durable=durable)
        noise = noise or Noise()
        version = None if plan is None else SpecVersion(spec, plan)
        if version is None:
            compiled = CompiledSpec(spec, evaluator, recorded)
            compiled.evaluator.workers = workers
        else:
            version.check()
            compiled = version.compile(noise, workers)
        self.inputs = with_content(inputs)
        check_inputs(compiled, self.inputs)
        check_different(self.inputs, resumable=durable)
        self.outcome = RunOutcome()
        self.status = RunStatus()
        self.ledger_name = ledger.name
        self._name = name
        self._now = now
        self._retain = retain
        self._sinks = list(sinks)
        self._stopping = threading.Event()
        self._retry = LedgerRetry(ledger.name, self._stopping)
        self._lease: Lease | NoLease = ledger.take_over(name, spec.fingerprint)
        self._delivery = open_delivery(ledger, self._lease, sinks)
        checkpoint = read_checkpoint(self._lease.read_checkpoint(), private=noise.private)
        self.outcome.resumed = checkpoint is not None
        self._progress = progress
        self._started, self._tuples, self._share = time.monotonic(), 0, 0.0
        learns = checkpoint is None and spec.subjects is None
        progress(0.0, "reading the names of subjects" if learns else "starting")
        self.engine = open_engine(compiled, version, noise, self.inputs, checkpoint)
        self._counts_before = self.engine.counts.copy()
        """The counts in the checkpoint: what earlier processes of this run have read."""
        if durable:
            # One release per window: which windows close together also depends on private events.
            self.engine.most_windows = 1
        self._reader = Reader(
            spec.streams,
            self.inputs,
            self.engine,
            spec.windows.jumps[1],
            positions=None if checkpoint is None else checkpoint.positions,
            dead_letters=dead_letters,
            resumable=durable,
        )
        if checkpoint is not None:
            self._reader.dead_letters.rewind(checkpoint.letters)
        self.engine.refused = self._reader.refuse
        self._reloads = Reloads(self.engine, self.inputs, noise, self.status.public, reread)
        self._settlement = Settlement(
            self.engine,
            self._reader,
            self._lease,
            self._delivery,
            self._retry,
            private=noise.private,
            outcome=self.outcome,
            public=self.status.public,
        )
        self._dropped = self._lease_checked = time.monotonic()
        self._caught_up = 0.0
        """Until when windows wait for tuples that were sent while the run was down."""
        self._learning = bool(self.engine.learning)

    # The loop

    def run(self) -> RunOutcome:
        """Run until the input ends or `stop` is called."""
        for _ in self:
            pass
        return self.outcome

    def __iter__(self) -> Iterator[Answers]:
        self._started = time.monotonic()
        with closing(self._delivery):
            self._delivery.start()
            self._reloads.warn()
            if self.outcome.resumed:
                self._caught_up = time.monotonic() + _CATCHING_UP
            self.status.connecting = True
            self._announce_start()
            while not self.outcome.finished and not self._stopping.is_set():
                yield from self._advance_versions()
                yield from self._read()
                if not self.outcome.finished:
                    # Receipts become invalid when a source is opened again.
                    yield from self._commit()
            if self.outcome.finished:
                self._progress(_READING, "releasing the last windows")
                yield from self._collect(self.engine.flush())
            yield from self._commit()
            self._deliver_rest()

    def _read(self) -> Iterator[Answers]:
        """Read tuples until the input ends or the sources must be read again."""
        reading = self._reloads.columns
        with closing(self._reader.read(self._timeout)) as batches:
            yield from self._tick()
            for batch in batches:
                self._announce_start()
                yield from self._tick()  # first: the number of tuples must not delay a release
                if batch is not None:
                    yield from self._insert(batch)
                yield from self._settle()
                self._report_reading(batch)
                self._announce_registry()
                self._reloads.offer(reading)
                if self.engine.due:
                    yield from self._advance_live_versions()
                if self._stopping.is_set() or self._must_read_again(reading):
                    return
        self.outcome.finished = True

    def _insert(self, batch: MergedBatch) -> Iterator[Answers]:
        """Insert tuples into windows, and collect the windows that close."""
        self._settlement.changed |= len(batch) > 0 or batch.has_rejected
        yield from self._collect(self.engine.insert(batch), batch)
        self._reader.advance(batch, len(batch))

    def _collect(
        self, closing_now: Iterable[ClosedWindows], batch: MergedBatch | None = None
    ) -> Iterator[Answers]:
        """Collect windows as they close, and commit when there are many."""
        for closed in closing_now:
            if self._settlement.add(closed):
                if batch is not None:
                    self._reader.advance(batch, self.engine.inserted)
                yield from self._settlement.commit()
                self._after_commit()

    def _settle(self) -> Iterator[Answers]:
        """Between batches: release closed windows, or write a checkpoint if one is due."""
        self._delivery.check()
        self._update_status()
        if self._settlement.is_due():
            yield from self._settlement.commit()
            self._after_commit()
        elif time.monotonic() - max(self._settlement.committed, self._lease_checked) >= _WATCH:
            self._retry(self._lease.read_until)  # raises if another engine has taken over
            self._lease_checked = time.monotonic()

    def _commit(self) -> Iterator[Answers]:
        """Commit if there is anything to commit."""
        if self._settlement.unwritten or self._reader.has_receipts:
            yield from self._settlement.commit()
            self._after_commit()

    def _tick(self) -> Iterator[Answers]:
        """Where windows close by the clock, release those that are due."""
        if not self.engine.clock.ticking:
            return
        # Windows wait a fixed time for tuples that were sent while the run was down. If the tuples
        # decided it, private tuples would decide which others are late.
        catching_up = time.monotonic() < self._caught_up
        now = int(self._now() * 1_000_000)
        yield from self._collect(self.engine.tick(now, catching_up=catching_up))
        if self._settlement.pending:
            yield from self._settle()

    def _timeout(self) -> float:
        """Return the seconds until there is work to do even if no tuple arrives."""
        if not self.engine.clock.ticking:
            return IDLE_SECONDS
        left = self._caught_up - time.monotonic()
        if left <= 0:
            left = self.engine.clock.next_close / 1_000_000 - self._now()
        return min(IDLE_SECONDS, left)

    # Versions of the specification

    def _advance_versions(self) -> Iterator[Answers]:
        """Take the steps of a reload that are due, while nothing is read ahead."""
        if self.engine.due and self._settlement.pending:
            yield from self._settlement.commit()  # these belong to the old version
        self._reloads.advance()
        self._settlement.update_versions()

    def _advance_live_versions(self) -> Iterator[Answers]:
        """The same between two batches, where nothing is extracted ahead."""
        if self._reader.live:
            yield from self._advance_versions()

    def _must_read_again(self, reading: ReadColumns) -> bool:
        """Whether sources must be read again for the next step of a reload, if one is due."""
        if self.engine.due:
            return True  # what was read ahead is extracted by the old version
        return any(wanted - reading[name] for name, wanted in self._reloads.columns.items())

    # What callers can see and ask for

    @property
    def spec(self) -> Specification:
        """The latest specification: in use, or about to be."""
        latest = self.engine.latest
        return self.engine.compiled.spec if latest is None else latest.spec

    @property
    def compiled(self) -> CompiledSpec:
        """The compiled specification in use."""
        return self.engine.compiled

    @property
    def schema(self) -> pa.Schema:
        """The columns of the answers."""
        evaluator = self.compiled.evaluator
        return answer_schema(
            protected=evaluator.protects,
            private=evaluator.private,
            valued=any(not query.whole for query in self.compiled.spec.boolean_queries),
        )

    @property
    def dead_letters(self) -> DeadLetters:
        """Where refused tuples go."""
        return self._reader.dead_letters

    @property
    def input_status(self) -> Sequence[InputStatus]:
        """How far each input is read, for the operator only."""
        return self._reader.status

    @property
    def refusals(self) -> Refusals:
        """How many tuples were accepted and refused since this process started, and why."""
        counts = (self.engine.counts - self._counts_before).tolist()
        reasons = {reason: counts[code] for code, reason in REASONS.items() if counts[code]}
        for (_, reason), times in self.dead_letters.counts.items():
            if reason not in REASONS.values():  # unreadable lines
                reasons[reason] = reasons.get(reason, 0) + times
        return Refusals(counts[TAKEN], reasons)

    def add_sink(self, sink: Sink) -> None:
        """Add a sink; call this before the run starts."""
        self._sinks.append(sink)
        self._delivery.add(sink)

    def stop(self) -> None:
        """Stop reading; the state is kept for the next start. Any thread may call it."""
        self._stopping.set()

    def reload(self) -> None:
        """Read the specification and the plan again, and use them from the next window on.

        If they have mistakes, the old ones stay in use. Any thread may call it.
        """
        self._reloads.request()

    def check_version(self, version: SpecVersion) -> None:
        """Raise if the run could not reload this version. Any thread may call it."""
        self._reloads.check(version)

    @property
    def refused_reloads(self) -> Sequence[RefusedReload]:
        """The reloads that were refused since the last one that was accepted."""
        return self._reloads.refused

    # Status and cleanup

    def _announce_start(self) -> None:
        """Log the start of the run, as soon as every source is connected."""
        if self.status.connecting and self._reader.listening:
            self.status.connecting = False
            if self._lease.durable:
                how = "continues" if self.outcome.resumed else "starts"
                log.info("the run %s %s", self._name, how)
                if self._learning:
                    log.info(
                        "answers begin when the subjects are known: those seen in the first %s of"
                        " the stream. To begin at once, list them under 'subjects'",
                        format_duration(self.engine.learning),
                    )

    def _announce_registry(self) -> None:
        """Log warnings about the registry as soon as subjects are learned."""
        if self._learning and not self.engine.learning:
            self._learning = False
            self._reloads.warn()

    def _report_reading(self, batch: MergedBatch | None) -> None:
        """Report how much of the sources was read, and how fast."""
        self._tuples += 0 if batch is None else len(batch)
        rate = self._tuples / max(time.monotonic() - self._started, 1e-9)
        self._share = max(self._share, self._reader.share)  # after a reload, tuples are read again
        self._progress(_READING * self._share, f"reading, {rate:,.0f} tuples/s")

    def _update_status(self) -> None:
        """Update the status for the operator."""
        self.status.update(self.engine, self._reader.unreadable)
        self.status.commit_seconds = self._settlement.cost
        self.status.public.undelivered = self._delivery.waiting
        self.status.public.retries = self._delivery.retries

    def _after_commit(self) -> None:
        """After a commit: wait for slow sinks, and from time to time delete old answers."""
        while not (self._delivery.has_room(_SOON) or self._stopping.is_set()):
            self._delivery.check()
        if self._retain is None or time.monotonic() - self._dropped < _SWEEP:
            return
        self._dropped = time.monotonic()
        before = int((self._now() - self._retain) * 1_000_000)
        self._retry(self._lease.drop_delivered, [sink.name for sink in self._sinks], before)

    def _deliver_rest(self) -> None:
        """Deliver all releases; after a request to stop, only for `GRACE` seconds."""
        try:
            self._await_delivery()
        finally:
            self.outcome.delivered = self._delivery.answers

    def _await_delivery(self) -> None:
        deadline: float | None = None
        while not self._delivery.is_done(_SOON):
            self._delivery.check()
            left = count(self._delivery.waiting, "release")
            self._progress(_READING, f"delivering answers, {left} left")
            if self._stopping.is_set():
                deadline = deadline or time.monotonic() + GRACE
                if time.monotonic() > deadline:
                    self.outcome.undelivered = True
                    return
        self._delivery.check()
