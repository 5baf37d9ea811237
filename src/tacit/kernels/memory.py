"""How kernels use the processor's cache."""

# ruff: noqa: ARG001  # Numba chooses the arguments of these functions.

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core import cgutils, extending

_NUMBA: Final[Any] = types
_IR: Final[Any] = ir
_GENERATED: Final[Any] = cgutils
_EXTENDING: Final[Any] = extending

LINE: Final = 64
"""Bytes that are loaded into the cache together."""
_READ, _NEARBY, _DATA = 0, 2, 1


@_EXTENDING.intrinsic  # type: ignore[untyped-decorator]  # Numba has no types
def prefetch(typing: Any, array: Any, place: Any) -> Any:
    """Begin to load a place of a contiguous array, and its line, into the cache.

    This only saves time: a place beyond the end of the array does no harm.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        byte, word = _IR.IntType(8).as_pointer(), _IR.IntType(32)
        kind = _IR.FunctionType(_IR.VoidType(), [byte, word, word, word])
        function = _GENERATED.get_or_insert_function(builder.module, kind, "llvm.prefetch")
        line = builder.bitcast(builder.gep(data, [arguments[1]]), byte)
        builder.call(function, [line, *map(word, (_READ, _NEARBY, _DATA))])
        return context.get_dummy_value()

    return _NUMBA.void(array, _NUMBA.uint64), generate
