"""Eight bytes at once, wherever they stand: for loops that `tacit.kernels` compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

Bytes: TypeAlias = NDArray[np.uint8]

WORD = 8
"""Bytes in a word."""
BYTE = np.uint64(8)
"""Bits in a byte."""
whole = cast("Callable[[Any], int]", np.int64)
"""A number with a sign, which loops reckon with: to the compiler, one of 64 bits."""


def _address(context: Any, builder: Any, kind: Any, array: Any, at: Any, bits: int = 64) -> Any:
    data = context.make_array(kind)(context, builder, array).data
    byte = builder.gep(builder.bitcast(data, ir.IntType(8).as_pointer()), [at])
    return builder.bitcast(byte, ir.IntType(bits).as_pointer())


def _word_at(_typing: Any, data: Any, _at: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_address(context, builder, signature.args[0], *args), align=1)

    return types.uint64(data, types.int64), generate


def _put_word(_typing: Any, data: Any, _at: Any, _word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = _address(context, builder, signature.args[0], *args[:2])
        builder.store(args[2], address, align=1)
        return context.get_dummy_value()

    return types.void(data, types.int64, types.uint64), generate


def _copy_bytes(_typing: Any, data: Any, _at: Any, into: Any, _to: Any, _count: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source = _address(context, builder, signature.args[0], args[0], args[1], 8)
        target = _address(context, builder, signature.args[2], args[2], args[3], 8)
        copy: Any = cgutils.raw_memcpy
        copy(builder, target, source, args[4], 1)
        return context.get_dummy_value()

    return types.void(data, types.int64, into, types.int64, types.int64), generate


word_at = cast("Callable[[Bytes, int], np.uint64]", intrinsic(_word_at))
"""The word that begins at a byte, least byte first. Nothing checks that it is inside."""
put_word = cast("Callable[[Bytes, int, np.uint64], None]", intrinsic(_put_word))
"""Write a word that begins at a byte, least byte first. Nothing checks that it is inside."""
copy_bytes = cast("Callable[[Bytes, int, NDArray[Any], int, int], None]", intrinsic(_copy_bytes))
"""Copy bytes from a place in one array to one in another. Nothing checks that they are inside."""
