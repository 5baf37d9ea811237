"""Memory that is used again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tacit.events.scratch import Scratch

LARGE = 1 << 20


def address(array: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> int:
    """Where an array's memory begins."""
    return int(array.__array_interface__["data"][0])


def test_memory_that_nobody_refers_to_is_given_out_again() -> None:
    scratch = Scratch(np.int32)
    place = address(scratch.empty(LARGE))
    assert address(scratch.empty(LARGE - 5)) == place
    assert len(scratch.empty(LARGE - 5)) == LARGE - 5


def test_memory_of_which_a_part_is_held_is_not_given_out() -> None:
    scratch = Scratch(np.int32)
    part = scratch.empty(LARGE)[3:9][::2]
    part[:] = 7
    for _ in range(20):
        scratch.empty(LARGE)[:] = 1
    assert part.tolist() == [7, 7, 7]


def test_arrays_that_are_held_are_apart_however_many_there_are() -> None:
    scratch = Scratch(np.uint64, 2)
    held = [scratch.empty(LARGE // 16) for _ in range(30)]
    for number, array in enumerate(held):
        array[:] = number
    assert all(array.shape == (LARGE // 16, 2) for array in held)
    assert all((array == number).all() for number, array in enumerate(held))


def test_threads_never_get_the_same_memory() -> None:
    scratch = Scratch(np.int32)

    def work(number: int) -> bool:
        for _ in range(200):
            array = scratch.empty(1 << 15)
            array[:] = number
            if not (array == number).all():
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))
