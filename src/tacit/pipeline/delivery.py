"""Deliver released answers from the ledger to sinks, in order, with retries.

Each sink has its own thread, so a slow one does not block the others. The ledger records how far
each sink is.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

import pyarrow as pa

from tacit.answers.answers import Answers
from tacit.answers.codec import Names, unpack, unpack_counts
from tacit.errors import LedgerLostError, UnreachableError
from tacit.ledger.none import NoLease, NoLedger
from tacit.pipeline.sinks import ReleaseBatch, Sink

if TYPE_CHECKING:
    from tacit.ledger.drafts import UndeliveredRelease
    from tacit.ledger.lease import Lease
    from tacit.ledger.ledger import Ledger

MOST_WAITING: Final = 64
"""The most releases that may wait for a sink before the run pauses."""
_CLOSE_SECONDS: Final = 10.0
"""Seconds to wait for an open delivery at the end."""
_FIRST, _LONGEST = 0.05, 5.0
"""Seconds between attempts."""

log = logging.getLogger("tacit.delivery")
P = ParamSpec("P")
R = TypeVar("R")


class Delivery:
    """Delivers the releases of a lease, from `start` until `close`."""

    def __init__(self, lease: Lease, sinks: Sequence[Sink], names: Names) -> None:
        self._deliveries = [_SinkDelivery(lease, sink, names) for sink in sinks]
        self._lease = lease
        self._names = names

    def add(self, sink: Sink) -> None:
        """Add a sink; call this before `start`."""
        self._deliveries.append(_SinkDelivery(self._lease, sink, self._names))

    @classmethod
    def from_ledger(cls, ledger: Ledger, lease: Lease, sinks: Sequence[Sink]) -> Delivery:
        """Create a delivery that reads the names of subjects from the ledger."""
        from tacit.ledger.directory import Directory  # it needs an extra

        return cls(lease, sinks, Directory(ledger))

    def start(self) -> None:
        """Start with the releases that sinks do not have yet."""
        for delivery in self._deliveries:
            delivery.start()

    def release(self, number: int, answers: Answers | None = None) -> None:  # noqa: ARG002
        """Deliver one more release; its answers are read from the ledger."""
        for delivery in self._deliveries:
            delivery.enqueue(number)

    @property
    def retries(self) -> int:
        """How many attempts failed and were retried."""
        return sum(delivery.retries for delivery in self._deliveries)

    @property
    def answers(self) -> int:
        """How many answers the sink with the most of them received since the start."""
        return max((delivery.answers for delivery in self._deliveries), default=0)

    @property
    def waiting(self) -> int:
        """How many releases of this run wait for the slowest sink."""
        return max((delivery.left for delivery in self._deliveries), default=0)

    def check(self) -> None:
        """Raise the error that stopped a sink, if there is one."""
        for delivery in self._deliveries:
            if delivery.error is not None:
                raise delivery.error

    def has_room(self, timeout: float) -> bool:
        """Wait until no sink is far behind; return whether that is so after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        return all(delivery.wait(MOST_WAITING - 1, deadline) for delivery in self._deliveries)

    def is_done(self, timeout: float) -> bool:
        """Wait until all is delivered; return whether that is so after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        return all(delivery.wait(0, deadline) for delivery in self._deliveries)

    def close(self) -> None:
        """Stop after the open deliveries, if they do not take too long."""
        for delivery in self._deliveries:
            delivery.stop()
        for delivery in self._deliveries:
            if delivery.ident is not None:
                delivery.join(_CLOSE_SECONDS)


def open_delivery(
    ledger: Ledger | NoLedger, lease: Lease | NoLease, sinks: Sequence[Sink]
) -> Delivery | DirectDelivery:
    """Deliver from the ledger if there is one, and directly otherwise."""
    if isinstance(ledger, NoLedger) or isinstance(lease, NoLease):
        return DirectDelivery(sinks)
    return Delivery.from_ledger(ledger, lease, sinks)


class DirectDelivery:
    """Delivers answers directly as they are released, without a ledger."""

    retries = 0
    waiting = 0

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = list(sinks)
        self.answers = 0

    def add(self, sink: Sink) -> None:
        """Add a sink."""
        self._sinks.append(sink)

    def start(self) -> None:
        """Do nothing: there are no earlier releases."""

    def release(self, number: int, answers: Answers) -> None:
        """Deliver to every sink."""
        if not self._sinks:
            return
        consumers = answers.query_consumers
        sinks = [sink for sink in self._sinks if sink.content == "answers"]
        for batch in answers.batches():
            table = pa.Table.from_batches([batch])
            self.answers += table.num_rows
            for sink in sinks:
                sink.deliver(ReleaseBatch(number, table, consumers))
        counted = answers.counted
        for sink in self._sinks:
            if sink.content == "counts" and counted is not None:
                asked = dict(zip(counted.queries, counted.consumers, strict=True))
                sink.deliver(ReleaseBatch(number, counted.table(), asked))

    def check(self) -> None:
        """Do nothing: errors are raised by `release`."""

    def has_room(self, timeout: float) -> bool:  # noqa: ARG002
        """Return True: nothing waits."""
        return True

    def is_done(self, timeout: float) -> bool:  # noqa: ARG002
        """Return True: nothing waits."""
        return True

    def close(self) -> None:
        """Do nothing: the caller closes the sinks."""


class _SinkDelivery(threading.Thread):
    """The thread that delivers to one sink, one release after the other."""

    def __init__(self, lease: Lease, sink: Sink, names: Names) -> None:
        super().__init__(name=f"tacit-delivery-{sink.name}", daemon=True)
        self._lease = lease
        self._sink = sink
        self._names = names
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._left: deque[int] = deque()
        """The releases of this run that wait."""
        self._delivered = 0
        """The last release that the sink has."""
        self._idle = False
        self.retries = 0
        self.answers = 0
        self.error: BaseException | None = None

    @property
    def left(self) -> int:
        with self._changed:
            return len(self._left)

    def enqueue(self, number: int) -> None:
        with self._changed:
            if number > self._delivered:  # it may have been found in the ledger already
                self._idle = False
                self._left.append(number)
                self._changed.notify_all()

    def stop(self) -> None:
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()

    def wait(self, most: int, deadline: float) -> bool:
        """Wait until at most `most` releases are left; 0 means that all are delivered."""

        def reached() -> bool:
            return self.error is not None or (self._idle if most == 0 else len(self._left) <= most)

        with self._changed:
            return self._changed.wait_for(reached, max(0.0, deadline - time.monotonic()))

    def run(self) -> None:
        """Deliver what waits, then wait for more."""
        try:
            after, recovered = self._retry(self._recover), False
            while True:
                # Then all that the ledger has for this sink was enqueued here.
                done = recovered and not self._left and not self._stopping.is_set()
                waiting = None if done else self._retry(self._next, after)
                if waiting is None:
                    recovered = True
                    self._wait_for_release()
                else:
                    self._deliver(waiting)
                    after = waiting.release
        except _StoppedError:
            pass
        except BaseException as error:
            with self._changed:
                self.error = error
                self._changed.notify_all()

    def _recover(self) -> int:
        """Recover the sink and return the number of the last delivered release.

        Another process may have used the sink until now, and delivered after we read the position.
        So the position is valid only if it is unchanged after `recover`.
        """
        number, position = self._lease.read_position(self._sink.name)
        while True:
            missing = number > 0 and self._sink.is_missing(number, position)
            self._sink.recover(position)
            known = self._lease.read_position(self._sink.name)
            if known == (number, position):
                if missing:
                    self._warn_missing(number)
                return number
            number, position = known

    def _warn_missing(self, number: int) -> None:
        log.warning(
            "%s is missing or was cut short, but answers up to release %d were delivered to it."
            " New answers go to a new file. To get the earlier ones again: %s",
            self._sink.name,
            number,
            self._lease.answers_command,
        )

    def _next(self, after: int) -> UndeliveredRelease | None:
        return next(self._lease.iterate_undelivered(self._sink.name, after), None)

    def _deliver(self, waiting: UndeliveredRelease) -> None:
        number = waiting.release
        if self._sink.content == "counts":
            table, consumers = unpack_counts(waiting.body)
        else:
            table, consumers = self._retry(unpack, waiting.body, waiting.first_id, self._names)
            self.answers += table.num_rows
        position = self._retry(self._sink.deliver, ReleaseBatch(number, table, consumers))
        # Retried separately: what the sink has must not be delivered again.
        self._retry(self._lease.record_delivery, self._sink.name, number, position)
        with self._changed:
            self._delivered = number
            while self._left and self._left[0] <= number:
                self._left.popleft()
            self._changed.notify_all()

    def _wait_for_release(self) -> None:
        """Wait for the next release; all earlier ones are delivered."""
        with self._changed:
            if not self._left:
                self._idle = True
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._left or self._stopping.is_set())

    def _retry(self, attempt: Callable[P, R], *given: P.args, **named: P.kwargs) -> R:
        """Call `attempt` until it succeeds."""
        delay, failed = _FIRST, False
        while not self._stopping.is_set():
            try:
                result = attempt(*given, **named)
            except (UnreachableError, LedgerLostError) as error:
                if not failed:
                    log.warning("%s", error)
                failed = True
                self.retries += 1
                self._stopping.wait(delay)
                delay = min(2 * delay, _LONGEST)
            else:
                if failed:
                    log.warning("deliveries to %s continue", self._sink.name)
                return result
        raise _StoppedError


class _StoppedError(Exception):
    """The delivery was stopped."""
