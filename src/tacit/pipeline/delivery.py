"""Released answers on their way to consumers: from the ledger, in order, until they have arrived.

Each sink has a thread of its own, so that one that does not answer holds up no other. How far
it is stands in the ledger.
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
from tacit.answers.codec import Names, unpack
from tacit.errors import LedgerLostError, UnreachableError
from tacit.pipeline.sinks import ReleaseBatch, Sink

if TYPE_CHECKING:
    from tacit.ledger.drafts import UndeliveredRelease
    from tacit.ledger.lease import Lease
    from tacit.ledger.ledger import Ledger

MOST_WAITING: Final = 64
"""Releases that may wait for a sink before nothing more is released."""
_PATIENCE: Final = 10.0
"""Seconds that a delivery under way may take at the end."""
_FIRST, _LONGEST = 0.05, 5.0
"""Seconds between attempts."""

log = logging.getLogger("tacit.delivery")
P = ParamSpec("P")
R = TypeVar("R")


class Delivery:
    """Delivers what a lease has released, from when it is started until it is closed."""

    def __init__(self, lease: Lease, sinks: Sequence[Sink], names: Names) -> None:
        self._courses = [_SinkDelivery(lease, sink, names) for sink in sinks]
        self._lease = lease
        self._names = names

    def add(self, sink: Sink) -> None:
        """Deliver to this sink too; before it is started."""
        self._courses.append(_SinkDelivery(self._lease, sink, self._names))

    @classmethod
    def from_ledger(cls, ledger: Ledger, lease: Lease, sinks: Sequence[Sink]) -> Delivery:
        """The names of subjects are read from the ledger."""
        from tacit.ledger.directory import Directory  # it needs an extra

        return cls(lease, sinks, Directory(ledger))

    def start(self) -> None:
        """Begin with what was released before and has not arrived."""
        for course in self._courses:
            course.start()

    def release(self, number: int, answers: Answers | None = None) -> None:  # noqa: ARG002
        """One more release waits in the ledger; what it holds is read from there."""
        for course in self._courses:
            course.released(number)

    @property
    def retries(self) -> int:
        """How often an attempt failed and was made again."""
        return sum(course.retries for course in self._courses)

    @property
    def waiting(self) -> int:
        """Windows released by this run that a sink has not delivered; the most that any has."""
        return max((course.left for course in self._courses), default=0)

    def check(self) -> None:
        """Raise what has stopped a sink, if anything has."""
        for course in self._courses:
            if course.error is not None:
                raise course.error

    def has_room(self, patience: float) -> bool:
        """Wait so many seconds until no sink is far behind; whether that is so."""
        deadline = time.monotonic() + patience
        return all(course.wait(MOST_WAITING - 1, deadline) for course in self._courses)

    def is_done(self, patience: float) -> bool:
        """Wait so many seconds until everything has arrived; whether it has."""
        deadline = time.monotonic() + patience
        return all(course.wait(0, deadline) for course in self._courses)

    def close(self) -> None:
        """Stop after the deliveries that are under way, if they do not take too long."""
        for course in self._courses:
            course.stop()
        for course in self._courses:
            if course.ident is not None:
                course.join(_PATIENCE)


class DirectDelivery:
    """Delivers answers as they are released, where there is no ledger to deliver them from."""

    retries = 0
    waiting = 0

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = list(sinks)

    def add(self, sink: Sink) -> None:
        """Deliver to this sink too."""
        self._sinks.append(sink)

    def start(self) -> None:
        """Nothing was released before."""

    def release(self, number: int, answers: Answers) -> None:
        """Deliver to every sink."""
        if not self._sinks:
            return
        consumers = dict(zip(answers.queries, answers.consumers, strict=False))
        for batch in answers.batches():
            table = pa.Table.from_batches([batch])
            for sink in self._sinks:
                sink.deliver(ReleaseBatch(number, table, consumers))

    def check(self) -> None:
        """What stops a sink is raised at once."""

    def has_room(self, patience: float) -> bool:  # noqa: ARG002
        """Nothing waits."""
        return True

    def is_done(self, patience: float) -> bool:  # noqa: ARG002
        """Nothing waits."""
        return True

    def close(self) -> None:
        """The sinks are closed by those who opened them."""


class _SinkDelivery(threading.Thread):
    """Everything for one sink, one after the other."""

    def __init__(self, lease: Lease, sink: Sink, names: Names) -> None:
        super().__init__(name=f"tacit-delivery-{sink.name}", daemon=True)
        self._lease = lease
        self._sink = sink
        self._names = names
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._left: deque[int] = deque()
        """The releases that wait; not those of before."""
        self._idle = False
        self.retries = 0
        self.error: BaseException | None = None

    @property
    def left(self) -> int:
        with self._changed:
            return len(self._left)

    def released(self, number: int) -> None:
        with self._changed:
            self._idle = False
            self._left.append(number)
            self._changed.notify_all()

    def stop(self) -> None:
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()

    def wait(self, most: int, deadline: float) -> bool:
        """Wait until at most so many releases are left, 0 meaning that all have arrived."""

        def reached() -> bool:
            return self.error is not None or (self._idle if most == 0 else len(self._left) <= most)

        with self._changed:
            return self._changed.wait_for(reached, max(0.0, deadline - time.monotonic()))

    def run(self) -> None:
        """Deliver what waits, then wait for more."""
        try:
            after = self._retry(self._recover)
            while True:
                waiting = self._retry(self._next, after)
                if waiting is None:
                    self._rest()
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
        """The number of the last release that has arrived.

        The sink may have been held by another process until just now, which may have delivered
        after we had read the position: it counts only if it is the same once the sink is ours.
        """
        number, position = self._lease.position(self._sink.name)
        while True:
            missing = number > 0 and self._sink.is_missing(number, position)
            self._sink.recover(position)
            known = self._lease.position(self._sink.name)
            if known == (number, position):
                if missing:
                    self._tell_missing(number)
                return number
            number, position = known

    def _tell_missing(self, number: int) -> None:
        log.warning(
            "%s is missing or was cut short, but answers up to release %d were delivered to it."
            " New answers go to a new file. To have the earlier ones again: %s",
            self._sink.name,
            number,
            self._lease.answers_command,
        )

    def _next(self, after: int) -> UndeliveredRelease | None:
        return next(self._lease.waiting(self._sink.name, after), None)

    def _deliver(self, waiting: UndeliveredRelease) -> None:
        number = waiting.release
        table, consumers = self._retry(unpack, waiting.body, waiting.first_id, self._names)
        position = self._retry(self._sink.deliver, ReleaseBatch(number, table, consumers))
        # Tried again by itself: what has arrived must not be delivered again.
        self._retry(self._lease.delivered, self._sink.name, number, position)
        with self._changed:
            while self._left and self._left[0] <= number:
                self._left.popleft()
            self._changed.notify_all()

    def _rest(self) -> None:
        """Wait for a release, having delivered all before."""
        with self._changed:
            if not self._left:
                self._idle = True
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._left or self._stopping.is_set())

    def _retry(self, attempt: Callable[P, R], *given: P.args, **named: P.kwargs) -> R:
        """Try until it succeeds."""
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
                    log.warning("deliveries to %s go on", self._sink.name)
                return result
        raise _StoppedError


class _StoppedError(Exception):
    """Nothing more is to be delivered now."""
