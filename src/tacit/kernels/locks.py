"""Locks between processes: one of them compiles a kernel, the others wait for the result.

A lock is a byte of a file in the cache's folder; the operating system frees it when its process
ends, however that happens. Locks only save work. Without them the cache is right, too.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

_PATIENCE: Final = 60.0
"""Seconds to wait; longer than a kernel takes. Its compiler may have been stopped."""
_PAUSE: Final = 0.01
_FILES: Final[dict[tuple[Path, int], int]] = {}
"""Open files with locks, by folder and process: a fork has none of its parent's locks."""


class KernelLock:
    """The right to compile a kernel whose result has this name."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._byte = int.from_bytes(sha256(name.encode()).digest()[:7], "big")

    def acquire(self, *, patience: float = _PATIENCE) -> bool:
        """Wait for it; False if it could not be had."""
        deadline = time.monotonic() + patience
        try:
            file = _lock_file(self._folder)
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
        """Let others have it."""
        with suppress(OSError):
            fcntl.lockf(_lock_file(self._folder), fcntl.LOCK_UN, 1, self._byte)


def release_all() -> None:
    """Let others have every lock of this process: after a compilation that failed."""
    for (_, process), file in _FILES.items():
        if process == os.getpid():
            with suppress(OSError):
                fcntl.lockf(file, fcntl.LOCK_UN)


def _lock_file(folder: Path) -> int:
    """The file whose bytes are locks. To close it would free them all, so it stays open."""
    key = folder, os.getpid()
    if key not in _FILES:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        _FILES[key] = os.open(folder / "kernels.lock", os.O_RDWR | os.O_CREAT, 0o644)
    return _FILES[key]
