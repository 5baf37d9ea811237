"""End a Python worker together with the TaskManager that started it.

If a TaskManager is killed, Flink 2.3 leaves its Python workers behind. They would keep their memory
and their connections for ever.
"""

from __future__ import annotations

import os
import threading
import time
from functools import lru_cache
from pathlib import Path
from typing import Final

_CHECK_SECONDS: Final = 1.0
_PROGRAM: Final = "java"
_PARENT, _STARTED = 1, 19
"""The places of the parent and of the start time in /proc/PID/stat, after the program's name."""


@lru_cache(maxsize=1)
def end_with_taskmanager() -> None:
    """End this process when its TaskManager ends; call this in every worker, as often as you like.

    Without /proc, as on macOS, nothing is done.
    """
    taskmanager = _find_taskmanager()
    if taskmanager is not None:
        threading.Thread(
            target=_wait_for_end, args=taskmanager, name="tacit-worker-guard", daemon=True
        ).start()


def _wait_for_end(process: int, started: str) -> None:
    while True:
        found = _read(process)
        if found is None or found[2] != started:
            os._exit(1)  # other threads may never return
        time.sleep(_CHECK_SECONDS)


def _find_taskmanager() -> tuple[int, str] | None:
    """Find the process number and start time of the nearest ancestor that is a Java program."""
    process = os.getppid()
    while process > 1 and (found := _read(process)) is not None:
        program, parent, started = found
        if program == _PROGRAM:
            return process, started
        process = parent
    return None


def _read(process: int) -> tuple[str, int, str] | None:
    """Read the program, the parent and the start time of a process; None if it has ended."""
    try:
        text = Path("/proc", str(process), "stat").read_text()
    except OSError:
        return None
    head, _, rest = text.rpartition(")")
    fields = rest.split()
    if fields[0] in "ZX":
        return None
    return head.partition("(")[2], int(fields[_PARENT]), fields[_STARTED]
