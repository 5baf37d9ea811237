"""Measure processes, for scripts in separate environments with psutil."""

from __future__ import annotations

from collections.abc import Sequence

import psutil


def find_processes() -> list[psutil.Process]:
    """Return this process and all its children."""
    this = psutil.Process()
    return [this, *this.children(recursive=True)]


def used(processes: Sequence[psutil.Process] | None = None) -> float:
    """Return the seconds of processor time of these processes so far: by default ours."""
    total = 0.0
    for process in find_processes() if processes is None else processes:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total
