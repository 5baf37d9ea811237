"""The use of a column shows its type, or nothing does."""

from __future__ import annotations

import pytest

from tacit.events.column_uses import ColumnUses
from tacit.events.predicates import parse_predicate
from tacit.events.streams import ColumnType


def inferred(*conditions: str) -> dict[str, ColumnType | None]:
    usage = ColumnUses()
    for number, condition in enumerate(conditions):
        usage.add_predicate("s", parse_predicate(condition), f"event '{number}'")
    return {column: usage.infer(("s", column)).type for _, column in usage.places()}


@pytest.mark.parametrize(
    ("condition", "types"),
    [
        ("speed < 8 AND NOT hired", {"speed": "number", "hired": "boolean"}),
        ("speed BETWEEN 1 AND 10.5", {"speed": "number"}),
        ("kind IN ('a', 'b')", {"kind": "text"}),
        ("kind NOT IN (1, 2)", {"kind": "number"}),
        ("kind LIKE 'a%'", {"kind": "text"}),
        ("hired", {"hired": "boolean"}),
        ("hired = TRUE", {"hired": "boolean"}),
        ("a + b > c", {"a": "number", "b": "number", "c": "number"}),
        ("ABS(a) > 1 AND LOWER(b) = c", {"a": "number", "b": "text", "c": "text"}),
        ("at > TIMESTAMP '2024-01-01 00:00:00'", {"at": "time"}),
        ("EXTRACT(HOUR FROM at) > 5", {"at": "time"}),
        ("CASE WHEN a > 1 THEN b ELSE 'x' END = 'y'", {"a": "number", "b": "text"}),
        ("COALESCE(a, b) = 'x'", {"a": "text", "b": "text"}),
        ("CAST(a AS DOUBLE) > 1", {"a": "text"}),
        ("a IS NULL", {"a": "text"}),
        ("a IS NULL OR a > 3", {"a": "number"}),
        ("a < b", {"a": None, "b": None}),
        ("a = 1 OR a = 'x'", {"a": None}),
    ],
)
def test_a_condition_shows_the_types_of_its_columns(
    condition: str, types: dict[str, ColumnType | None]
) -> None:
    assert inferred(condition) == types


def test_conditions_show_types_together() -> None:
    assert inferred("a < b", "b < c", "c > 5") == dict.fromkeys("abc", "number")
    assert inferred("c > 5", "a < b", "b < c") == dict.fromkeys("abc", "number")


def test_contradicting_uses_are_named() -> None:
    usage = ColumnUses()
    usage.add_predicate("s", parse_predicate("a = 1"), "event 'x'")
    usage.add_predicate("s", parse_predicate("a = 'y'"), "event 'z'")
    found = usage.infer(("s", "a"))
    assert found.type is None
    assert "event 'x' uses it as a number" in found.reason
    assert "event 'z' uses it as text" in found.reason


def test_a_text_without_quotes_is_pointed_out() -> None:
    usage = ColumnUses()
    usage.add_predicate("s", parse_predicate("sensor = 'motion'"), "event 'moved'")
    usage.add_predicate("s", parse_predicate("sensor = contact"), "event 'touched'")
    assert "if it is no column but a text, write 'contact'" in usage.infer(("s", "contact")).reason
    assert usage.infer(("s", "sensor")).reason == "event 'moved' uses it as text"
    usage.add_predicate("s", parse_predicate('state = "on"'), "event 'lit'")
    assert "write 'on' in single quotes" in usage.infer(("s", "on")).reason
