"""Eight numbers at once, for the inner loops of kernels.

Compilers rarely find out by themselves that a loop over few numbers can be done in one step. Here
a kernel says so. `Lanes` are eight numbers of single precision, in a register. Arrays are
contiguous, and are read and written at a flat index; nothing checks that eight numbers are there.

Numbers are always added in the same order.
"""

# ruff: noqa: ARG001  # Numba chooses the arguments of these functions.

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import extending
from numpy.typing import NDArray

LANES: Final = 8
_CACHE_LINE: Final = 64
"""Bytes."""

_NUMBA: Final[Any] = types
_EXTENDING: Final[Any] = extending
_IR: Final[Any] = ir
_FLOATS: Final[Any] = _IR.VectorType(_IR.FloatType(), LANES)


class _LanesType(_NUMBA.Type):  # type: ignore[misc]  # Numba has no types
    def __init__(self) -> None:
        super().__init__(name="Lanes")


_LANES: Final = _LanesType()
Lanes: TypeAlias = Any
"""Eight numbers, in annotations."""


@_EXTENDING.register_model(_LanesType)
class _LanesModel(_EXTENDING.models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _FLOATS)


def fill_lanes(numbers: int) -> int:
    """Return how many numbers there are with those that fill the last lanes."""
    return -(-numbers // LANES) * LANES


def allocate_lanes(shape: Sequence[int]) -> NDArray[np.float32]:
    """Return an array with arbitrary content, whose pairs of rows of eight are in a cache line."""
    size = 4 * math.prod(shape)
    octets = np.empty(size + _CACHE_LINE, np.uint8)
    begin = -octets.ctypes.data % _CACHE_LINE
    return octets[begin : begin + size].view(np.float32).reshape(shape)


def _intrinsic(function: Callable[..., Any]) -> Any:
    """Make a function that kernels call, and that writes their code."""
    return _EXTENDING.intrinsic(function)


@_intrinsic
def load(typing: Any, array: Any, place: Any) -> Any:
    """Read eight numbers of an array, of single precision or of one or two bytes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _load(context, builder, signature.args[0], *arguments)

    return _LANES(array, types.int64), generate


@_intrinsic
def store(typing: Any, array: Any, place: Any, lanes: Any) -> Any:
    """Write eight numbers to an array; whole numbers of two or four bytes are rounded to 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0].dtype
        element = context.get_data_type(kind)
        numbers = arguments[2]
        if kind is not types.float32:
            wide = _IR.VectorType(_IR.IntType(32), LANES)
            numbers = builder.fptosi(numbers, wide)
            if kind.bitwidth < 32:
                numbers = builder.trunc(numbers, _IR.VectorType(element, LANES))
        array, place = arguments[:2]
        found = _find(context, builder, signature.args[0], array, place, numbers.type)
        builder.store(numbers, found).align = kind.bitwidth // 8
        return context.get_dummy_value()

    return types.void(array, types.int64, _LANES), generate


@_intrinsic
def count(typing: Any, array: Any, place: Any, lanes: Any) -> Any:
    """Add eight numbers, rounded towards 0, to whole numbers of eight bytes in an array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        whole = _IR.VectorType(_IR.IntType(64), LANES)
        short = builder.fptosi(arguments[2], _IR.VectorType(_IR.IntType(32), LANES))
        array, place = arguments[:2]
        found = _find(context, builder, signature.args[0], array, place, whole)
        before = builder.load(found)
        before.align = 8
        builder.store(builder.add(before, builder.sext(short, whole)), found).align = 8
        return context.get_dummy_value()

    return types.void(array, types.int64, _LANES), generate


@_intrinsic
def count_rows(typing: Any, array: Any, place: Any, lanes: Any, factor: Any, table: Any) -> Any:
    """Do the same for eight rows of eight: those of a table, multiplied with lanes and a factor.

    Each row is multiplied with one of the lanes. Rows follow each other, in both arrays from the
    same place on.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, place, lanes, factor, table = arguments
        whole = _IR.VectorType(_IR.IntType(64), LANES)
        for lane in range(LANES):
            share = builder.fmul(_spread_lane(builder, lanes, lane), factor)
            row = builder.load(_find(context, builder, signature.args[4], table, place, _FLOATS))
            row.align = 4
            product = builder.fmul(share, row)
            short = builder.fptosi(product, _IR.VectorType(_IR.IntType(32), LANES))
            found = _find(context, builder, signature.args[0], array, place, whole)
            before = builder.load(found)
            before.align = 8
            builder.store(builder.add(before, builder.sext(short, whole)), found).align = 8
            place = builder.add(place, _IR.Constant(place.type, LANES))
        return context.get_dummy_value()

    return types.void(array, types.int64, _LANES, _LANES, table), generate


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
def subtract(typing: Any, left: Any, right: Any) -> Any:
    """Return the differences of two times eight numbers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fsub(*arguments)

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
def add_rows(typing: Any, before: Any, lanes: Any, array: Any, place: Any, step: Any) -> Any:
    """Return eight numbers plus eight rows of an array, each multiplied with one of the lanes.

    The array is of single precision, and rows are `step` apart. The same as `add_product` for one
    row after the other.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        found, lanes, array, place, step = arguments
        for lane in range(LANES):
            share = _spread_lane(builder, lanes, lane)
            row = builder.load(_find(context, builder, signature.args[2], array, place, _FLOATS))
            row.align = 4
            product = builder.fmul(share, row, flags=["contract"])
            found = builder.fadd(found, product, flags=["contract"])
            place = builder.add(place, step)
        return found

    return _LANES(_LANES, _LANES, array, types.int64, types.int64), generate


@_intrinsic
def add_table(typing: Any, lanes: Any, array: Any, place: Any) -> Any:
    """Return the sum of eight rows that follow each other, each multiplied with one of the lanes.

    The array is of single precision or of bytes. Two rows are taken at once: the even ones are
    added up, and the odd ones.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes, array, place = arguments
        index = _IR.IntType(32)
        both = _IR.VectorType(_IR.FloatType(), 2 * LANES)
        found = None
        for lane in range(0, LANES, 2):
            chosen = [lane] * LANES + [lane + 1] * LANES
            shares = builder.shuffle_vector(
                lanes,
                _IR.Constant(_FLOATS, _IR.Undefined),
                _IR.Constant(_IR.VectorType(index, 2 * LANES), chosen),
            )
            rows = _load(context, builder, signature.args[1], array, place, 2 * LANES)
            product = builder.fmul(shares, rows, flags=["contract"])
            found = product if found is None else builder.fadd(found, product, flags=["contract"])
            place = builder.add(place, _IR.Constant(place.type, 2 * LANES))
        halves = [
            builder.shuffle_vector(
                found,
                _IR.Constant(both, _IR.Undefined),
                _IR.Constant(_IR.VectorType(index, LANES), list(range(begin, begin + LANES))),
            )
            for begin in (0, LANES)
        ]
        return builder.fadd(*halves)

    return _LANES(_LANES, array, types.int64), generate


@_intrinsic
def at_least(typing: Any, left: Any, right: Any) -> Any:
    """Return a word with a bit for each of eight numbers that is at least the other."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        found = builder.fcmp_ordered(">=", *arguments)
        octet = builder.bitcast(found, _IR.IntType(LANES))
        return builder.zext(octet, _IR.IntType(64))

    return types.uint64(_LANES, _LANES), generate


@_intrinsic
def find_one(typing: Any, word: Any) -> Any:
    """Return the number of the lowest bit that is set in a word other than 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], _IR.IntType(1)(1))

    return types.int64(types.uint64), generate


@_intrinsic
def select(typing: Any, left: Any, right: Any, yes: Any, no: Any) -> Any:
    """Return `yes` where the left one of two times eight numbers is at least the right one."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        left, right, yes, no = arguments
        return builder.select(builder.fcmp_ordered(">=", left, right), yes, no)

    return _LANES(_LANES, _LANES, _LANES, _LANES), generate


@_intrinsic
def transpose(
    typing: Any, array: Any, place: Any, step: Any, found: Any, at: Any, width: Any
) -> Any:
    """Write eight times eight numbers with rows and columns exchanged.

    Rows are `step` apart in the array, of single precision or of two bytes, and `width` apart where
    they go, in single precision.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, place, step, found, at, width = arguments
        forms = signature.args[0], signature.args[3]
        rows = []
        for _ in range(LANES):
            rows.append(_load(context, builder, forms[0], array, place))
            place = builder.add(place, step)
        # Exchange blocks of four by four, then of two by two, then single numbers.
        for size in (4, 2, 1):
            rows = [
                builder.shuffle_vector(
                    rows[number & ~size],
                    rows[number | size],
                    _IR.Constant(
                        _IR.VectorType(_IR.IntType(32), LANES),
                        [
                            (lane & ~size) + (LANES if lane & size else 0)
                            if not number & size
                            else (lane | size) + (LANES if lane & size else 0)
                            for lane in range(LANES)
                        ],
                    ),
                )
                for number in range(LANES)
            ]
        for row in rows:
            place = _find(context, builder, forms[1], found, at, _FLOATS)
            builder.store(row, place).align = 4
            at = builder.add(at, width)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64, found, types.int64, types.int64), generate


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


@_intrinsic
def total_rows(typing: Any, array: Any, place: Any) -> Any:
    """Return the sums of eight rows of eight numbers that follow each other, as `total` has them.

    The array is of single precision or of two bytes.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, place = arguments
        rows = []
        for _ in range(LANES):
            rows.append(_load(context, builder, signature.args[0], array, place))
            place = builder.add(place, _IR.Constant(place.type, LANES))
        width = LANES
        while width > 1:
            width //= 2
            begins = range(0, LANES, 2 * width)
            halves = [
                [
                    half + begin + other + n
                    for begin in begins
                    for other in (0, LANES)
                    for n in range(width)
                ]
                for half in (0, width)
            ]
            rows = [
                builder.fadd(
                    *(
                        builder.shuffle_vector(
                            rows[n],
                            rows[n + width],
                            _IR.Constant(_IR.VectorType(_IR.IntType(32), LANES), half),
                        )
                        for half in halves
                    )
                )
                for n in range(width)
            ]
        return rows[0]

    return _LANES(array, types.int64), generate


def _spread_lane(builder: Any, lanes: Any, lane: int) -> Any:
    """Return one of eight numbers eight times."""
    same = _IR.Constant(_IR.VectorType(_IR.IntType(32), LANES), [lane] * LANES)
    return builder.shuffle_vector(lanes, _IR.Constant(_FLOATS, _IR.Undefined), same)


def _load(context: Any, builder: Any, form: Any, array: Any, place: Any, width: int = LANES) -> Any:
    """Return some numbers of an array, of single precision or whole and not negative."""
    vector = _IR.VectorType(context.get_data_type(form.dtype), width)
    numbers = builder.load(_find(context, builder, form, array, place, vector))
    numbers.align = form.dtype.bitwidth // 8
    if form.dtype is types.float32:
        return numbers
    return builder.uitofp(numbers, _IR.VectorType(_IR.FloatType(), width))


def _find(context: Any, builder: Any, form: Any, array: Any, place: Any, kind: Any) -> Any:
    """Return a pointer to the element of an array of a type at a flat index."""
    made = context.make_array(form)(context, builder, value=array)
    first = builder.gep(made.data, [place])
    return builder.bitcast(first, kind.as_pointer())
