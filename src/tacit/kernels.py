"""How hot loops are compiled: once for a machine, cached on disk, free of the interpreter lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import numba

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a loop over arrays on first use and keep the result on disk."""
    return cast("Callable[P, R]", numba.njit(cache=True, nogil=True)(function))
