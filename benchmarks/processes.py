"""Measure processes, for scripts in separate environments with psutil."""

from __future__ import annotations

import psutil


def used() -> float:
    """Return the seconds of processor time of this process and all its children so far."""
    this = psutil.Process()
    total = 0.0
    for process in (this, *this.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total
