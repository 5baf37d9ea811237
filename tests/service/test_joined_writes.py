"""The head of a response and its body are written together."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from tacit.service.joined_writes import JoinedWrites


class Transport:
    """Notes what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Note it."""
        self.written.append(data)

    def close(self) -> None:
        """Note that too."""
        self.written.append(b"closed")


def write(*parts: bytes, pause: bool = False, close: bool = False) -> list[bytes]:
    """Write these parts, with a pause after the first one or without; return the writes."""

    async def run() -> list[bytes]:
        transport = Transport()
        writes = JoinedWrites(cast("asyncio.Transport", transport), asyncio.get_running_loop())
        for part in parts:
            writes.write(part)
            if pause:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
        if close:
            writes.close()
        await asyncio.sleep(0.01)
        return transport.written

    return asyncio.run(run())


def test_a_head_is_written_with_the_body_that_follows_at_once() -> None:
    assert write(b"head ", b"body", b"more") == [b"head body", b"more"]
    assert write(b"head", b"") == [b"head"]


@pytest.mark.parametrize("body", [(), (b"body",)])
def test_a_head_does_not_wait_for_a_body(body: tuple[bytes, ...]) -> None:
    """Readers of server-sent events get it although no event came yet."""
    assert write(b"head", *body, pause=True) == [b"head", *body]


def test_a_large_body_is_not_copied() -> None:
    large = bytes(1 << 20)
    assert write(b"head", large) == [b"head", large]


def test_what_waits_is_written_before_the_connection_is_closed() -> None:
    assert write(b"head", close=True) == [b"head", b"closed"]
