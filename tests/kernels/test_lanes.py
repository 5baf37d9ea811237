"""Eight numbers at once give what single numbers give."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tacit.kernels import compiled
from tacit.kernels.lanes import (
    LANES,
    add,
    add_product,
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
