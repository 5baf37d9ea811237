"""Measure the memory for a long stream and a large file, each in a separate process."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyarrow as pa

from benchmarks import data, ours
from benchmarks.data import Scale
from benchmarks.jobs import Setting
from benchmarks.report import Finding
from tacit.spec.specification import Specification

_BATCH = 1_000_000
_BYTES = 13
"""The bytes of an event in memory: subject, time and kind."""
_MIB = 1 << 20
_OFTEN = 0.002
"""Seconds between two samples of the memory."""


def memory(setting: Setting) -> Iterator[Finding]:
    """Measure resident memory while a stream, then a file, is processed."""
    kinds = (
        ("stream", setting.streamed, "the first million"),
        ("file", setting.filed, "loading the kernels"),
    )
    path = data.long_parquet(Scale(setting.filed), setting.folder)  # the writer's memory is ours
    for kind, events, early in kinds:
        command = [sys.executable, "-m", "benchmarks.memory", kind, str(events)]
        found = subprocess.run([*command, str(path)], capture_output=True, text=True, check=True)
        grown = json.loads(found.stdout)
        size = events * _BYTES / _MIB
        yield Finding(
            f"{events:,} events in a {kind}",
            f"of resident memory more than after {early} ({size:,.0f} MiB of events)",
            grown["most"] - grown["early"],
            target=500,
            bound="at most",
            unit="MiB",
            note=f"{grown['early']:,.0f} MiB early, {grown['most']:,.0f} MiB at most,"
            f" {grown['last']:,.0f} MiB at the end",
        )


def resident() -> float:
    """Return the resident memory of this process in MiB."""
    return float(psutil.Process().memory_info().rss) / _MIB


def _watch(spec: Specification, batches: Iterator[pa.RecordBatch]) -> dict[str, float]:
    """Push batches; return resident memory after the first ones, at most, and at the end."""
    seen: list[float] = []

    def noted() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            seen.append(resident())

    for _ in ours.push(spec, noted()):
        pass
    return {"early": seen[0], "most": max(seen), "last": seen[-1]}


def _read(spec: Specification, path: Path, scale: Scale) -> dict[str, float]:
    """Run over a file, after a few events that load the kernels."""
    for _ in ours.detect_each(spec, data.events(Scale(1_000, scale.subjects))):
        pass
    early = resident()
    with sampled() as seen:
        for _ in ours.detect_each(spec, path):
            pass
    return {"early": early, "most": max(seen), "last": resident()}


@contextmanager
def sampled(often: float = _OFTEN) -> Iterator[list[float]]:
    """Sample resident memory continuously, every so many seconds.

    The system's own maximum is not usable: on Linux it includes that of the parent process.
    """
    seen, done = [resident()], threading.Event()

    def sample() -> None:
        while not done.wait(often):
            seen.append(resident())

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()
        seen.append(resident())


def main(kind: str, events: int, path: Path) -> None:
    """Measure in this process and print the result."""
    scale = Scale(events)
    spec = ours.specification("AND", data.draw_queries(20), scale)
    if kind == "stream":
        found = _watch(spec, data.flow(scale, min(_BATCH, events)))
    else:
        found = _read(spec, path, scale)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
