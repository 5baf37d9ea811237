"""Machine code of kernels on disk, for Numba's dispatchers.

Numba's own cache has an index for each kernel, which it reads, extends and writes back: of two
processes that do so at once, one loses its entry. Here every compiled signature is a file of its
own, named by a digest of all that it depends on, written beside its place and then moved there. A
process that is killed leaves what it finished, and nothing half done.
"""

from __future__ import annotations

import logging
import os
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from types import FunctionType
from typing import Any, Final, cast

from numba.core import compiler, serialize

from tacit.kernels.folders import CacheFolders, cache_folders
from tacit.kernels.locks import KernelLock
from tacit.kernels.stamp import stamp_of

_LOG: Final = logging.getLogger(__name__)
_COMPILER: Final[Any] = compiler
_SERIALIZE: Final[Any] = serialize
_DIGEST: Final = 32
"""Bytes in front of the content: its digest."""
_STALE: Final = 7 * 86_400
"""Seconds after which what was compiled from other sources is removed."""


class KernelCache:
    """What a dispatcher of Numba needs of its cache, for one kernel."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = cast("FunctionType", function)
        self._locks: dict[str, KernelLock] = {}

    @property
    def cache_path(self) -> str | None:
        """Where it writes."""
        return None if self._folders.writable is None else str(self._folders.writable)

    def load_overload(self, signature: Any, context: Any) -> Any:
        """What was compiled for a signature.

        None means that the caller compiles it now. Until it has saved the result, other processes
        that want the same wait for it.
        """
        context.refresh()
        name = self._name(signature, context.codegen())
        found = self._load(name, context)
        if found is None and self._wait(name):
            found = self._load(name, context)
            if found is not None:
                self._locks.pop(name).release()
        return found

    def save_overload(self, signature: Any, result: Any) -> None:
        """Keep what was compiled. Without room on the disk, it serves this process only."""
        name = self._name(signature, result.library.codegen)
        try:
            if self._folders.writable is not None and not result.library.has_dynamic_globals:
                self._save(self._folders.writable, name, _SERIALIZE.dumps(result._reduce()))
        except OSError as error:
            _LOG.warning("A compiled kernel could not be kept: %s.", error.strerror)
        finally:
            lock = self._locks.pop(name, None)
            if lock is not None:
                lock.release()

    def is_kept(self, signature: Any, context: Any) -> bool:
        """Whether a signature has been compiled already, by anyone."""
        name = self._name(signature, context.codegen())
        return any((folder / name).exists() for folder in self._folders.readable)

    def is_taken(self, signature: Any, context: Any) -> bool:
        """Whether another process is compiling a signature."""
        if self._folders.writable is None:
            return False
        name = self._name(signature, context.codegen())
        lock = KernelLock(self._folders.writable, name)
        if not lock.acquire(patience=0):
            return True
        lock.release()
        return False

    def enable(self) -> None:
        """Do nothing: it is always in use."""

    def disable(self) -> None:
        """Do nothing: it is always in use."""

    def flush(self) -> None:
        """Remove what is kept of this kernel."""
        for path in self._kept():
            with suppress(OSError):
                path.unlink()

    @cached_property
    def _folders(self) -> CacheFolders:
        return cache_folders(Path(self._function.__code__.co_filename).parent)

    @cached_property
    def _stamp(self) -> str:
        # Only at the first use: a kernel may name a constant that is defined below it.
        return stamp_of(self._function)[:16]

    @cached_property
    def _title(self) -> str:
        module = self._function.__module__.rpartition(".")[2]
        return f"{module}.{self._function.__qualname__}"

    def _name(self, signature: Any, codegen: Any) -> str:
        """The file for a signature on this kind of processor."""
        described = repr((signature, codegen.magic_tuple(), self._stamp))
        return f"{self._title}-{self._stamp}-{sha256(described.encode()).hexdigest()[:32]}.nbc"

    def _kept(self) -> list[Path]:
        folder = self._folders.writable
        return [] if folder is None else list(folder.glob(f"{self._title}-*.nbc"))

    def _wait(self, name: str) -> bool:
        """Be the only one who compiles it; whether another process may just have done so."""
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
        with _written(folder / name) as file:
            file.write(sha256(content).digest() + content)
        before = time.time() - _STALE
        for path in self._kept():
            with suppress(OSError):
                if f"-{self._stamp}-" not in path.name and path.stat().st_mtime < before:
                    path.unlink()


@contextmanager
def _written(path: Path) -> Iterator[Any]:
    """A file that is there whole, or not at all, and that other users cannot write."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
            yield file
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
