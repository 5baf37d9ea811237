"""Conditions on one tuple: what is read, and what is refused."""

from __future__ import annotations

import os
import re
from fractions import Fraction
from pathlib import Path
from unittest.mock import patch

import polars as pl
import pytest
from pydantic import ValidationError

from tacit.events.functions import FUNCTIONS, build_value, check_functions
from tacit.events.predicates import parse_predicate
from tacit.events.sql import parse_sql
from tacit.events.types import EventType
from tacit.events.values import Value


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


@pytest.mark.parametrize("where", ["state = \u2018on\u2019", "state = \u201con\u201d"])
def test_curly_quotes_get_a_hint(where: str) -> None:
    with pytest.raises(ValueError, match=r"at character 9 .*; text takes straight quotes: 'on'"):
        parse_predicate(where)


def test_a_keyword_as_a_value_gets_a_hint_about_quotes() -> None:
    with pytest.raises(ValueError, match=r"Text takes single quotes: 'in'"):
        parse_predicate("kind = in")


def test_an_event_type_checks_its_condition() -> None:
    with pytest.raises(ValidationError, match="aggregate"):
        EventType(stream="gps", where="AVG(speed) > 2")


@pytest.mark.parametrize(
    "name", ["at", "order", "limit", "table", "date", "time", "timestamp", "left", "values", "any"]
)
def test_a_column_may_have_the_name_of_a_word_that_means_nothing_in_its_place(name: str) -> None:
    assert parse_predicate(f"{name} > 1 AND {name} IS NOT NULL").columns == (name,)


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


@pytest.mark.parametrize(
    "where",
    [
        "kind IN (SELECT nope FROM read_csv('{path}'))",
        "kind = (SELECT nope FROM '{path}')",
        "EXISTS (SELECT * FROM read_parquet('{path}'))",
        "read_csv('{path}') = 1",
        "kind = 1 UNION SELECT * FROM read_csv('{path}')",
        "kind IN (TABLE read_ndjson('{path}'))",
        "kind IN (FROM read_csv('{path}'))",
    ],
)
def test_to_read_a_condition_opens_no_file(where: str, tmp_path: Path) -> None:
    """Nobody writes to the FIFO, so that to open it would hang."""
    fifo = tmp_path / "notes.csv"
    os.mkfifo(fifo)
    with pytest.raises(ValueError, match=r"only conditions on one tuple|not an SQL") as caught:
        parse_predicate(where.format(path=fifo))
    assert "notes" not in str(caught.value)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("LPAD(name, 2000000000, 'x') = 'a'", "between 0 and 16384"),
        ("RPAD(name, n, 'x') = 'a'", "must be a constant"),
        ("REPEAT(name, 1000000) = 'a'", "REPEAT is not among"),
        ("REPLACE(REPLACE(name, 'a', 'aaaaaaaaa'), 'a', 'aaaaaaaaa') = 'b'", "could build a text"),
        ("CONCAT(" + ", ".join(["name"] * 65) + ") = 'b'", "could build a text"),
        ("name = '" + "x" * 70_000 + "'", "longer than 65536"),
        ("name ~ other", "must be a constant"),
        ("name ~ '" + "a" * 1001 + "'", "at most 1000 characters"),
        (r"name ~ '(\w{100}){100}'", "too large when compiled"),
        ("name ~ '('", "regular expression that is not valid"),
        ("(" * 60 + "a" + ")" * 60, "nested more than 50"),
        ("NOT " * 60 + "a", "nested more than 50"),
        (" + ".join(["a"] * 60) + " > 1", "nested more than 50"),
        ("a IN (" + ", ".join(["1"] * 6000) + ")", "more than 5000 parts"),
        ("a BETWEEN 1 AND 2" + " BETWEEN 1 AND 2" * 20, "more than 5000 parts"),
    ],
)  # fmt: skip
def test_what_an_expression_may_build_is_bounded(where: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_predicate(where)


@pytest.mark.parametrize("depth", [1, 10, 15])
def test_texts_that_grow_in_every_step_are_refused_before_they_are_built(depth: int) -> None:
    where = "name"
    for _ in range(depth):
        where = f"REPLACE({where}, 'a', 'aaaa')"
    if depth == 1:
        parse_predicate(f"{where} = 'b'")
    else:
        with pytest.raises(ValueError, match="could build a text"):
            parse_predicate(f"{where} = 'b'")


@pytest.mark.parametrize(
    "where",
    [
        "DATE(d) < '2024-06-01'", "TIMESTAMP(d) < '2024-06-01'", "DATETIME(d) < '2024-06-01'",
        "TIME(d) < TIME '10:00'", "DATE(LOWER(d)) < '2024-06-01'",
    ],
)  # fmt: skip
def test_a_format_that_would_be_inferred_is_refused_with_what_to_write(where: str) -> None:
    with pytest.raises(ValueError, match=r"infer it from other tuples. Write \w+\(.*, '%"):
        parse_predicate(where)


@pytest.mark.parametrize("where", ["CAST(d AS DATE) < '2024-06-01'", "d::timestamp IS NULL"])
def test_a_cast_of_text_to_a_time_is_refused(where: str) -> None:
    with pytest.raises(ValueError, match="must not be inferred from other tuples"):
        parse_predicate(where).bind(pl.Schema({"d": pl.String}))


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("STRPTIME(d, '%Q') > '2024-01-01'", "does not describe a time"),
        ("STRPTIME(d, f) > '2024-01-01'", "must be a constant"),
        ("STRPTIME(d, '%H:%M') > '2024-01-01'", "does not describe a time"),
        ("d > DATE '2024-13-01'", "expected a date such as"),
        ("d > TIMESTAMP 'tomorrow'", "expected a time such as"),
        ("d > INTERVAL '1 month'", "expected a duration"),
        ("EXTRACT(CENTURY FROM d) = 1", "EXTRACT knows YEAR"),
        ("d AT TIME ZONE 'Mars' > '2024-01-01'", "name of a time zone"),
        ("CAST(a AS DECIMAL(10, 2)) > 1", "without brackets"),
        ("CAST(a AS JSON) > 1", "CAST knows"),
        ("t.a > 1", "without a table"),
        ("LENGHT(a) > 1", r"Did you mean 'LENGTH'\?"),
        ("ABS(a, 2) > 1", r"expected ABS\(number\)"),
    ],
)  # fmt: skip
def test_a_mistake_is_said_with_what_was_expected(where: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_predicate(where)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("7 % 3", 1), ("-7 % 3", -1), ("7 % -3", 1), ("-7.5 % 2", -1.5), ("7 / 2", 3.5),
        ("1 / 0", None), ("2 + 3 * 4", 14), ("-(2 + 3)", -5), ("10 - 3 - 2", 5),
        ("ROUND(2.5)", 3.0), ("ROUND(-2.345, 2)", -2.35), ("SIGN(-2)", -1), ("ABS(-3)", 3),
        ("POW(2, 10)", 1024.0), ("POW(-1, 0.5)", None), ("LOG(8, 2)", 3.0), ("LN(0)", None),
        ("9223372036854775807 * 4", 2**65 - 4), ("GREATEST(1, NULL, 3)", 3), ("LEAST(2, 1.5)", 1.5),
        ("COALESCE(NULL, 2)", 2), ("NULLIF(1, 1)", None), ("NULLIF(1, NULL)", 1),
        ("CASE WHEN NULL THEN 1 ELSE 2 END", 2),
        ("CASE 3 WHEN 1 THEN 'a' WHEN 3 THEN 'b' END", "b"),
        ("NULL IN (1, 2)", None), ("3 IN (1, NULL)", None), ("1 IN (1, NULL)", True),
        ("NULL IS DISTINCT FROM NULL", False), ("1 IS NOT DISTINCT FROM NULL", False),
        ("NULL AND FALSE", False), ("NULL OR TRUE", True), ("NOT (1 > 2 OR 2 > 1) IS TRUE", False),
        ("LPAD('züg', 5, 'é')", "éézüg"), ("RPAD('abc', 2)", "ab"), ("LPAD('abc', 2)", "ab"),
        ("SUBSTR('abcdef', 2, 3)", "bcd"), ("SUBSTR('abcdef', 0, 2)", "a"),
        ("SUBSTR('abcdef', -3, 5)", "a"), ("SUBSTR('abc', 9)", ""), ("SUBSTR('abc', 1, -1)", None),
        ("LEFT('züge', 2)", "zü"), ("RIGHT('züge', 2)", "ge"), ("RIGHT('züge', 0)", ""),
        ("STRPOS('züge', 'g')", 3), ("STRPOS('züge', 'x')", 0), ("LENGTH('züge')", 4),
        ("OCTET_LENGTH('züge')", 5), ("SPLIT_PART('a,b,,c', ',', 2)", "b"),
        ("SPLIT_PART('a,b', ',', 5)", ""), ("SPLIT_PART('a,b,c', ',', 3)", "c"),
        ("CONCAT('a', NULL, 'b')", "ab"), ("'a' || NULL", None),
        ("CONCAT_WS('-', 'a', 'b')", "a-b"),
        ("'a.c' LIKE 'a_c'", True), ("'abc' LIKE 'a.c'", False), ("'A\nB' ILIKE 'a%b'", True),
        ("'50%' LIKE '50%'", True), ("'a#&-~b' LIKE 'a#&-~_'", True), ("'abc' NOT LIKE 'b%'", True),
        ("'Abc' ~ '^a'", False), ("'Abc' ~* '^a'", True), ("'Abc' !~ '^a'", True),
        ("REPLACE('a.b.c', '.', '-')", "a-b-c"), ("TRIM('xxaxx', 'x')", "a"), ("TRIM('  a ')", "a"),
        ("CAST('12' AS INT)", 12), ("CAST('1.5' AS INT)", None), ("' 1.5 '::double", 1.5),
        ("CAST(3.9 AS BIGINT)", 3), ("CAST(300 AS TINYINT)", None),
        ("CAST('TRUE' AS BOOLEAN)", True),
        ("CAST('maybe' AS BOOLEAN)", None), ("CAST(TRUE AS INT)", 1), ("CAST(1 AS TEXT)", "1"),
        ("EXTRACT(EPOCH FROM TIMESTAMP '2024-06-01 07:00:00.25')", 1717225200.25),
        ("EXTRACT(DOW FROM DATE '2024-06-02')", 0), ("EXTRACT(ISODOW FROM DATE '2024-06-02')", 7),
        ("EXTRACT(EPOCH FROM INTERVAL '2 minutes')", 120.0),
        ("DATE_PART('minute', TIME '10:42:00')", 42),
        ("STRFTIME(DATE '2024-06-01' + INTERVAL '1 day', '%d.%m.%Y')", "02.06.2024"),
        ("DATE('31/01/2024', '%d/%m/%Y') = '2024-01-31'", True),
        ("TIMESTAMP('2024-01-31T10:00:00+02:00', '%Y-%m-%dT%H:%M:%S%z') = '2024-01-31 08:00:00'",
         True),
        ("EXTRACT(HOUR FROM TIMESTAMP '2024-06-01 07:00:00' AT TIME ZONE 'Europe/Berlin')", 9),
        ("'a''b' = 'a''b' -- a comment", True), ("/* a comment */ .5 < 1e0", True),
    ],
)  # fmt: skip
def test_an_expression_has_the_value_that_sql_gives_it(expression: str, value: object) -> None:
    tree = parse_sql(expression)
    check_functions(tree)
    found = pl.select(build_value(tree, column_value_of_none).expression).item()
    assert found == value
    assert type(found) is type(value)


def column_value_of_none(name: str) -> Value:
    raise AssertionError(f"no column {name} is used here")


def test_the_documentation_lists_exactly_the_operators_and_functions_that_are_allowed() -> None:
    page = Path(__file__).parents[2] / "docs" / "specification.md"
    section = page.read_text("utf-8").split("### Conditions")[1].split("### patterns")[0]
    operators, functions = section.split("| functions |")
    functions = functions.split("Arguments in quotes")[0]
    written = set(re.findall(r"`([A-Z][A-Z0-9_]*)\(", functions))
    columns = [line.split(" | ")[0] for line in operators.splitlines() if line.startswith("| `")]
    signs = {sign.replace("\\", "") for sign in re.findall(r"`([^`]+)`", " ".join(columns))}
    spelled_otherwise = {"IS FALSE", "BETWEEN", "!~", "!~*", "::"}
    assert written | (signs - spelled_otherwise) == FUNCTIONS.keys()


NUMBERS = ["0", "-1", "1", "127", "128", "-129", "300", "2147483648", "9007199254740991",
           "-0.5"]  # fmt: skip


@pytest.mark.parametrize(
    "dtype",
    [pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64, pl.Float32,
     pl.Float64],
)  # fmt: skip
def test_numbers_can_be_compared_with_any_number_without_a_trial(dtype: type[pl.DataType]) -> None:
    """So a run with many such conditions starts without evaluating each of them once."""
    schema = pl.Schema({"x": dtype()})
    frame = pl.DataFrame({"x": [None, 0, 1, 100]}, schema)
    for number in NUMBERS:
        for sign in ("=", "<>", "<", "<=", ">", ">="):
            for where in (f"x {sign} {number}", f"NOT ({number} {sign} x)", f"x IN ({number}, 1)"):
                with patch("tacit.events.predicates._try_out", side_effect=AssertionError):
                    bound = parse_predicate(where).bind(schema)
                assert frame.select(bound.expression).to_series().dtype == pl.Boolean
