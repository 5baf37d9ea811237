"""Signals during a run: SIGTERM and SIGINT stop it, SIGHUP reloads it."""

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


class SignalRelay:
    """Passes requests to stop or reload to a run; keeps them until the run exists.

    A signal may come while another is handled, so there is no lock here.
    """

    def __init__(self) -> None:
        self._stop = self._reload = False
        self._callbacks: tuple[Callable[[], None], Callable[[], None]] | None = None

    def stop(self) -> None:
        """Request a stop."""
        self._stop = True
        self._pass_on()

    def reload(self) -> None:
        """Request a reload."""
        self._reload = True
        self._pass_on()

    def connect(self, stop: Callable[[], None], reload: Callable[[], None]) -> None:
        """Call these from now on, and at once for earlier requests."""
        self._callbacks = stop, reload
        self._pass_on()

    def _pass_on(self) -> None:
        if self._callbacks is None:
            return
        stop, reload = self._callbacks
        if self._stop:
            self._stop = False
            stop()
        if self._reload:
            self._reload = False
            reload()


@contextmanager
def handle_signals(
    stop: Callable[[], None], reload: Callable[[], None] | None = None
) -> Iterator[None]:
    """Stop on the first SIGTERM or SIGINT, exit on the second; reload on SIGHUP.

    An immediate exit loses nothing: the source repeats what was not committed. The callbacks run
    in the main thread between two bytecode instructions, so they should only set a flag.
    """

    def handle_stop(number: int, _frame: FrameType | None) -> None:
        for each in _STOPPING:
            signal.signal(each, signal.SIG_DFL)
        _LOG.info("stopping after %s; a second signal exits at once", signal.Signals(number).name)
        stop()

    def handle_hangup(_number: int, _frame: FrameType | None) -> None:
        if reload is None:
            _LOG.warning("ignored SIGHUP: a run without a ledger cannot reload")
        else:
            reload()

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread gets signals
        return
    handlers = {**dict.fromkeys(_STOPPING, handle_stop), signal.SIGHUP: handle_hangup}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
