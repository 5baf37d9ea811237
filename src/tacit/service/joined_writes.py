"""Write the head of a response together with its body.

uvicorn writes them one after the other. Each is a system call, for which a thread gives up the
interpreter lock and waits until it has it again.
"""

from __future__ import annotations

import asyncio
from typing import Final

_SMALL: Final = 64 << 10
"""Larger parts are not copied together."""


class JoinedWrites:
    """The transport of one response. What is not followed by more at once is written soon."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._first: bytes | None = None
        """What was written first and waits for more."""
        self._begun = False

    def write(self, data: bytes) -> None:
        """Write, or wait for more if this is the first part."""
        if not self._begun:
            self._begun, self._first = True, data
            self._loop.call_soon(self._flush)
            return
        first, self._first = self._first, None
        if first is not None and len(data) <= _SMALL:
            data = first + data
        elif first is not None:
            self._transport.write(first)
        self._transport.write(data)

    def close(self) -> None:
        """Write what waits, and close the connection."""
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Return whether the connection is closed or about to be."""
        return self._transport.is_closing()

    def _flush(self) -> None:
        if self._first is not None:
            first, self._first = self._first, None
            self._transport.write(first)
