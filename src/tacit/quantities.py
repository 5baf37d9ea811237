"""Format numbers of things."""

from __future__ import annotations


def count(number: int, one: str, several: str | None = None) -> str:
    """Format a number of things.

    >>> count(1, "window"), count(2000, "query", "queries")
    ('1 window', '2,000 queries')
    """
    return f"{number:,} {one if number == 1 else several or one + 's'}"
