"""A hash of everything that a kernel's machine code depends on.

Numba checks only the kernel's own file for changes. But a kernel contains the kernels that it calls
and the constants that it uses, wherever they are defined. So the stamp is computed from the values
themselves: the function's code, every global that the code uses, and the same for every function
among them.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, Final

import numba
import numpy as np
from numba import types

_PLAIN: Final = (bool, int, float, complex, str, bytes, type(None), type(...))
_CODE: Final = (
    "co_code",
    "co_exceptiontable",
    "co_names",
    "co_varnames",
    "co_freevars",
    "co_cellvars",
    "co_argcount",
    "co_posonlyargcount",
    "co_kwonlyargcount",
    "co_flags",
)
_SETTINGS: Final = ("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "BOUNDSCHECK", "DEBUGINFO_DEFAULT")
"""Settings of Numba that change the compiled code."""


def compute_stamp(function: Any) -> str:
    """Hash everything that affects the compiled code of a function or kernel."""
    digest = sha256(_describe_environment().encode())
    for part in _describe(function, set()):
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()


@cache
def _describe_environment() -> str:
    """Describe what affects the compiled code besides its source."""
    versions = [version(name) for name in ("numba", "llvmlite", "numpy")]
    settings = [getattr(numba.config, name, None) for name in _SETTINGS]
    return repr((sys.version, sys.byteorder, versions, settings))


def _describe(value: Any, seen: set[int]) -> Iterator[str]:
    """Describe a value; `seen` are the functions that are already described."""
    options = getattr(value, "targetoptions", {})
    if options.get("inline") == "always":
        yield "inlined"
    if options.get("_nrt") is False:
        yield "lean"
    value = getattr(value, "py_func", getattr(value, "_defn", value))  # a kernel, an intrinsic
    if isinstance(value, FunctionType):
        yield f"function {value.__module__}.{value.__qualname__}"
        if id(value) not in seen and not _is_library(value.__module__):
            seen.add(id(value))
            yield from _describe_function(value, seen)
    elif isinstance(value, CodeType):
        yield from (repr(getattr(value, name)) for name in _CODE)
        yield from _describe(value.co_consts, seen)
    elif isinstance(value, _PLAIN):
        yield f"{type(value).__name__} {value!r}"
    elif isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        yield f"{type(value).__name__} {value.dtype.str} {value.shape} {value.tobytes().hex()}"
    elif isinstance(value, tuple | list):
        yield f"{type(value).__name__} {len(value)}"
        for one in value:
            yield from _describe(one, seen)
    elif isinstance(value, frozenset):
        yield from sorted(" ".join(_describe(one, seen)) for one in value)
    elif isinstance(value, np.dtype | types.Type):
        yield repr(value)
    elif isinstance(value, ModuleType) and _is_library(value.__name__):
        yield f"module {value.__name__}"
    elif isinstance(value, type | np.ufunc | BuiltinFunctionType) and _is_library(
        getattr(value, "__module__", "numpy")
    ):
        yield f"{type(value).__name__} {value.__name__}"
    else:
        # It is unknown how Numba uses it, so any change to the package counts.
        yield f"{type(value).__qualname__} {_hash_package()}"


def _describe_function(function: FunctionType, seen: set[int]) -> Iterator[str]:
    yield from _describe(function.__code__, seen)
    yield from _describe(function.__defaults__, seen)
    for cell in function.__closure__ or ():
        yield from _describe(cell.cell_contents, seen)
    for name in sorted(_find_names(function.__code__)):
        if name in function.__globals__:
            yield f"global {name}"
            yield from _describe(function.__globals__[name], seen)
        elif not hasattr(builtins, name):
            yield f"attribute {name}"


def _find_names(code: CodeType) -> set[str]:
    """Return all names that a function and its inner functions look up."""
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    return set(code.co_names).union(*(_find_names(one) for one in inner))


def _is_library(module: str | None) -> bool:
    """Return whether a module belongs to a library, whose version is part of the stamp."""
    return (module or "").partition(".")[0] in {"numba", "numpy", "llvmlite", "math", "builtins"}


@cache
def _hash_package() -> str:
    """Hash all sources of the package."""
    root = Path(__file__).parent.parent
    digest = sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
