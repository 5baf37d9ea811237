"""Shares are printed so that what is said about them is true as printed."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from tacit.quantities import format_share

SHARES = st.floats(0, 1)


@given(SHARES, SHARES)
@example(0.91996, 0.92)
@example(0.9204, 0.9204)
@example(0.99999, 1.0)
@example(0.9, 0.9)
@example(0.0001, 0.00005)
@example(0.99999, 0.99999)
@example(0.8999999999999999, 0.9)
def test_a_share_beside_a_requirement_shows_whether_it_reaches_it(
    share: float, required: float
) -> None:
    text = format_share(share, required)
    if text == "<0.001":
        assert share < 0.001 <= required
    elif text == ">0.999":
        assert share > 0.999 >= required
    else:
        assert (share < required) == (float(text) < required)


@given(SHARES)
def test_without_a_requirement_there_are_three_digits(share: float) -> None:
    text = format_share(share)
    assert len(text.lstrip("<>")) == 5
    assert (text in ("0.000", "1.000")) == (share in (0, 1))


def test_few_digits_are_added() -> None:
    assert format_share(0.91996, 0.92) == "0.91996"
    assert format_share(0.91951, 0.92) == "0.9195"
    assert format_share(0.9194, 0.92) == "0.919"
    assert format_share(0.9997, 0.9999) == "0.9997"
