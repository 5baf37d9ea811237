"""The line styles of mechanisms in figures, by their place in the list of mechanisms."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from tacit.spec.mechanisms import MECHANISMS


class LineStyle(NamedTuple):
    """A colour, a marker and a stroke, as matplotlib names them."""

    colour: str
    marker: str
    stroke: Any


_STYLES: Final = (
    LineStyle("#D55E00", "s", (0, (1, 1))),
    LineStyle("#0072B2", "^", (0, (5, 2))),
    LineStyle("#009E73", "o", "solid"),
    LineStyle("#CC79A7", "D", (0, (3, 1, 1, 1))),
    LineStyle("#E69F00", "v", (0, (7, 1))),
    LineStyle("#56B4E9", "P", (0, (2, 2))),
)


def choose_own_style(number: int) -> LineStyle:
    """Return the style of a method of one's own, by its place in the file."""
    free = _STYLES[len(MECHANISMS) :] or _STYLES
    return free[number % len(free)]


def find_mechanism_style(name: str) -> LineStyle | None:
    """Return the style of a mechanism; None for anything else.

    >>> find_mechanism_style("optimal").colour
    '#009E73'
    """
    if name not in MECHANISMS:
        return None
    return _STYLES[list(MECHANISMS).index(name) % len(_STYLES)]
