"""Retry calls until the ledger is reachable."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from tacit.errors import LedgerLostError

GRACE: Final = 10.0
"""Seconds to finish open work after a request to stop."""
_FIRST, _LONGEST = 0.05, 5.0
"""Seconds between attempts to reach the ledger."""
_SOON: Final = 0.2

log = logging.getLogger("tacit.ledger")
P = ParamSpec("P")
R = TypeVar("R")


class LedgerRetry:
    """Calls functions that need the ledger, and retries while it is unreachable."""

    def __init__(self, name: str, stopping: threading.Event) -> None:
        self._name = name
        self._stopping = stopping

    def __call__(self, attempt: Callable[P, R], *given: P.args, **named: P.kwargs) -> R:
        """Call `attempt` until the ledger is reachable; nothing is acknowledged meanwhile.

        After a request to stop it raises LedgerLostError once `GRACE` seconds have passed.
        """
        delay, failed, deadline = _FIRST, False, None
        while True:
            try:
                result = attempt(*given, **named)
            except LedgerLostError as error:
                if not failed:
                    log.warning("%s", error)
                failed = True
                if self._stopping.is_set():
                    deadline = deadline or time.monotonic() + GRACE
                    if time.monotonic() > deadline:
                        raise
                time.sleep(min(delay, _SOON) if deadline else delay)
                delay = min(2 * delay, _LONGEST)
            else:
                if failed:
                    log.warning("the ledger %s is reachable again", self._name)
                return result
