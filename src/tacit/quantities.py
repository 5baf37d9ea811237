"""Format numbers of things, and shares of a whole."""

from __future__ import annotations

from typing import Final

_MOST_DIGITS: Final = 17
"""More digits than these do not distinguish shares."""


def count(number: int, one: str, several: str | None = None) -> str:
    """Format a number of things.

    >>> count(1, "window"), count(2000, "query", "queries")
    ('1 window', '2,000 queries')
    """
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def format_share(share: float, required: float | None = None) -> str:
    """Format a share with three digits; only exact values show as 0.000 or 1.000.

    Beside a requirement it has as many digits as it takes to show which of the two is larger.

    >>> format_share(0.9198), format_share(0.99981), format_share(0.91996, 0.92)
    ('0.920', '>0.999', '0.91996')
    """
    if 0 < share < 0.0005 and (required is None or required >= 0.001):
        return "<0.001"
    if 0.9995 <= share < 1 and (required is None or required <= 0.999):
        return ">0.999"
    texts = [f"{share:.{digits}f}" for digits in range(3, _MOST_DIGITS)]
    if required is None:
        return texts[0]
    short = share < required
    return next((text for text in texts if (float(text) < required) == short), repr(share))
