"""Server-sent events: what every stream does between two releases."""

from __future__ import annotations

import asyncio
from typing import Final

from fastapi import Request

from tacit.service.roles import Principal
from tacit.service.state import ServiceState

HEARTBEAT: Final = b":\n\n"
"""A comment, sent so that a stream without events stays open."""
_HEARTBEAT_SECONDS: Final = 15.0


async def wait_for(released: asyncio.Event) -> bool:
    """Wait for the next release; return False if it is time for a heartbeat first."""
    try:
        async with asyncio.timeout(_HEARTBEAT_SECONDS):
            await released.wait()
    except TimeoutError:
        return False
    return True


async def has_ended(request: Request, state: ServiceState, principal: Principal) -> bool:
    """Return whether nobody reads a stream any more, or its token was revoked or has expired."""
    if await request.is_disconnected():
        return True
    return not await state.access.is_still_valid(principal)
