"""Locks between processes: one of them compiles a kernel, the others wait for the result.

A lock is a byte of a file in the cache's folder. The operating system releases it when its process
ends. Locks only save work; the cache is correct without them.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

_TIMEOUT: Final = 60.0
"""Seconds to wait: longer than compiling takes, but the other process may be suspended."""
_PAUSE: Final = 0.01
_FILES: Final[dict[tuple[Path, int], int]] = {}
"""Open lock files, by folder and process: a fork does not inherit locks."""


class KernelLock:
    """The lock for compiling one kernel; `name` is the file of the result."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._byte = int.from_bytes(sha256(name.encode()).digest()[:7], "big")

    def acquire(self, *, timeout: float = _TIMEOUT) -> bool:
        """Wait for the lock; return whether it was acquired."""
        deadline = time.monotonic() + timeout
        try:
            file = _open_lock_file(self._folder)
        except OSError:
            return False
        while True:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._byte)
            except (BlockingIOError, PermissionError):
                if time.monotonic() >= deadline:
                    return False
                time.sleep(_PAUSE)
            except OSError:
                return False  # a file system without locks
            else:
                return True

    def release(self) -> None:
        """Release the lock."""
        with suppress(OSError):
            fcntl.lockf(_open_lock_file(self._folder), fcntl.LOCK_UN, 1, self._byte)


def release_all() -> None:
    """Release all locks of this process, after a failed compilation."""
    for (_, process), file in _FILES.items():
        if process == os.getpid():
            with suppress(OSError):
                fcntl.lockf(file, fcntl.LOCK_UN)


def _open_lock_file(folder: Path) -> int:
    """Open the lock file. Closing it would release all locks, so it stays open."""
    key = folder, os.getpid()
    if key not in _FILES:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        _FILES[key] = os.open(folder / "kernels.lock", os.O_RDWR | os.O_CREAT, 0o644)
    return _FILES[key]
