"""Released answers on their way to consumers: from the ledger, in order, until they have arrived.

Each outlet has a thread of its own, so that one that does not answer holds up no other. How far
it is stands in the ledger.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, ParamSpec, TypeVar

from tacit.answers.packing import Names, unpack
from tacit.connectors.outlets import Outlet, Parcel
from tacit.errors import LedgerLostError, UnreachableError
from tacit.ledger.answers import command_for_answers
from tacit.ledger.lease import Lease, Waiting

MOST_WAITING: Final = 64
"""Releases that may wait for an outlet before nothing more is released."""
_PATIENCE: Final = 10.0
"""Seconds that a delivery under way may take at the end."""
_FIRST, _LONGEST = 0.05, 5.0
"""Seconds between attempts."""

log = logging.getLogger("tacit.delivery")
P = ParamSpec("P")
R = TypeVar("R")


class Delivery:
    """Delivers what a lease has released, from when it is started until it is closed."""

    def __init__(self, lease: Lease, outlets: Sequence[Outlet], names: Names) -> None:
        self._courses = [_Course(lease, outlet, names) for outlet in outlets]

    def start(self) -> None:
        """Begin with what was released before and has not arrived."""
        for course in self._courses:
            course.start()

    def released(self, number: int) -> None:
        """One more release waits in the ledger."""
        for course in self._courses:
            course.released(number)

    @property
    def retries(self) -> int:
        """How often an attempt failed and was made again."""
        return sum(course.retries for course in self._courses)

    @property
    def waiting(self) -> int:
        """Windows released by this run that an outlet has not delivered; the most that any has."""
        return max((course.left for course in self._courses), default=0)

    def check(self) -> None:
        """Raise what has stopped an outlet, if anything has."""
        for course in self._courses:
            if course.error is not None:
                raise course.error

    def has_room(self, patience: float) -> bool:
        """Wait so many seconds until no outlet is far behind; whether that is so."""
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


class _Course(threading.Thread):
    """Everything for one outlet, one after the other."""

    def __init__(self, lease: Lease, outlet: Outlet, names: Names) -> None:
        super().__init__(name=f"tacit-delivery-{outlet.name}", daemon=True)
        self._lease = lease
        self._outlet = outlet
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
            after = self._insist(self._recover)
            while True:
                waiting = self._insist(self._next, after)
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

        The outlet may have been held by another process until just now, which may have delivered
        after we had read the position: it counts only if it is the same once the outlet is ours.
        """
        number, position = self._lease.position(self._outlet.name)
        while True:
            missing = number > 0 and self._outlet.is_missing(number, position)
            self._outlet.recover(position)
            known = self._lease.position(self._outlet.name)
            if known == (number, position):
                if missing:
                    self._tell_missing(number)
                return number
            number, position = known

    def _tell_missing(self, number: int) -> None:
        log.warning(
            "%s is missing or was cut short, but answers up to release %d were delivered to it."
            " New answers go to a new file. To have the earlier ones again: %s",
            self._outlet.name,
            number,
            command_for_answers(self._lease.place, self._lease.run),
        )

    def _next(self, after: int) -> Waiting | None:
        return next(self._lease.waiting(self._outlet.name, after), None)

    def _deliver(self, waiting: Waiting) -> None:
        number = waiting.release
        table, consumers = self._insist(unpack, waiting.body, waiting.first_id, self._names)
        position = self._insist(self._outlet.deliver, Parcel(number, table, consumers))
        # Tried again by itself: what has arrived must not be delivered again.
        self._insist(self._lease.delivered, self._outlet.name, number, position)
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

    def _insist(self, attempt: Callable[P, R], *given: P.args, **named: P.kwargs) -> R:
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
                    log.warning("deliveries to %s go on", self._outlet.name)
                return result
        raise _StoppedError


class _StoppedError(Exception):
    """Nothing more is to be delivered now."""
