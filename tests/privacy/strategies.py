"""Epsilons, tables and sources for the tests of the privacy room."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

from hypothesis import strategies as st

from tacit.privacy.channel_audit import Neighbours
from tacit.privacy.randomness import RandomSource


def epsilons(least: int = -9, most: int = 6) -> st.SearchStrategy[Fraction]:
    """From 10**least to about 10**most, all sizes alike: decimals, and shares of them."""
    decimals = st.builds(
        lambda digits, exponent: Fraction(Decimal(digits).scaleb(exponent - 4)),
        st.integers(10_000, 99_999),
        st.integers(least, most - 1),
    )
    return st.builds(lambda epsilon, parts: epsilon / parts, decimals, st.sampled_from([1, 3, 7]))


def groups(rows: int) -> st.SearchStrategy[list[Neighbours]]:
    """Neighbour relations, the groups of which may overlap."""
    some = st.lists(st.integers(0, rows - 1), min_size=1, max_size=rows, unique=True)
    return st.lists(st.builds(Neighbours, some, epsilons(-6, 2)), min_size=0, max_size=3)


class Scripted(RandomSource):
    """Given bytes, then zeros."""

    private = False

    def __init__(self, script: bytes) -> None:
        self._script = script

    def draw(self, number: int) -> bytes:
        """The next bytes of the script."""
        drawn, self._script = self._script[:number], self._script[number:]
        return drawn.ljust(number, b"\0")
