"""Kernels compiled before they are needed, by several processes at once.

Numba compiles in one thread of a process at a time. So helpers are processes of their own: each
compiles what nobody has compiled or is compiling, from the end of the list, while this process
goes through it from the beginning. They share nothing but the cache on disk.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from numba.core.errors import NumbaError

from tacit.kernels import KERNELS
from tacit.kernels.locks import release_all
from tacit.kernels.signatures import parse_type

_MOST_HELPERS: Final = 3
"""Each needs some 200 MB of memory."""
_WORTHWHILE: Final = 4
"""Kernels for each process; for fewer a helper's start takes longer than it saves."""


@dataclass(frozen=True)
class KernelSignature:
    """A kernel for arguments of certain types."""

    name: str
    """Module and name."""
    types: tuple[Any, ...]
    """As JSON."""

    @classmethod
    def of(cls, entry: Sequence[Any]) -> KernelSignature:
        """As it is written in JSON."""
        return cls(entry[0], _frozen(entry[1]))

    def as_json(self) -> list[Any]:
        """To be written as JSON."""
        return [self.name, list(self.types)]


def _frozen(types: Any) -> Any:
    return tuple(_frozen(one) for one in types) if isinstance(types, list) else types


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

    def compile(self, *, wait: bool) -> None:
        """Compile or load it; unless told to wait, leave it to a process that is at it."""
        dispatcher = self.dispatcher
        if wait or not dispatcher._cache.is_taken(self.types, dispatcher.targetctx):
            try:
                dispatcher.compile(self.types)
            except NumbaError:  # the advice is older than the kernel
                release_all()


def compile_ahead(
    wanted: Sequence[KernelSignature],
    *,
    helpers: int | None = None,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> int:
    """Compile what is not kept yet, and say how many that were.

    `progress` hears how many of them are done.
    """
    found = [(signature, kernel) for signature, kernel in _found(wanted) if kernel.can_be_kept]
    missing = [(signature, kernel) for signature, kernel in found if not kernel.is_kept]
    if not missing:
        return 0
    if helpers is None:
        helpers = min(_processors() - 1, _MOST_HELPERS)
    helpers = min(helpers, len(missing) // _WORTHWHILE) if sys.executable else 0
    progress(0, len(missing))
    with _helping([signature for signature, _ in missing], helpers):
        for wait in (False, True):
            for _, kernel in missing:
                kernel.compile(wait=wait)
                progress(sum(one.is_kept for _, one in missing), len(missing))
    return len(missing)


def count_unkept(wanted: Sequence[KernelSignature]) -> int:
    """How many will have to be compiled again by the next process, since they were not kept."""
    kernels = [kernel for _, kernel in _found(wanted) if not kernel.is_kept]
    return sum(one.types in one.dispatcher.overloads or not one.can_be_kept for one in kernels)


def help_compile(wanted: Sequence[KernelSignature], parent: int) -> None:
    """Compile, from the end, what nobody else does; stop when the process to help is gone."""
    for _, kernel in reversed(_found(wanted)):
        if os.getppid() != parent:
            return
        if not kernel.is_kept:
            kernel.compile(wait=False)


def _found(wanted: Sequence[KernelSignature]) -> list[tuple[KernelSignature, _Kernel]]:
    """Those that there are: what is wanted is advice, and may be older than the kernels."""
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


@contextmanager
def _helping(wanted: Sequence[KernelSignature], helpers: int) -> Iterator[None]:
    """Helpers at work, until this process is done itself."""
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
            break  # then this process does it alone
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
            process.wait()


def _processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
