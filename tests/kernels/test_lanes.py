"""Eight numbers at once give what single numbers give."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tacit.kernels import compiled
from tacit.kernels.lanes import (
    LANES,
    add,
    add_product,
    add_table,
    allocate_lanes,
    at_least,
    count,
    divide,
    load,
    multiply,
    select,
    spread,
    store,
    subtract,
    total,
    total_rows,
    transpose,
)

Singles = NDArray[np.float32]


@compiled
def _calculate(left: Singles, right: Singles, at: int, found: Singles) -> float:
    one, other = load(left, at), load(right, at)
    store(found, 0, add(one, other))
    store(found, LANES, multiply(one, other))
    store(found, 2 * LANES, divide(one, other))
    store(found, 3 * LANES, add_product(spread(left[0, 1]), one, other))
    store(found, 4 * LANES, subtract(one, other))
    return float(total(one))


@compiled
def _convert(parts: NDArray[np.uint16], factor: float, steps: NDArray[np.int64]) -> None:
    lanes = multiply(load(parts, 1), spread(np.float32(factor)))
    store(parts, 1, lanes)
    count(steps, 2, lanes)


@compiled
def _compare(left: Singles, right: Singles, found: NDArray[np.int32]) -> int:
    one, other = load(left, 0), load(right, 0)
    store(found, 0, select(one, other, spread(np.float32(7.9)), spread(np.float32(-1.0))))
    return int(at_least(one, other))


@compiled
def _exchange(array: Singles, place: int, found: Singles, at: int) -> None:
    transpose(array, place, array.shape[1], found, at, found.shape[1])


@compiled
def _add_table(shares: Singles, table: Singles, place: int, found: Singles) -> None:
    store(found, 0, add_table(load(shares, 0), table, place))


@compiled
def _add_up(singles: Singles, parts: NDArray[np.uint16], place: int, found: Singles) -> None:
    store(found, 0, total_rows(singles, place))
    store(found, LANES, total_rows(parts, place))
    for row in range(LANES):
        found[2 * LANES + row] = total(load(singles, place + row * LANES))
        found[3 * LANES + row] = total(load(parts, place + row * LANES))


def test_lanes_calculate_as_single_numbers_do() -> None:
    rng = np.random.default_rng(1)
    left, right = rng.random((2, 3, 7), dtype=np.float32) + np.float32(0.1)
    found = np.empty(5 * LANES, np.float32)
    for at in range(left.size - LANES + 1):
        sum_of = _calculate(left, right, at, found)
        one, other = (part.reshape(-1)[at : at + LANES] for part in (left, right))
        expected = [one + other, one * other, one / other]
        assert np.array_equal(found[: 3 * LANES], np.concatenate(expected))
        np.testing.assert_allclose(
            found[3 * LANES : 4 * LANES], left[0, 1] + one * other, rtol=1e-6
        )
        assert np.array_equal(found[4 * LANES :], one - other)
        np.testing.assert_allclose(sum_of, one.sum(), rtol=1e-6)


def test_whole_numbers_are_read_written_and_counted() -> None:
    parts = np.array([7, 0, 1, 2, 3, 40_000, 65_535, 65_534, 5, 9], np.uint16)
    steps = np.arange(12, dtype=np.int64) << 40
    before, counted = parts.copy(), steps.copy()
    _convert(parts, 0.75, steps)
    expected = (before[1:9] * np.float32(0.75)).astype(np.uint16)
    assert parts.tolist() == [7, *expected.tolist(), 9]
    counted[2:10] += expected
    assert steps.tolist() == counted.tolist()


def test_lanes_are_compared() -> None:
    rng = np.random.default_rng(2)
    for _ in range(20):
        left, right = rng.integers(0, 3, (2, LANES)).astype(np.float32)
        found = np.zeros(LANES, np.int32)
        bits = _compare(left, right, found)
        assert [bool(bits >> lane & 1) for lane in range(64)] == [*(left >= right), *[False] * 56]
        assert found.tolist() == np.where(left >= right, 7, -1).tolist()


def test_rows_and_columns_are_exchanged() -> None:
    array = np.arange(9 * 11, dtype=np.float32).reshape(9, 11)
    found = np.full((10, 13), -1, np.float32)
    _exchange(array, 11 + 2, found, 2 * 13 + 4)
    expected = np.full((10, 13), -1, np.float32)
    expected[2:10, 4:12] = array[1:9, 2:10].T
    assert np.array_equal(found, expected)


def test_rows_of_a_table_are_added_up() -> None:
    rng = np.random.default_rng(3)
    shares = rng.random(LANES, dtype=np.float32)
    table = rng.random((3 * LANES, LANES), dtype=np.float32)
    found = np.empty(LANES, np.float32)
    for row in (0, 1, 16):
        _add_table(shares, table, row * LANES, found)
        np.testing.assert_allclose(found, shares @ table[row : row + LANES], rtol=1e-6)


def test_sums_of_eight_rows_are_those_of_each() -> None:
    """To the last bit, in order."""
    rng = np.random.default_rng(4)
    singles = rng.random((20, LANES), dtype=np.float32)
    parts = rng.integers(0, 1 << 16, (20, LANES), np.uint16)
    found = np.empty(4 * LANES, np.float32)
    for row in (0, 5, 12):
        _add_up(singles, parts, row * LANES, found)
        assert np.array_equal(found[: 2 * LANES], found[2 * LANES :])
        own = parts[row : row + LANES].sum(axis=1, dtype=np.int64)
        assert found[LANES : 2 * LANES].tolist() == own.tolist()


def test_tables_begin_with_a_cache_line() -> None:
    for rows in (1, 7, 8, 1000):
        table = allocate_lanes((rows, 2, LANES))
        assert table.shape == (rows, 2, LANES)
        assert table.ctypes.data % 64 == 0
        table[:] = 1.5
        assert (table == 1.5).all()
