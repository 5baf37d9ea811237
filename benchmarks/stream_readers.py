"""Read many streams of server-sent events in one process, and write down what came and when.

`python -m benchmarks.stream_readers JOB` reads the streams that the JSON file JOB lists. It prints
a line when all of them are open, and stops at the first line of its standard input. Only bytes and
times are collected before that; they are read as events, and written as Parquet, afterwards.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any

import polars as pl

_AT_ONCE = 50
"""Streams that are opened at the same time."""
_COLUMNS = {
    "id": pl.Int64(),
    "window_start": pl.String(),
    "subject": pl.String(),
    "query": pl.String(),
    "detected": pl.Boolean(),
    "confidence": pl.Float64(),
}


@dataclass
class Received(asyncio.Protocol):
    """What came on a connection, and when."""

    request: bytes
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    lost: bool = False

    def connection_made(self, transport: Any) -> None:
        """Ask for the stream."""
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        """Store some bytes and the time."""
        self.pieces.append((time.time(), data))
        self.opened.set()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        """Remember that the stream ended."""
        self.lost = True
        self.opened.set()

    def read_events(self) -> list[tuple[float, bytes]]:
        """Return the data of each event, and when its last byte was there."""
        whole = b"".join(piece for _, piece in self.pieces)
        head, _, rest = whole.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"a stream was refused: {head[:200]!r}")
        arrivals, total = [], 0
        for moment, piece in self.pieces:
            total += len(piece)
            arrivals.append((total, moment))
        events, place, begun = [], 0, len(whole) - len(rest)
        flow = iter(arrivals)
        reached, moment = next(flow)
        while (line := rest.find(b"\r\n", place)) >= 0:
            size = int(rest[place:line], 16)
            chunk = rest[line + 2 : line + 2 + size]
            if size == 0 or len(chunk) < size:
                break
            place = line + 2 + size + 2
            if chunk.startswith(b"id: "):  # the server writes an event in one chunk
                while reached < begun + place - 2:
                    reached, moment = next(flow)
                data = chunk[chunk.index(b"data: ") + 6 :].rstrip(b"\n")
                events.append((moment, data))
        return events


async def _read(job: dict[str, Any]) -> dict[int, Received]:
    """Open all streams, and read until told to stop."""
    loop = asyncio.get_running_loop()
    gate = asyncio.Semaphore(_AT_ONCE)

    async def open_stream(number: int, token: str, address: str) -> tuple[int, Received]:
        request = (
            f"GET {address} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n"
            f"Authorization: Bearer {token}\r\n\r\n"
        )
        received = Received(request.encode())
        async with gate:
            await loop.create_connection(lambda: received, job["host"], job["port"])
            await received.opened.wait()
        return number, received

    streams = await asyncio.gather(*(open_stream(*one) for one in job["streams"]))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    return dict(streams)


def main(path: Path) -> None:
    """Do a job, and write its rows and the connections that were lost."""
    job = json.loads(path.read_text())
    streams = asyncio.run(_read(job))
    frames = []
    for number, received in streams.items():
        for moment, data in received.read_events():
            rows = pl.read_json(data, schema=_COLUMNS)
            frames.append(
                rows.with_columns(
                    pl.Series("stream", repeat(number, rows.height), pl.Int32),
                    pl.Series("arrival", repeat(moment, rows.height), pl.Float64),
                )
            )
    pl.concat(frames).write_parquet(job["rows"])
    print(sum(one.lost for one in streams.values()), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
