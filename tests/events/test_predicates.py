"""Conditions on one tuple: what is read, and what is refused."""

from __future__ import annotations

from fractions import Fraction

import polars as pl
import pytest
from pydantic import ValidationError

from tacit.events.predicates import parse_predicate
from tacit.events.types import EventType


@pytest.mark.parametrize(
    "where",
    [
        "AVG(a) > 2", "COUNT(*) > 1", "FIRST(a) > 1", "MAX(a) = a", "STDDEV(a) > 1",
        "CORR(a, b) > 1", "STRING_AGG(a) = 'x'", "SUM(a) OVER (PARTITION BY b) > 1",
        "ROW_NUMBER() OVER (ORDER BY a) > 1", "LAG(a) OVER (ORDER BY b) > 1",
        "RANK() OVER (ORDER BY a) = 1", "a > (SELECT 1)", "EXISTS (SELECT 1)", "UNNEST(a)",
        "a = ANY(b)", "RANDOM() > 0.5", "SELECT 1", '"^a.*$" > 1', '"*" > 1', "COLUMNS('a') > 1",
    ],
)  # fmt: skip
def test_whatever_depends_on_other_tuples_is_refused(where: str) -> None:
    with pytest.raises(ValueError, match=r"only conditions on one tuple|not an SQL expression"):
        parse_predicate(where)


@pytest.mark.parametrize(
    "where", ["NOW() > t", "CURRENT_TIMESTAMP > t", "current_date > t", "t < LOCALTIME"]
)
def test_the_clock_is_refused(where: str) -> None:
    with pytest.raises(ValueError, match="depends on the clock"):
        parse_predicate(where)


def test_the_name_of_the_clock_in_a_text_is_only_a_text() -> None:
    assert parse_predicate("a = 'NOW()' AND \"CURRENT_DATE\" > 1").columns == ("a", "CURRENT_DATE")


@pytest.mark.parametrize(
    "where",
    ["", "a >", "a > 5; b", "a ~ '('", "(" * 600 + "a" + ")" * 600,
     " OR ".join(["a > 1"] * 5000)],
)  # fmt: skip
def test_what_is_no_condition_is_refused(where: str) -> None:
    with pytest.raises(ValueError, match=r"SQL expression|regular expression"):
        parse_predicate(where)


def test_an_event_type_checks_its_condition() -> None:
    with pytest.raises(ValidationError, match="aggregate"):
        EventType(stream="gps", where="AVG(speed) > 2")


def test_columns_are_named_once_in_order_of_appearance() -> None:
    assert parse_predicate("b > 1 AND a < 2 OR b IN (3)").columns == ("b", "a")


def test_factors_are_the_parts_of_an_and_at_the_top() -> None:
    factors = parse_predicate("a > 1 AND b > 2 AND (a > 3 OR b > 4)").factors()
    assert [factor.columns for factor in factors] == [("a",), ("b",), ("a", "b")]


def test_steps_are_the_numbers_that_a_column_is_compared_with() -> None:
    assert parse_predicate("NOT (a > 1 OR a BETWEEN -2.5 AND 3)").steps() == (
        Fraction(1),
        Fraction(-5, 2),
        Fraction(3),
    )
    assert parse_predicate("a > 1 AND b > 1").steps() is None
    assert parse_predicate("a + 1 > 1").steps() is None
    assert parse_predicate("a > 9007199254740993").steps() is None


def test_a_computed_number_that_is_not_finite_is_null() -> None:
    frame = pl.DataFrame({"a": [1.0, 0.0, 1e308], "n": [0, 0, 1]})
    for where, expected in {
        "a / n > 0": [None, None, True],
        "NOT (a / n > 0)": [None, None, False],
        "LN(a) < 5": [True, None, False],
        "a * 10 > 1": [True, False, None],
        "1 / (a / n) >= 0": [None, None, True],
    }.items():
        predicate = parse_predicate(where).bind(frame.schema)
        assert frame.select(predicate.expression).to_series().to_list() == expected, where
