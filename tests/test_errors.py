"""Errors keep what they know on the way between processes."""

from __future__ import annotations

import multiprocessing
from fractions import Fraction

import pytest

from tacit import errors
from tacit.errors import AuditError, Mistake, PatternError, SpecificationError, TacitError

EXAMPLES = [
    SpecificationError([Mistake("no such stream", "spec.yaml", 3, 7), Mistake("no query")]),
    PatternError("expected a name", 1, 5, pattern="visit", word="SEQQ"),
    AuditError(asked=Fraction(1), true=Fraction(3, 2), high=0, low=1, column=2),
    errors.ServiceError("not found", 404),
]


def _raise(number: int) -> None:
    raise EXAMPLES[number]


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_error_of_another_process_is_the_same_error(number: int) -> None:
    expected = EXAMPLES[number]
    with multiprocessing.get_context("fork").Pool(1) as pool, pytest.raises(TacitError) as raised:
        pool.apply_async(_raise, (number,)).get(timeout=60)
    assert type(raised.value) is type(expected)
    assert str(raised.value) == str(expected)
    assert vars(raised.value) == vars(expected)
