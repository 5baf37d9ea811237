"""Exponentials and logarithms are on the safe side, and tight."""

from __future__ import annotations

from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tacit.errors import PrivacyError
from tacit.privacy.channels import Channel
from tacit.privacy.exponentials import (
    exp_below,
    format_epsilon,
    joint_epsilon,
    log_above,
    parse_epsilon,
    product_within,
)
from tests.privacy.strategies import epsilons

# Decimal's own exp and ln are right to the last digit: an independent judge.
JUDGE = Context(prec=200, Emax=MAX_EMAX, Emin=MIN_EMIN)
CLOSE = Fraction(1, 10**150)


def judged(value: Fraction) -> Decimal:
    return JUDGE.divide(Decimal(value.numerator), Decimal(value.denominator))


def exp_between(epsilon: Fraction) -> tuple[Fraction, Fraction]:
    """exp(epsilon) from both sides; the judge's argument itself is rounded at 200 digits."""
    value = Fraction(JUDGE.exp(judged(epsilon)))
    return value * (1 - CLOSE), value * (1 + CLOSE)


@given(epsilons(), st.sampled_from([32, 192, 320]))
@example(Fraction(1, 10**9), 192)
@example(Fraction(10**6), 192)
@example(Fraction(1, 256), 192)
def test_exp_below_lies_below_and_near(epsilon: Fraction, bits: int) -> None:
    below = exp_below(epsilon, bits)
    least, most = exp_between(epsilon)
    assert below < most
    assert least * (1 - Fraction(1, 2**bits)) < below


@given(epsilons(most=3))
def test_exp_below_of_a_share_is_strictly_below_where_exp_has_no_end(epsilon: Fraction) -> None:
    assert exp_below(epsilon) < exp_between(epsilon)[0] * (1 + 2 * CLOSE)
    assert exp_below(epsilon) > 1


def test_exp_of_zero_is_one() -> None:
    assert exp_below(0) == 1


def test_exp_below_has_bounded_size() -> None:
    largest = exp_below(10**6)
    assert largest.numerator.bit_length() < 1_450_000
    assert exp_below(Decimal("1e-9")).numerator.bit_length() < 300


@given(st.integers(1, 2**64), st.integers(1, 2**64))
@example(2**63 - 1, 1)
@example(2**63 + 1, 2**63)
def test_log_above_lies_above_and_near(one: int, other: int) -> None:
    ratio = Fraction(max(one, other), min(one, other))
    above = log_above(ratio)
    true = Fraction(JUDGE.ln(judged(ratio)))
    assert true * (1 - CLOSE) - CLOSE <= Fraction(above) <= true * (1 + Fraction(3, 10**19))
    assert len(above.as_tuple().digits) <= 20


def test_log_of_a_product_of_many_ratios() -> None:
    assert Fraction(joint_epsilon([Fraction(2**64)] * 1000)) >= 44361
    assert joint_epsilon([]) == 0


@given(epsilons(-6, 1), st.integers(1, 7))
def test_flips_with_equal_shares_are_together_within_the_whole(
    epsilon: Fraction, parts: int
) -> None:
    finding = Channel.flip(epsilon / parts).audit().worst
    assert finding is not None
    assert finding.ratio is not None
    assert product_within([finding.ratio] * parts, epsilon)
    assert not product_within([finding.ratio] * parts, epsilon * Fraction(9, 10))


@given(epsilons())
def test_what_is_written_is_read_back(epsilon: Fraction) -> None:
    assert Fraction(format_epsilon(epsilon)) == epsilon


@pytest.mark.parametrize(
    ("epsilon", "shown"),
    [("0.5", "0.5"), ("10", "10"), ("1e-9", "0.000000001"), ("1/3", "1/3"), ("100", "100")],
)
def test_decimals_are_written_as_such(epsilon: str, shown: str) -> None:
    assert format_epsilon(Fraction(epsilon)) == shown


@pytest.mark.parametrize(
    "epsilon", [0.5, True, "1", None, Decimal("NaN"), Decimal("inf"), -1, 10**6 + 1]
)
def test_what_is_no_exact_epsilon_is_refused(epsilon: Any) -> None:
    exp_below(1)
    for function in (parse_epsilon, exp_below):
        with pytest.raises(PrivacyError, match="epsilon must be"):
            function(epsilon)


def test_a_ratio_below_one_has_no_epsilon() -> None:
    with pytest.raises(PrivacyError, match="at least 1"):
        log_above(Fraction(1, 2))
