"""Compile hot loops with Numba: once per machine, cached on disk, without the interpreter lock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, ParamSpec, TypeVar, cast

import numba
from numba import types

from tacit.kernels.cache import KernelCache

P = ParamSpec("P")
R = TypeVar("R")

KERNELS: Final[dict[str, Any]] = {}
"""All kernels of the imported modules, by module and name."""


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a loop over arrays on first use and store the result on disk."""
    kernel = _compile(function)
    resolve = kernel.get_call_template

    def resolve_call(args: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Compile for the types of constants, not once more for each constant."""
        return resolve(tuple(types.unliteral(one) for one in args), keywords)

    kernel.get_call_template = resolve_call
    return cast("Callable[P, R]", kernel)


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a step of inner loops into each kernel that calls it.

    A call with many arrays takes longer than a short step, and compilers do not always inline it.
    It is compiled once for each constant that it is called with. Only kernels can call it.
    """
    kernel = _compile(function, forceinline=True, no_cpython_wrapper=True)

    def refuse(*_: Any, **__: Any) -> Any:
        raise TypeError(f"{function.__qualname__} can only be called from kernels")

    def add_overload(result: Any) -> None:
        # Without a wrapper there is nothing that Python could call.
        kernel.overloads[tuple(result.signature.args)] = result

    kernel.add_overload, kernel._compile_for_args = add_overload, refuse
    return cast("Callable[P, R]", kernel)


def _compile(function: Callable[..., Any], **more: bool) -> Any:
    # Nothing calls a kernel through a C function pointer, so that wrapper is not compiled.
    options: Any = {"nogil": True, "no_cfunc_wrapper": True, **more}
    kernel: Any = numba.njit(**options)(function)
    kernel._cache = KernelCache(function)
    KERNELS[f"{function.__module__}.{function.__qualname__}"] = kernel
    return kernel
