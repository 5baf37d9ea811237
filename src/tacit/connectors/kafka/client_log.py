"""What the Kafka client logs by itself, without its repetitions."""

from __future__ import annotations

import logging
import re
import time
from typing import Final

_PAUSE: Final = 60.0
"""Seconds until a failure that was logged is logged again."""
_CHANGING: Final = re.compile(r"\(after .*|\[thrd:[^\]]*\]")
"""What differs between two lines about the same failure."""


class ClientLog:
    """Passes on what a client logs. While a broker is away, the client tries to connect many times
    a second and logs each attempt: of each kind of failure, one line a minute is passed on.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._again: dict[str, float] = {}

    def log(self, level: int, text: str, facility: str, client: str, message: str) -> None:
        """Log a line of the client; called by the client, perhaps in a thread of its own."""
        if facility == "FAIL":
            kind, now = _CHANGING.sub("", message), time.monotonic()
            if now < self._again.get(kind, now):
                return
            self._again[kind] = now + _PAUSE
        self._logger.log(level, text, facility, client, message)
