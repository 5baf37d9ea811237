"""What processes use: for scripts that run in environments of their own, with psutil."""

from __future__ import annotations

import psutil


def used() -> float:
    """Seconds of processor time of this process and all that it has started, so far."""
    this = psutil.Process()
    total = 0.0
    for process in (this, *this.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total
