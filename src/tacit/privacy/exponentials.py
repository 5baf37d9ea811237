"""Exponentials and logarithms that are certainly on the safe side, in whole numbers.

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
"""An epsilon as it is handed over."""

LARGEST = 1_000_000
"""The largest epsilon that is reckoned with."""
DIGITS = 20
"""How many digits of a logarithm are given."""


def exact(epsilon: Exact) -> Fraction:
    """An epsilon as a fraction; what is no exact number from 0 to a million is refused."""
    if isinstance(epsilon, bool) or not isinstance(epsilon, Decimal | Fraction | int):
        raise PrivacyError(
            "epsilon must be exact: a Decimal, a Fraction or an int, such as Decimal('0.5');"
            f" got a {type(epsilon).__name__}"
        )
    if isinstance(epsilon, Decimal) and not epsilon.is_finite():
        raise PrivacyError(f"epsilon must be a finite number; got {epsilon}")
    if not 0 <= epsilon <= LARGEST:
        raise PrivacyError(f"epsilon must be between 0 and {LARGEST}; got {float(epsilon):g}")
    return Fraction(epsilon)


def written(epsilon: Fraction) -> str:
    """An epsilon as people write it: a decimal number if it has an end, else a fraction.

    >>> written(Fraction(1, 8)), written(Fraction(2)), written(Fraction(1, 3))
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
    """A fraction that is at most exp(epsilon), and less by a share below 2**-bits.

    Every step rounds down. With `r = epsilon / 2**k < 2**-8`, in units of 2**-w:

    - The series for exp(r) has positive terms, so its rounded-down start is a lower bound.
      Each of its at most w/8 + 1 terms, and r itself, loses less than one unit, and what
      comes after the first term below a unit is less than a unit: at most w/4 + 8 in all.
    - Squaring k times doubles the relative loss each time and adds at most 2 units of the
      w digits that are kept: at most (w/4 + 10) * 2**k in all.

    With w = bits + k + 8 + the number of binary digits of (bits + k), this is below 2**-bits.
    The result has about 1.45 * epsilon + w binary digits.
    """
    return _exp_below(exact(epsilon), bits)


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
    """A decimal of 20 digits that is at least ln(ratio), and hardly more.

    A guess is raised by its last digit until `exp_below` certifies it, so nothing rests on
    how the guess was made.
    """
    above = ratio - 1
    if above < 0:
        raise PrivacyError("the larger probability comes first: a ratio is at least 1")
    if above == 0:
        return Decimal(0)
    # How many binary digits the ratio agrees with 1 in: so many the logarithm cannot show.
    lost = max(0, above.denominator.bit_length() - above.numerator.bit_length() + 1)
    wide = Context(prec=DIGITS + 10 + lost // 3)
    quotient = wide.divide(Decimal(ratio.numerator), Decimal(ratio.denominator))
    last = Context(prec=DIGITS, rounding=ROUND_CEILING)
    guess = last.plus(wide.ln(quotient))
    while exp_below(guess, max(192, 4 * DIGITS + lost + 32)) < ratio:
        guess = last.next_plus(guess)
    return guess


def product_within(ratios: Iterable[Fraction], epsilon: Exact) -> bool:
    """Whether independent ratios together stay within exp(epsilon), exactly.

    >>> product_within([Fraction(2), Fraction(3)], Decimal("1.8"))
    True
    >>> product_within([Fraction(2), Fraction(3)], Decimal("1.7"))
    False
    """
    return prod(ratios, start=Fraction(1)) <= exp_below(epsilon, 256)


def joint_epsilon(ratios: Iterable[Fraction]) -> Decimal:
    """What independent ratios give away together, rounded up.

    >>> joint_epsilon([Fraction(2), Fraction(3)])
    Decimal('1.7917594692280550009')
    """
    return log_above(prod(ratios, start=Fraction(1)))
