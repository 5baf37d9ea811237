"""The status line of a live run, on the operator's terminal."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from tacit.pipeline.status import RunStatus
from tacit.quantities import count

if TYPE_CHECKING:
    from rich.text import Text

_RATE_SECONDS: Final = 10.0
"""Seconds over which the rate is averaged."""
_DRIFTED: Final = 0.05
"""From this share on, drift is shown."""
_SLOW_COMMIT: Final = 0.5
"""Commits that take at least this many seconds are shown."""
_REFRESHES: Final = 2
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class StatusLine:
    """Formats a status; remembers recent counts for the rate."""

    status: RunStatus
    now: Callable[[], float] = time.time
    _seen: deque[tuple[float, int]] = field(default_factory=deque)

    def __str__(self) -> str:
        status, public = self.status, self.status.public
        if status.connecting:
            return "connecting to the sources ..."
        parts = [f"{self._rate():,.0f} tuples/s"]
        if status.newest is not None:
            lag = self.now() - status.newest / 1e6
            parts.append(
                f"lag {_format_span(lag)}"
                if lag >= 0
                else f"{_format_span(-lag)} ahead of the clock"
            )
        parts.append(f"{count(status.open_windows, 'window')} open")
        parts.append(f"{count(public.windows, 'window')} released")
        for number, what in ((status.late, "late"), (status.refused, "refused")):
            parts.append(f"{number:,} {what}")
        if public.undelivered:
            parts.append(f"{count(public.undelivered, 'release')} undelivered")
        if public.exhausted:
            parts.append(f"{count(public.exhausted, 'subject')} not paying")
        if public.drift is not None and public.drift >= _DRIFTED:
            parts.append(f"drift {public.drift:.0%}")
        if status.commit_seconds >= _SLOW_COMMIT:
            parts.append(f"commits take {_format_span(status.commit_seconds)}")
        if public.next_close is not None:
            parts.append(f"next close {_format_moment(public.next_close)}")
        return " · ".join(parts)

    def __rich__(self) -> Text:
        from rich.text import Text

        return Text(str(self), no_wrap=True, overflow="ellipsis")

    def _rate(self) -> float:
        """Return the recent tuples per second."""
        now, seen = self.now(), self._seen
        seen.append((now, self.status.tuples))
        while len(seen) > 2 and seen[1][0] <= now - _RATE_SECONDS:
            seen.popleft()
        began, before = seen[0]
        return (self.status.tuples - before) / (now - began) if now > began else 0.0


@contextmanager
def show_status(status: RunStatus) -> Iterator[None]:
    """Show the line during a run, on a terminal only; log lines appear above it."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.live import Live

    line = StatusLine(status)
    with Live(
        get_renderable=lambda: line.__rich__(),
        console=Console(stderr=True),
        refresh_per_second=_REFRESHES,
        transient=True,
        redirect_stdout=False,
    ):
        yield


def _format_span(seconds: float) -> str:
    """Format a duration in its two largest units.

    >>> _format_span(0.25), _format_span(75), _format_span(90_061)
    ('0.2 s', '1 min 15 s', '1 d 1 h')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    for unit, length, less, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60)):
        if whole >= length:
            return f"{whole // length} {unit} {whole % length // part} {less}"
    return f"{whole // 60} min {whole % 60} s"


def _format_moment(microseconds: int) -> str:
    try:
        moment = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return "never"
    today = moment.date() == datetime.now(UTC).date()
    return f"{moment:%H:%M:%S}Z" if today else f"{moment:%Y-%m-%d %H:%M:%S}Z"
