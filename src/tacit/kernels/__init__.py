"""Compile hot loops with Numba: once per machine, cached on disk, without the interpreter lock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, ParamSpec, TypeVar, cast

import numba
from numba import types

from tacit.kernels.cache import KernelCache

P = ParamSpec("P")
R = TypeVar("R")

_NUMBA: Final[Any] = types

KERNELS: Final[dict[str, Any]] = {}
"""All kernels of the imported modules, by module and name."""


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a loop over arrays on first use and store the result on disk."""
    return _compile(function, {})


def lean(function: Callable[P, R]) -> Callable[P, R]:
    """Do the same for a loop that makes no arrays and calls only lean and inlined functions.

    Then references to arrays need not be counted. Otherwise each step of an inner loop that takes
    arrays or slices counts them up and down, which can take many times as long as the step.
    """
    return _compile(function, {"_nrt": False})


def _compile(function: Callable[P, R], options: dict[str, Any]) -> Callable[P, R]:
    # Nothing calls a kernel through a C function pointer, so that wrapper is not compiled.
    usual: Any = {"nogil": True, "no_cfunc_wrapper": True}
    kernel: Any = numba.njit(**usual, **options)(function)
    kernel._cache = KernelCache(kernel)
    resolve = kernel.get_call_template

    def resolve_call(args: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Compile for the types of constants, not once more for each constant."""
        return resolve(tuple(_NUMBA.unliteral(one) for one in args), keywords)

    kernel.get_call_template = resolve_call
    KERNELS[f"{function.__module__}.{function.__qualname__}"] = kernel
    return cast("Callable[P, R]", kernel)


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a step into each kernel that calls it, as if it were written there.

    For steps of inner loops: a call with many arrays takes longer than a short step, and compilers
    do not always inline it. Also for parts of one kernel: it compiles faster as a whole.
    """
    return cast("Callable[P, R]", numba.njit(nogil=True, inline="always")(function))
