"""Eight numbers at once, for the inner loops of kernels.

Compilers rarely find out by themselves that a loop over few numbers can be done in one step. Here
a kernel says so. `Lanes` are eight numbers of single precision, in a register. Arrays are
contiguous, and are read and written at a flat index; nothing checks that eight numbers are there.

Numbers are always added in the same order.
"""

# ruff: noqa: ARG001  # Numba calls these functions with what it knows.

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core import extending

LANES: Final = 8

_NUMBA: Final[Any] = types
_EXTENDING: Final[Any] = extending
_IR: Final[Any] = ir
_FLOATS: Final[Any] = _IR.VectorType(_IR.FloatType(), LANES)


class _LanesType(_NUMBA.Type):  # type: ignore[misc]  # Numba has no types
    def __init__(self) -> None:
        super().__init__(name="Lanes")


_LANES: Final = _LanesType()


@_EXTENDING.register_model(_LanesType)
class _LanesModel(_EXTENDING.models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _FLOATS)


def fill_lanes(numbers: int) -> int:
    """Return how many numbers there are with those that fill the last lanes."""
    return -(-numbers // LANES) * LANES


def _intrinsic(function: Callable[..., Any]) -> Any:
    """Make a function that kernels call, and that writes their code."""
    return _EXTENDING.intrinsic(function)


@_intrinsic
def load(typing: Any, array: Any, place: Any) -> Any:
    """Read eight numbers of an array, of single precision or of two bytes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0].dtype
        element = context.get_data_type(kind)
        found = _find(context, builder, signature, arguments, _IR.VectorType(element, LANES))
        numbers = builder.load(found)
        numbers.align = kind.bitwidth // 8
        return numbers if kind is types.float32 else builder.uitofp(numbers, _FLOATS)

    return _LANES(array, types.int64), generate


@_intrinsic
def store(typing: Any, array: Any, place: Any, lanes: Any) -> Any:
    """Write eight numbers to an array; whole numbers of two bytes are rounded down."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0].dtype
        element = context.get_data_type(kind)
        numbers = arguments[2]
        if kind is not types.float32:
            wide = _IR.VectorType(_IR.IntType(32), LANES)
            numbers = builder.fptosi(numbers, wide)
            numbers = builder.trunc(numbers, _IR.VectorType(element, LANES))
        found = _find(context, builder, signature, arguments, numbers.type)
        builder.store(numbers, found).align = kind.bitwidth // 8
        return context.get_dummy_value()

    return types.void(array, types.int64, _LANES), generate


@_intrinsic
def count(typing: Any, array: Any, place: Any, lanes: Any) -> Any:
    """Add eight numbers, rounded towards 0, to whole numbers of eight bytes in an array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        whole = _IR.VectorType(_IR.IntType(64), LANES)
        short = builder.fptosi(arguments[2], _IR.VectorType(_IR.IntType(32), LANES))
        found = _find(context, builder, signature, arguments, whole)
        before = builder.load(found)
        before.align = 8
        builder.store(builder.add(before, builder.sext(short, whole)), found).align = 8
        return context.get_dummy_value()

    return types.void(array, types.int64, _LANES), generate


@_intrinsic
def spread(typing: Any, number: Any) -> Any:
    """Return a number of single precision eight times."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        none = _IR.Constant(_FLOATS, _IR.Undefined)
        index = _IR.IntType(32)
        first = builder.insert_element(none, arguments[0], index(0))
        same = _IR.Constant(_IR.VectorType(index, LANES), [0] * LANES)
        return builder.shuffle_vector(first, none, same)

    return _LANES(types.float32), generate


@_intrinsic
def add(typing: Any, left: Any, right: Any) -> Any:
    """Return the sums of two times eight numbers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fadd(*arguments)

    return _LANES(_LANES, _LANES), generate


@_intrinsic
def multiply(typing: Any, left: Any, right: Any) -> Any:
    """Return the products of two times eight numbers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fmul(*arguments)

    return _LANES(_LANES, _LANES), generate


@_intrinsic
def add_product(typing: Any, before: Any, left: Any, right: Any) -> Any:
    """Return eight numbers plus the products of two times eight; may be rounded only once."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        before, left, right = arguments
        product = builder.fmul(left, right, flags=["contract"])
        return builder.fadd(before, product, flags=["contract"])

    return _LANES(_LANES, _LANES, _LANES), generate


@_intrinsic
def divide(typing: Any, left: Any, right: Any) -> Any:
    """Return the quotients of two times eight numbers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fdiv(*arguments)

    return _LANES(_LANES, _LANES), generate


@_intrinsic
def total(typing: Any, lanes: Any) -> Any:
    """Return the sum of eight numbers: each half is added to the other, three times."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        found, index = arguments[0], _IR.IntType(32)
        width = LANES
        while width > 1:
            width //= 2
            halves = [
                builder.shuffle_vector(
                    found,
                    _IR.Constant(found.type, _IR.Undefined),
                    _IR.Constant(_IR.VectorType(index, width), list(range(begin, begin + width))),
                )
                for begin in (0, width)
            ]
            found = builder.fadd(*halves)
        return builder.extract_element(found, index(0))

    return types.float32(_LANES), generate


def _find(context: Any, builder: Any, signature: Any, arguments: Any, kind: Any) -> Any:
    """Return a pointer to the element of an array at a flat index."""
    array = context.make_array(signature.args[0])(context, builder, value=arguments[0])
    first = builder.gep(array.data, [arguments[1]])
    return builder.bitcast(first, kind.as_pointer())
