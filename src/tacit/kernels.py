"""How hot loops are compiled: once for a machine, cached on disk, free of the interpreter lock."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numba

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a loop over arrays on first use and keep the result on disk."""
    kernel: Any = numba.njit(cache=True, nogil=True)(function)
    # Numba looks only at the kernel's own file for changes. One that calls a kernel or uses a
    # constant of another file would go on as it was before that one changed, and give wrong
    # answers. There is no public way to say so; a Numba that keeps it elsewhere does as usual.
    with suppress(AttributeError):
        stamp = _sources(Path(function.__code__.co_filename).parent)
        kernel._cache._cache_file._source_stamp = stamp
    return cast("Callable[P, R]", kernel)


@cache
def _sources(room: Path) -> str:
    """What the files of a room that hold kernels contain."""
    texts = [path.read_bytes() for path in sorted(room.glob("*.py"))]
    kernels = [text for text in texts if b"tacit.kernels" in text]
    return sha256(b"\0".join(kernels)).hexdigest()
