"""Eight numbers at once give what single numbers give."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tacit.kernels import compiled
from tacit.kernels.lanes import (
    LANES,
    add,
    add_product,
    count,
    divide,
    load,
    multiply,
    spread,
    store,
    total,
)

Singles = NDArray[np.float32]


@compiled
def _calculate(left: Singles, right: Singles, at: int, found: Singles) -> float:
    one, other = load(left, at), load(right, at)
    store(found, 0, add(one, other))
    store(found, LANES, multiply(one, other))
    store(found, 2 * LANES, divide(one, other))
    store(found, 3 * LANES, add_product(spread(left[0, 1]), one, other))
    return float(total(one))


@compiled
def _convert(parts: NDArray[np.uint16], factor: float, steps: NDArray[np.int64]) -> None:
    lanes = multiply(load(parts, 1), spread(np.float32(factor)))
    store(parts, 1, lanes)
    count(steps, 2, lanes)


def test_lanes_calculate_as_single_numbers_do() -> None:
    rng = np.random.default_rng(1)
    left, right = rng.random((2, 3, 7), dtype=np.float32) + np.float32(0.1)
    found = np.empty(4 * LANES, np.float32)
    for at in range(left.size - LANES + 1):
        sum_of = _calculate(left, right, at, found)
        one, other = (part.reshape(-1)[at : at + LANES] for part in (left, right))
        expected = [one + other, one * other, one / other]
        assert np.array_equal(found[: 3 * LANES], np.concatenate(expected))
        np.testing.assert_allclose(found[3 * LANES :], left[0, 1] + one * other, rtol=1e-6)
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
