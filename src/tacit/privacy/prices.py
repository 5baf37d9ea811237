"""The price of a window: what its draws cost the accounts that they depend on.

A window costs what it reveals. Where private events cannot change any answer the price is 0.
Elsewhere it is the audited loss of what is drawn in the window's context. Prices depend on public
events alone, so they may be public.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Final

from tacit.errors import PrivacyError
from tacit.privacy.channel_audit import Ratio
from tacit.privacy.exponentials import log_above

NANO: Final = 10**9
"""Nano-epsilon in an epsilon."""
_STEPS: Final = 1000
"""Prices are rounded up to so many parts of the most that a draw may cost."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What an account protects: a release that depends on one of its elements is charged to it."""

    elements: frozenset[str]
    most: int
    """The most that the draws of a window, or of a pane, can cost it, in nano-epsilon."""


@lru_cache(1 << 14)
def price_ratio(ratio: Ratio, most: int) -> int:
    """Return the price of a draw with this ratio between neighbours, in nano-epsilon.

    It is rounded up, so that few amounts are different, but never above `most`, for which the
    draw was audited.

    >>> price_ratio(Fraction(1), NANO), price_ratio(Fraction(2), NANO)
    (0, 694000000)
    """
    if ratio is None:
        raise PrivacyError("a draw without a finite epsilon cannot be charged")
    loss = ceil(Fraction(log_above(ratio)) * NANO)
    steps = -(-loss * _STEPS // most)
    return min(most, -(-steps * most // _STEPS))
