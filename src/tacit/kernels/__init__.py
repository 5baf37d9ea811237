"""Compile hot loops with Numba: once per machine, cached on disk, without the interpreter lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeVar, cast

import numba

from tacit.kernels.cache import KernelCache

P = ParamSpec("P")
R = TypeVar("R")

KERNELS: Final[dict[str, Any]] = {}
"""All kernels of the imported modules, by module and name."""


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a loop over arrays on first use and store the result on disk."""
    return _compile(function)


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a step of inner loops into each kernel that calls it.

    A call with many arrays takes longer than a short step, and compilers do not always inline it.
    """
    return _compile(function, forceinline=True)


def _compile(function: Callable[P, R], **more: bool) -> Callable[P, R]:
    # Nothing calls a kernel through a C function pointer, so that wrapper is not compiled.
    options: Any = {"nogil": True, "no_cfunc_wrapper": True, **more}
    kernel: Any = numba.njit(**options)(function)
    kernel._cache = KernelCache(function)
    KERNELS[f"{function.__module__}.{function.__qualname__}"] = kernel
    return cast("Callable[P, R]", kernel)
