"""Choose the cases of a test that `make test` runs; `make soak` runs all of them.

@pytest.mark.cases(2)
@pytest.mark.parametrize("seed", range(9))
def test_something(seed): ...
"""

from __future__ import annotations

from zlib import crc32


def choose_cases(name: str, cases: int, number: int) -> set[int]:
    """Choose so many cases, evenly spread.

    If only one is chosen, its place depends on the name of the test: where many tests have the same
    cases, such as databases, each of them is tried by some.
    """
    if number == 1:
        return {crc32(name.encode()) % cases}
    return {round(place * (cases - 1) / (number - 1)) for place in range(number)}
