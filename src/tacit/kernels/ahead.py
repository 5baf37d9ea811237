"""Compile kernels in advance, with several processes.

Numba compiles in one thread of a process at a time. So helpers are separate processes: each
compiles kernels that no other process has compiled or is compiling, from the end of the list, while
this process starts at its beginning. They share only the cache on disk.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module, invalidate_caches
from typing import Any, Final

from numba.core.errors import NumbaError

from tacit.kernels import KERNELS
from tacit.kernels.locks import release_all
from tacit.kernels.signatures import parse_type
from tacit.kernels.threads import count_cores

_MOST_HELPERS: Final = 3
"""The most helpers; each needs about 200 MB of memory."""
_WORTHWHILE: Final = 4
"""The least kernels per process; with fewer, starting a helper does not pay off."""
_END_SECONDS: Final = 10.0
"""Seconds in which a helper must end; after that it is killed."""
_WAIT_SECONDS: Final = 0.2
"""Seconds between two looks at whether packages have been installed."""
_ALLOCATIONS: Final = 50_000
"""While kernels are compiled, garbage is collected after so many new objects. Compilers make many
objects that live on: collecting as often as usual takes a tenth of the time."""


@dataclass(frozen=True)
class KernelSignature:
    """A kernel for arguments of certain types."""

    name: str
    """Module and name."""
    types: tuple[Any, ...]
    """The argument types, as JSON."""

    @classmethod
    def of(cls, entry: Sequence[Any]) -> KernelSignature:
        """Create it from JSON."""
        return cls(entry[0], _to_tuples(entry[1]))

    def as_json(self) -> list[Any]:
        """Return it as JSON."""
        return [self.name, list(self.types)]


def _to_tuples(types: Any) -> Any:
    return tuple(_to_tuples(one) for one in types) if isinstance(types, list) else types


@dataclass(frozen=True)
class _Kernel:
    """A dispatcher, and the types to compile it for."""

    dispatcher: Any
    types: tuple[Any, ...]

    @property
    def is_kept(self) -> bool:
        return bool(self.dispatcher._cache.is_kept(self.types, self.dispatcher.targetctx))

    @property
    def can_be_kept(self) -> bool:
        return self.dispatcher._cache.cache_path is not None

    @property
    def is_taken(self) -> bool:
        return bool(self.dispatcher._cache.is_taken(self.types, self.dispatcher.targetctx))

    def compile(self, *, wait: bool) -> None:
        """Compile or load it; without `wait`, skip it if another process compiles it."""
        if wait or not self.is_taken:
            try:
                self.dispatcher.compile(self.types)
            except NumbaError:  # the recorded types are outdated
                release_all()


def compile_ahead(
    wanted: Sequence[KernelSignature],
    *,
    helpers: int | None = None,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> int:
    """Compile the kernels that are not cached yet; return how many.

    `progress` is called with the number of finished kernels and of all.
    """
    missing = _find_missing(wanted)
    if not missing:
        return 0
    progress(0, len(missing))
    with _run_helpers([signature for signature, _ in missing], helpers), _collect_rarely():
        for wait in (False, True):
            for _, kernel in missing:
                kernel.compile(wait=wait)
                progress(sum(one.is_kept for _, one in missing), len(missing))
    return len(missing)


@contextmanager
def compile_beside(
    wanted: Sequence[KernelSignature], *, helpers: int | None = None
) -> Iterator[None]:
    """Let helpers compile kernels while this process does something else.

    A process that compiles one of them already, such as the helper of `make demo`, counts as one.
    """
    missing = _find_missing(wanted)
    if helpers is None:
        helpers = max(_count_helpers() - sum(kernel.is_taken for _, kernel in missing), 0)
    with _run_helpers([signature for signature, _ in missing], helpers):
        yield


def count_unkept(wanted: Sequence[KernelSignature]) -> int:
    """Count the kernels that the next process must compile again, since they were not cached."""
    kernels = [kernel for _, kernel in _find(wanted) if not kernel.is_kept]
    return sum(one.types in one.dispatcher.overloads or not one.can_be_kept for one in kernels)


def help_compile(wanted: Sequence[KernelSignature], is_needed: Callable[[], bool]) -> None:
    """Compile kernels from the end of the list, as long as they are needed."""
    with _collect_rarely():
        for _, kernel in reversed(_find(wanted)):
            if not is_needed():
                return
            if not kernel.is_kept:
                kernel.compile(wait=False)


def help_install(wanted: Sequence[KernelSignature], installer: int, ancestor: int) -> None:
    """Compile kernels while packages are installed, and continue until an ancestor process ends.

    The packages are complete when the installer, the parent process, has ended; it may have ended
    already. Only then are kernels compiled whose modules could not be imported before.
    """

    def is_needed() -> bool:
        return os.getppid() == installer or _is_running(ancestor)

    help_compile(wanted, is_needed)
    while os.getppid() == installer:
        time.sleep(_WAIT_SECONDS)
    invalidate_caches()
    help_compile(wanted, is_needed)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True


@contextmanager
def _collect_rarely() -> Iterator[None]:
    """Collect garbage less often within the block."""
    before = gc.get_threshold()
    gc.set_threshold(max(_ALLOCATIONS, before[0]), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _find(wanted: Sequence[KernelSignature]) -> list[tuple[KernelSignature, _Kernel]]:
    """Find the existing kernels: the recorded list may be outdated."""
    found = []
    for signature in wanted:
        try:
            import_module(signature.name.rpartition(".")[0])
            dispatcher = KERNELS[signature.name]
            types = tuple(parse_type(one) for one in signature.types)
        except (ImportError, KeyError, ValueError):
            continue
        if dispatcher.py_func.__code__.co_argcount == len(types):
            found.append((signature, _Kernel(dispatcher, types)))
    return found


def _find_missing(wanted: Sequence[KernelSignature]) -> list[tuple[KernelSignature, _Kernel]]:
    """Find the kernels that are not cached yet, and can be."""
    found = [(signature, kernel) for signature, kernel in _find(wanted) if kernel.can_be_kept]
    return [(signature, kernel) for signature, kernel in found if not kernel.is_kept]


@contextmanager
def _run_helpers(wanted: Sequence[KernelSignature], helpers: int | None) -> Iterator[None]:
    """Run helper processes until the block ends: one for each other processor, or fewer."""
    if helpers is None:
        helpers = _count_helpers()
    helpers = min(helpers, len(wanted) // _WORTHWHILE) if sys.executable else 0
    task = json.dumps([one.as_json() for one in wanted]).encode()
    processes = []
    for _ in range(helpers):
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "tacit.kernels", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            break  # this process compiles alone
        processes.append(process)
        assert process.stdin is not None
        try:
            process.stdin.write(task)
            process.stdin.close()
        except OSError:
            continue
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _count_helpers() -> int:
    return min(count_cores() - 1, _MOST_HELPERS)
