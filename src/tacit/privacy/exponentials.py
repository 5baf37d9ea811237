"""Certified bounds of exponentials and logarithms, in exact arithmetic.

An epsilon is exact: a whole number, a decimal or a fraction, never a float.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import ROUND_CEILING, Context, Decimal
from fractions import Fraction
from functools import lru_cache
from math import prod
from typing import TypeAlias

from tacit.errors import PrivacyError

Exact: TypeAlias = Decimal | Fraction | int
"""The types in which an epsilon can be given."""

LARGEST = 1_000_000
"""The largest allowed epsilon."""
DIGITS = 20
"""The number of significant digits of a logarithm."""


def parse_epsilon(epsilon: Exact) -> Fraction:
    """Return an epsilon as a fraction; raise PrivacyError unless it is exact and in range."""
    if isinstance(epsilon, bool) or not isinstance(epsilon, Decimal | Fraction | int):
        raise PrivacyError(
            "epsilon must be exact: a Decimal, a Fraction or an int, such as Decimal('0.5');"
            f" got a {type(epsilon).__name__}"
        )
    if isinstance(epsilon, Decimal) and not epsilon.is_finite():
        raise PrivacyError(f"epsilon must be a finite number; got {epsilon}")
    if not 0 <= epsilon <= LARGEST:
        raise PrivacyError(f"epsilon must be between 0 and {LARGEST}; got {float(epsilon):g}")
    return epsilon if type(epsilon) is Fraction else Fraction(epsilon)


def format_epsilon(epsilon: Fraction) -> str:
    """Format an epsilon as a decimal number if it is finite, otherwise as a fraction.

    >>> format_epsilon(Fraction(1, 8)), format_epsilon(Fraction(2)), format_epsilon(Fraction(1, 3))
    ('0.125', '2', '1/3')
    """
    rest, places = epsilon.denominator, 0
    while rest % 2 == 0 or rest % 5 == 0:
        rest //= 10 if rest % 10 == 0 else 5 if rest % 5 == 0 else 2
        places += 1
    if rest > 1:
        return str(epsilon)
    digits = str(epsilon.numerator * 10**places // epsilon.denominator).rjust(places + 1, "0")
    return f"{digits[:-places]}.{digits[-places:]}".rstrip("0") if places else digits


def exp_below(epsilon: Exact, bits: int = 192) -> Fraction:
    """Return a lower bound of exp(epsilon) with a relative error below 2**-bits.

    Every step rounds down. With `r = epsilon / 2**k < 2**-8`, in units of 2**-w:

    - The series for exp(r) has positive terms, so its rounded-down partial sum is a lower bound.
      Each of its at most w/8 + 1 terms, and r itself, loses less than one unit. The terms after
      the first one below a unit sum to less than a unit. This is at most w/4 + 8 in all.
    - Squaring k times doubles the relative loss each time and adds at most 2 units in the
      w digits that remain: at most (w/4 + 10) * 2**k in all.

    With w = bits + k + 8 + the number of binary digits of (bits + k), this is below 2**-bits.
    The result has about 1.45 * epsilon + w binary digits.
    """
    return _exp_below(parse_epsilon(epsilon), bits)


@lru_cache(maxsize=256)
def _exp_below(amount: Fraction, bits: int) -> Fraction:
    if amount == 0:
        return Fraction(1)
    halvings = (amount.numerator // amount.denominator).bit_length() + 8
    width = bits + halvings + 8 + (bits + halvings).bit_length()
    reduced = (amount.numerator << width) // (amount.denominator << halvings)
    mantissa = term = 1 << width
    number = 0
    while term:
        number += 1
        term = term * reduced // (number << width)
        mantissa += term
    exponent = -width
    for _ in range(halvings):
        mantissa, exponent = mantissa * mantissa, 2 * exponent
        surplus = max(0, mantissa.bit_length() - width)
        mantissa, exponent = mantissa >> surplus, exponent + surplus
    return Fraction(mantissa << max(0, exponent), 1 << max(0, -exponent))


def log_above(ratio: Fraction) -> Decimal:
    """Return a tight upper bound of ln(ratio), as a decimal of 20 digits.

    A guess is raised in its last digit until `exp_below` certifies it, so the result does not
    depend on the accuracy of the guess.
    """
    above = ratio - 1
    if above < 0:
        raise PrivacyError("the larger probability comes first: a ratio is at least 1")
    if above == 0:
        return Decimal(0)
    # The number of binary digits in which the ratio agrees with 1: they are lost in the logarithm.
    lost = max(0, above.denominator.bit_length() - above.numerator.bit_length() + 1)
    wide = Context(prec=DIGITS + 10 + lost // 3)
    quotient = wide.divide(Decimal(ratio.numerator), Decimal(ratio.denominator))
    last = Context(prec=DIGITS, rounding=ROUND_CEILING)
    guess = last.plus(wide.ln(quotient))
    while exp_below(guess, max(192, 4 * DIGITS + lost + 32)) < ratio:
        guess = last.next_plus(guess)
    return guess


def product_within(ratios: Iterable[Fraction], epsilon: Exact) -> bool:
    """Return whether the product of independent ratios is within exp(epsilon), exactly.

    >>> product_within([Fraction(2), Fraction(3)], Decimal("1.8"))
    True
    >>> product_within([Fraction(2), Fraction(3)], Decimal("1.7"))
    False
    """
    return prod(ratios, start=Fraction(1)) <= exp_below(epsilon, 256)


def joint_epsilon(ratios: Iterable[Fraction]) -> Decimal:
    """Return the epsilon of independent ratios together, rounded up.

    >>> joint_epsilon([Fraction(2), Fraction(3)])
    Decimal('1.7917594692280550009')
    """
    return log_above(prod(ratios, start=Fraction(1)))
