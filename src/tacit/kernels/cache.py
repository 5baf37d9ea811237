"""A cache of compiled kernels on disk, for Numba's dispatchers.

Numba's own cache has an index per kernel, which it reads, extends and writes back. If two processes
do so at the same time, one entry is lost. Here every compiled signature is a separate file, named
by a hash of everything that it depends on, written under a temporary name and then renamed. A
killed process leaves only complete files.
"""

from __future__ import annotations

import logging
import os
import pickle
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from types import FunctionType
from typing import Any, Final, cast

from numba.core import compiler, runtime, serialize

from tacit.kernels.folders import CacheFolders, find_cache_folders
from tacit.kernels.locks import KernelLock
from tacit.kernels.stamp import compute_stamp

_LOG: Final = logging.getLogger(__name__)
_COMPILER: Final[Any] = compiler
_SERIALIZE: Final[Any] = serialize
_RUNTIME: Final[Any] = runtime
_DIGEST: Final = 32
"""The bytes of the digest in front of the content."""
_STALE: Final = 7 * 86_400
"""Seconds after which kernels of other versions of the source are removed."""


class KernelCache:
    """The cache of one kernel, with the interface that Numba's dispatchers need."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._function = cast("FunctionType", kernel.py_func)
        self._locks: dict[str, KernelLock] = {}

    @property
    def cache_path(self) -> str | None:
        """The folder that it writes to."""
        return None if self._folders.writable is None else str(self._folders.writable)

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Load what was compiled for a signature.

        After None the caller compiles it. Until it has saved the result, other processes that need
        the same kernel wait.
        """
        # What Numba needs to compile is not loaded here: it takes a third of a second, and Numba
        # loads it when it compiles.
        _RUNTIME.rtsys.initialize(context)
        name = self._name(signature, context.codegen())
        found = self._load(name, context)
        if found is None and self._take_lock(name):
            found = self._load(name, context)
            if found is not None:
                self._locks.pop(name).release()
        return found

    def save_overload(self, signature: Any, result: Any) -> None:
        """Store what was compiled. If the disk is full, only this process can use it."""
        name = self._name(signature, result.library.codegen)
        try:
            if self._folders.writable is not None and not result.library.has_dynamic_globals:
                self._save(self._folders.writable, name, _SERIALIZE.dumps(result._reduce()))
        except OSError as error:
            _LOG.warning("A compiled kernel could not be stored: %s.", error.strerror)
        finally:
            lock = self._locks.pop(name, None)
            if lock is not None:
                lock.release()

    def is_kept(self, signature: Any, context: Any) -> bool:
        """Return whether a signature has been compiled already."""
        name = self._name(signature, context.codegen())
        return any((folder / name).exists() for folder in self._folders.readable)

    def is_taken(self, signature: Any, context: Any) -> bool:
        """Return whether another process is compiling a signature."""
        if self._folders.writable is None:
            return False
        name = self._name(signature, context.codegen())
        lock = KernelLock(self._folders.writable, name)
        if not lock.acquire(timeout=0):
            return True
        lock.release()
        return False

    def enable(self) -> None:
        """Do nothing: the cache is always enabled."""

    def disable(self) -> None:
        """Do nothing: the cache is always enabled."""

    def flush(self) -> None:
        """Remove the files of this kernel."""
        for path in self._list_files():
            with suppress(OSError):
                path.unlink()

    @cached_property
    def _folders(self) -> CacheFolders:
        return find_cache_folders(Path(self._function.__code__.co_filename).parent)

    @cached_property
    def _stamp(self) -> str:
        # On first use: a kernel may use a constant that is defined after it.
        return compute_stamp(self._kernel)[:16]

    @cached_property
    def _title(self) -> str:
        module = self._function.__module__.rpartition(".")[2]
        return f"{module}.{self._function.__qualname__}"

    def _name(self, signature: Any, codegen: Any) -> str:
        """Return the file name for a signature on this kind of processor."""
        description = repr((signature, codegen.magic_tuple(), self._stamp))
        return f"{self._title}-{self._stamp}-{sha256(description.encode()).hexdigest()[:32]}.nbc"

    def _list_files(self) -> list[Path]:
        folder = self._folders.writable
        return [] if folder is None else list(folder.glob(f"{self._title}-*.nbc"))

    def _take_lock(self, name: str) -> bool:
        """Take the lock for compiling; return whether another process may have finished it."""
        if self._folders.writable is None:
            return False
        lock = KernelLock(self._folders.writable, name)
        if lock.acquire():
            self._locks[name] = lock
            return True
        return False

    def _load(self, name: str, context: Any) -> Any:
        for folder in self._folders.readable:
            try:
                content = (folder / name).read_bytes()
            except OSError:
                continue
            if sha256(content[_DIGEST:]).digest() == content[:_DIGEST]:
                return _COMPILER.CompileResult._rebuild(context, *pickle.loads(content[_DIGEST:]))
        return None

    def _save(self, folder: Path, name: str, content: bytes) -> None:
        with _write_atomically(folder / name) as file:
            file.write(sha256(content).digest() + content)
        before = time.time() - _STALE
        for path in self._list_files():
            with suppress(OSError):
                if f"-{self._stamp}-" not in path.name and path.stat().st_mtime < before:
                    path.unlink()


@contextmanager
def _write_atomically(path: Path) -> Iterator[Any]:
    """Write a file atomically; other users cannot write it."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
            yield file
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
