"""Intervals of counts from answers cover what they say, with every mechanism and decoder.

`tests/insight/test_counts.py` tests two combinations each time; here are the others. Memory needs
`optimal` and posterior decoding.
"""

from __future__ import annotations

import pytest

from tests.insight.test_counts import (
    test_intervals_cover_the_truth_of_fresh_data_as_often_as_they_say as check_coverage,
)


@pytest.mark.parametrize(
    ("mechanism", "decode", "memory"),
    [
        ("uniform", "posterior", False),
        ("adaptive", "literal", False),
        ("adaptive", "posterior", False),
        ("optimal", "literal", False),
        ("optimal", "posterior", False),
    ],
)
def test_intervals_cover_with_every_mechanism_and_decoder(
    mechanism: str, decode: str, memory: bool
) -> None:
    check_coverage(mechanism, decode, memory)
