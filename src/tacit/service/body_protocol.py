"""Receive large request bodies into one buffer, without copies.

uvicorn gives a body to the application in pieces. Each is copied several times, and reading pauses
after each. Here a handler that expects a large body says so, after it has checked who sends it, and
gets all of it at once, in memory that is used again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeAlias, cast

import numpy as np
from starlette.requests import ClientDisconnect, Request
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from tacit.buffers import allocate
from tacit.service.connection_limits import LimitedProtocol
from tacit.service.joined_writes import JoinedWrites

_EXTENSION: Final = "tacit.body"
_WORTH: Final = 128 << 10
"""Bytes that are still to come, from which on this takes less time."""
_REUSED: Final = 4 << 20
"""The largest body in bytes whose memory is used again: blocks are kept for that."""
_PIECE: Final = 64 << 10
"""The most bytes that are received at once outside of such bodies: they are copied."""
_FRAMED: Final = frozenset({b"transfer-encoding", b"expect"})
"""Headers of requests whose body is not simply as long as they say, or is not sent unasked."""

ReceiveBody: TypeAlias = Callable[[int], Awaitable[memoryview | None]]


async def receive_body(request: Request, size: int) -> memoryview | None:
    """Receive the body of a request that says that it has so many bytes.

    Returns None if it must be read as usual: it is small, or the server cannot do this.
    """
    extension: dict[str, ReceiveBody] = request.scope.get("extensions", {}).get(_EXTENSION, {})
    return await extension["receive"](size) if extension else None


class _Piece(threading.local):
    """What the event loop of a thread has just received."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(_PIECE))


_piece: Final = _Piece()


class BodyProtocol(LimitedProtocol, asyncio.BufferedProtocol):
    """The protocol of uvicorn with limits. It offers `receive_body` to the application."""

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Return where to put what is received next; it is used before anything else is."""
        return _piece.view

    def buffer_updated(self, nbytes: int) -> None:
        """Parse what was received."""
        self.data_received(bytes(_piece.view[:nbytes]))

    def on_headers_complete(self) -> None:
        """Begin to handle a request."""
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is before:
            return
        self.cycle.transport = cast("asyncio.Transport", JoinedWrites(self.transport, self.loop))
        if not _FRAMED & {name for name, _ in self.headers}:
            receive = partial(self._receive_body, self.cycle)
            self.scope["extensions"] = {_EXTENSION: {"receive": receive}}

    async def _receive_body(self, cycle: RequestResponseCycle, size: int) -> memoryview | None:
        """Take the connection over until the body is there, and give it back."""
        begun = bytes(cycle.body)
        if cycle is not self.cycle or cycle.disconnected or not cycle.more_body:
            return None
        if size - len(begun) < _WORTH:
            return None
        cycle.body = bytearray()
        receiver = _BodyReceiver(self, cycle, begun, size)
        self.transport.set_protocol(receiver)
        self.flow.resume_reading()
        return await receiver.done

    def end_body(self, cycle: RequestResponseCycle) -> None:
        """Go on with the next request. The parser has not seen the end of the body."""
        self.new_parser()
        self.transport.set_protocol(self)
        cycle.more_body = False
        cycle.message_event.set()


class _BodyReceiver(asyncio.BufferedProtocol):
    """Receives the rest of a body.

    If nobody waits for it any more, it is received and dropped, as uvicorn does.
    """

    def __init__(
        self, http: BodyProtocol, cycle: RequestResponseCycle, begun: bytes, size: int
    ) -> None:
        self._http = http
        self._cycle = cycle
        self._body = (
            allocate(size, np.uint8).data if size <= _REUSED else memoryview(bytearray(size))
        )
        self._body[: len(begun)] = begun
        self._left = self._body[len(begun) :]
        self._missing = size - len(begun)
        self.done: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self.done.add_done_callback(self._forget)

    def _forget(self, done: asyncio.Future[memoryview]) -> None:
        """Let go of the buffer; what still comes is written over and over."""
        if done.cancelled():
            self._left = memoryview(bytearray(min(self._missing, _WORTH)))
        self._body = memoryview(b"")

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._left[: self._missing]

    def buffer_updated(self, nbytes: int) -> None:
        self._missing -= nbytes
        if not self.done.done():
            self._left = self._left[nbytes:]
        if self._missing:
            return
        self._left.release()
        self._http.end_body(self._cycle)
        if not self.done.done():
            self.done.set_result(self._body)

    def connection_lost(self, exc: Exception | None) -> None:
        self._left = memoryview(b"")
        self._http.connection_lost(exc)
        if not self.done.done():
            self.done.set_exception(ClientDisconnect())

    def pause_writing(self) -> None:
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._http.resume_writing()
