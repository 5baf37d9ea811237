"""Server-sent events: what is released, until the reader goes, or its token or session ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Protocol, TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import Request
from fastapi.responses import StreamingResponse

from tacit.service.roles import Principal
from tacit.service.state import ServiceState

_EVENT_ROWS: Final = 1_000
"""The most answers in an event."""
_HEARTBEAT: Final = 15.0
"""Seconds after which a stream without events sends a comment, so that it stays open."""
_stream_threads = CapacityLimiter(4)
S_contra = TypeVar("S_contra", contravariant=True)
S = TypeVar("S")


class EventFeed(Protocol[S_contra]):
    """What a stream reads: each reader has a place, and an event moves it on."""

    def streaming(self) -> AbstractContextManager[None]:
        """Prepare releases as they come, for a reader that streams them."""

    def is_latest(self, after: int) -> bool:
        """Return whether nothing that was announced is behind this place."""

    def recall_event(
        self, selection: S_contra, after: int, most: int, /
    ) -> tuple[int, bytes] | None:
        """Return the next place and its event, which may be empty, if it is in memory."""

    def read_event(self, selection: S_contra, after: int, most: int, /) -> tuple[int, bytes] | None:
        """Return the same from the ledger; None if nothing is behind this place."""


def describe_events(name: str, number: int, row: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a stream for the OpenAPI document, with an event of one row."""
    example = f"retry: 2000\n\nid: {number}\nevent: {name}\ndata: [{json.dumps(row)}]\n\n"
    return {"text/event-stream": {"schema": {"type": "string"}, "example": example}}


def stream_events(
    request: Request,
    state: ServiceState,
    principal: Principal,
    feed: EventFeed[S],
    selection: S,
    after: int,
) -> StreamingResponse:
    """Stream the selected events behind a place, and then those that are released."""

    async def iterate() -> AsyncIterator[bytes]:
        place = after

        async def read() -> AsyncIterator[bytes]:
            nonlocal place
            # One event at a time: a reader that is slow keeps no release in memory.
            while not feed.is_latest(place):
                event = feed.recall_event(selection, place, _EVENT_ROWS)
                if event is None:
                    event = await _run(feed.read_event, selection, place, _EVENT_ROWS)
                if event is None:
                    return
                place, text = event
                if text:
                    yield text

        yield b"retry: 2000\n\n"
        with feed.streaming():
            async for text in follow_releases(request, state, principal, read):
                yield text

    return StreamingResponse(iterate(), media_type="text/event-stream")


async def follow_releases(
    request: Request,
    state: ServiceState,
    principal: Principal,
    read: Callable[[], AsyncIterator[bytes]],
) -> AsyncIterator[bytes]:
    """Yield what `read` yields, now and after each release; comments in between.

    If the reader goes, the response that iterates over this is cancelled.
    """
    session: str = getattr(request.state, "session", "")

    async def is_valid() -> bool:
        if not session:
            return await state.access.is_still_valid(principal)
        return bool(await _run(state.sessions.find, session) == principal)

    with state.sessions.watching(session) if session else nullcontext() as ended:
        while not state.signal.closing:
            released = state.signal.next  # before reading, so that none is missed
            if not await is_valid():
                return  # the token was revoked, the session was closed, or one of them has expired
            async for text in read():
                yield text
            while not await _is_set_soon(released, ended):
                if not await is_valid():
                    return
                yield b":\n\n"


async def _is_set_soon(released: asyncio.Event, ended: asyncio.Event | None) -> bool:
    """Wait for either event, but not for longer than a heartbeat; return whether one is set."""
    if ended is None:
        try:
            async with asyncio.timeout(_HEARTBEAT):
                return await released.wait()
        except TimeoutError:
            return False
    waits = [asyncio.create_task(one.wait()) for one in (released, ended)]
    try:
        await asyncio.wait(waits, timeout=_HEARTBEAT, return_when=asyncio.FIRST_COMPLETED)
    finally:  # also if the reader goes
        for one in waits:
            one.cancel()
    return released.is_set() or ended.is_set()


async def _run(function: Callable[..., Any], *given: Any) -> Any:
    return await to_thread.run_sync(function, *given, limiter=_stream_threads)
