"""Signals while a run lasts: stop when asked, at once when asked twice; reload on SIGHUP."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_LOG: Final = logging.getLogger(__name__)
_STOPPING: Final = (signal.SIGTERM, signal.SIGINT)


class Calls:
    """What signals ask for, kept until there is a run that can be asked."""

    def __init__(self) -> None:
        self._stop, self._reload = threading.Event(), threading.Event()
        self._answering: tuple[Callable[[], None], Callable[[], None]] | None = None

    def stop(self) -> None:
        """Ask to stop."""
        self._stop.set()
        self._pass_on()

    def reload(self) -> None:
        """Ask to reload."""
        self._reload.set()
        self._pass_on()

    def answer(self, stop: Callable[[], None], reload: Callable[[], None]) -> None:
        """From now on these are called; at once for what was asked before."""
        self._answering = stop, reload
        self._pass_on()

    def _pass_on(self) -> None:
        if self._answering is None:
            return
        for asked, answer in zip((self._stop, self._reload), self._answering, strict=True):
            if asked.is_set():
                asked.clear()
                answer()


@contextmanager
def listening(stop: Callable[[], None], reload: Callable[[], None] | None = None) -> Iterator[None]:
    """The first SIGTERM or SIGINT asks to stop, the next ends the process; SIGHUP asks to reload.

    Ending at once loses nothing: what was not committed comes again from the source. The
    callbacks run between two steps of the main thread, so they should do no more than set a flag.
    """

    def asked(number: int, _frame: FrameType | None) -> None:
        for each in _STOPPING:
            signal.signal(each, signal.SIG_DFL)
        _LOG.info("stopping: %s came; another one ends it at once", signal.Signals(number).name)
        stop()

    def called(_number: int, _frame: FrameType | None) -> None:
        if reload is None:
            _LOG.warning("SIGHUP came, but this run cannot reload; give it a ledger")
        else:
            reload()

    if threading.current_thread() is not threading.main_thread():
        yield  # signals come to the main thread alone
        return
    wanted = {**dict.fromkeys(_STOPPING, asked), signal.SIGHUP: called}
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
