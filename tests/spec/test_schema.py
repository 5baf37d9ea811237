"""The JSON Schema agrees with the reader on what is right, and on what a schema can tell."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings

from tacit.spec.nodes import read_nodes
from tacit.spec.schema import json_schema
from tacit.spec.specification import Specification
from tacit.spec.yaml_writer import to_yaml
from tests.spec.strategies import specifications
from tests.spec.test_mistakes import CASES, HEAD

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
VALIDATOR = jsonschema.Draft202012Validator(json_schema())

MEANING = {
    "a query's name", "an event and a pattern", "two queries with a name",
    "a slide that does not fit", "a slide beyond the size", "a slide that is too short",
    "an unknown unit", "a size of zero", "a start that is none", "an unknown stream",
    "an unknown area", "an unknown area of two", "a broken condition", "a condition on many rows",
    "a box upside down", "a box off the earth", "no such shape file", "a pattern that is not one",
    "an unknown name", "an unknown name in a query", "a pattern of itself", "a circle",
    "an unknown alias", "a long WITHIN", "private twice", "private twice by text",
    "a limit per nothing",
    "a limit below epsilon", "a limit below what a window is charged", "no private subjects",
    "an unregistered subject", "a subject twice",
    "a number and its digits", "learning for no time", "no such file", "a keyword as a name",
    "epsilon no number", "an alpha of a count", "an unknown name in a count",
    "counts by a column without a registry file", "shares above 1", "shares that leave nothing",
}  # fmt: skip
"""Mistakes that a schema cannot tell."""
SYNTAX = 17
"""So many cases at the top are about YAML itself."""


def data(text: str) -> Any:
    """The plain data of a text."""
    root, _ = read_nodes(text, "x")
    assert root is not None
    return root.data


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())
    assert json_schema()["$schema"] == "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_meet_the_schema(path: Path) -> None:
    VALIDATOR.validate(data(path.read_text()))


@given(specifications())
@settings(max_examples=20)
def test_whatever_is_written_meets_the_schema(spec: Specification) -> None:
    VALIDATOR.validate(data(to_yaml(spec)))


@pytest.mark.parametrize("case", [case for case in list(CASES)[SYNTAX:] if case not in MEANING])
def test_what_a_schema_can_tell_it_tells(case: str) -> None:
    assert not VALIDATOR.is_valid(data(CASES[case][0]))


def test_the_head_of_the_cases_meets_the_schema() -> None:
    VALIDATOR.validate(data(HEAD))


def fields(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every field of every part."""
    for part in (schema, *schema["$defs"].values()):
        for name, field in part.get("properties", {}).items():
            yield f"{part['title']}.{name}", field


def test_every_field_is_described() -> None:
    assert [name for name, field in fields(json_schema()) if not field.get("description")] == []


def test_defaults_are_shown_as_people_write_them() -> None:
    defaults = {name: field.get("default") for name, field in fields(json_schema())}
    assert defaults["Windows.future"] == "7 d"
    assert defaults["Windows.lateness"] == "0 s"
    assert defaults["Query.alpha"] == 0.5
    assert defaults["Tacit specification.mechanism"] == "optimal"
