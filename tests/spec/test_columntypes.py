"""Where the type of a column comes from, and what happens if it is not known."""

from __future__ import annotations

import pytest

from tacit.errors import SpecificationError
from tacit.spec.columntypes import SpecColumns, format_columns
from tacit.spec.specification import Specification
from tacit.spec.yaml_reader import loads

SPEC = """
version: 1
streams:
  gps: {subject: taxi, time: ts, columns: {note: text}}
  shop: {subject: who, time: at}
areas: {park: {box: [0, 0, 1, 1]}}
windows: {size: 10 min}
events:
  slow: {stream: gps, where: "speed < 10 AND NOT hired"}
  odd: {stream: gps, where: "a < c"}
  at_park: {stream: gps, inside: park}
  sale: {stream: shop}
queries:
  - name: q
    consumer: c
    pattern: "SEQ(slow s, sale y) WHERE s.fare > 2 * y.price AND s.kind = y.kind AND s.tip = y.cash"
  - {name: r, consumer: c, pattern: "SEQ(slow s, sale y) WHERE y.cash > 5"}
  - {name: p, consumer: c, pattern: "OR(odd, at_park)"}
"""


def spec() -> Specification:
    return loads(SPEC)


def test_each_column_has_a_type_and_a_reason() -> None:
    found = SpecColumns(spec()).report()
    types = {(stream, one.column): one.type for stream, part in found.items() for one in part}
    assert types == {
        ("gps", "taxi"): "text",
        ("gps", "ts"): "time",
        ("gps", "speed"): "number",
        ("gps", "hired"): "boolean",
        ("gps", "a"): None,
        ("gps", "c"): None,
        ("gps", "lon"): "number",
        ("gps", "lat"): "number",
        ("gps", "fare"): "number",
        ("gps", "kind"): None,
        ("gps", "tip"): "number",
        ("shop", "who"): "text",
        ("shop", "at"): "time",
        ("shop", "price"): "number",
        ("shop", "kind"): None,
        ("shop", "cash"): "number",
    }
    assert all(one.origin for part in found.values() for one in part)


def test_declared_types_come_first_then_the_address_then_use_then_the_plan() -> None:
    columns = SpecColumns(spec(), {"gps": {"a": "time", "speed": "text", "taxi": "number"}})
    assert columns.resolve("gps", "note", {"note": "number"}).type == "text"
    assert columns.resolve("gps", "speed", {"speed": "integer"}).type == "integer"
    assert columns.resolve("gps", "speed").type == "number"
    assert columns.resolve("gps", "a").type == "time"
    assert columns.resolve("gps", "a").origin == "recorded in the plan"
    assert columns.resolve("gps", "taxi", {"taxi": "integer"}).type == "text"


def test_a_type_that_is_not_known_is_refused_with_the_lines_to_add() -> None:
    with pytest.raises(SpecificationError) as refused:
        SpecColumns(spec()).text_types("gps", ["taxi", "a", "speed", "kind"])
    message = str(refused.value)
    assert "'a' (its uses do not show its type)" in message
    lines = message[message.index("streams:") :]
    assert lines == "streams:\n  gps:\n    columns:\n      a: text\n      kind: text"


def test_a_text_without_quotes_is_no_column_to_add() -> None:
    text = SPEC.replace("speed < 10 AND NOT hired", "kind = taken")
    lines = "\n".join(format_columns(SpecColumns(loads(text))))
    assert "if it is no column but a text, write 'taken' in single quotes" in lines
    assert "taken: text   # only if it is a column" in lines
    assert "kind: text\n" in lines


def test_the_lines_to_add_make_it_known() -> None:
    added = SPEC.replace("{note: text}", "{note: text, a: number, c: number, kind: text}")
    types = SpecColumns(loads(added)).text_types("gps", ["taxi", "ts", "a", "speed", "kind"])
    assert dict(types.types) == {
        "taxi": "text", "ts": "time", "a": "number", "speed": "number", "kind": "text",
    }  # fmt: skip


def test_the_report_says_what_is_not_known() -> None:
    lines = format_columns(SpecColumns(spec()))
    assert "  speed: number (event 'slow' uses it as a number)" in lines
    assert "  a: not known (its uses do not show its type)" in lines


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("{taxi: number}", "subjects are text, exactly as written"),
        ("{ts: boolean}", "is the event time"),
        ("{lon: text}", "'lon' is a position"),
        ("{speed: float}", "text"),
    ],
)
def test_types_that_a_role_forbids_are_mistakes(columns: str, message: str) -> None:
    with pytest.raises(SpecificationError, match=message):
        loads(SPEC.replace("{note: text}", columns))


def test_a_specification_without_declared_types_keeps_its_fingerprint() -> None:
    plain = SPEC.replace(", columns: {note: text}", "")
    assert loads(plain).fingerprint == loads(plain.replace("ts}", "ts, columns: {}}")).fingerprint
    assert loads(plain).fingerprint != loads(SPEC).fingerprint
