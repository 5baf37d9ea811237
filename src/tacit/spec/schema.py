"""The JSON Schema of specifications, for editors."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from tacit.config import Config
from tacit.patterns.conditions import NAME
from tacit.spec.specification import Specification

SCHEMA_ID: Final = "urn:tacit:specification:1"
"""The name of the schema; its number is the `version` of the format."""


def json_schema() -> dict[str, Any]:
    """Return the schema (2020-12) that a specification, read as plain data, must meet."""
    schema = Specification.model_json_schema(schema_generator=_Schema)
    models = {model.__name__: model for model in _list_models(Config)}
    for name, part in {Specification.__name__: schema, **schema["$defs"]}.items():
        if name in models:
            _describe_fields(models[name], part.get("properties", {}))
    for section in ("streams", "areas", "events", "patterns"):
        schema["properties"][section]["propertyNames"] = {"pattern": f"^{NAME.pattern}$"}
    for section in ("streams", "events"):
        schema["properties"][section]["minProperties"] = 1
    return {
        "$schema": GenerateJsonSchema.schema_dialect,
        "$id": SCHEMA_ID,
        **schema,
        "title": "Tacit specification",
    }


def _list_models(model: type[Config]) -> Iterator[type[Config]]:
    """Yield a model and all that extend it."""
    yield model
    for part in model.__subclasses__():
        yield from _list_models(part)


def _describe_fields(model: type[Config], properties: dict[str, Any]) -> None:
    """Add the docstrings under the fields of a model, and of those that it extends.

    Pydantic can do it when a model is imported, but that takes too long for most commands.
    """
    for origin in reversed(model.__mro__):
        if not issubclass(origin, Config):
            continue
        for field, text in _read_docstrings(origin):
            if field in properties:
                properties[field].setdefault("description", text)


def _read_docstrings(model: type[Config]) -> Iterator[tuple[str, str]]:
    """Yield the name and the docstring of each field that has one, from the model's source."""
    tree = ast.parse(inspect.getsource(model)).body[0]
    assert isinstance(tree, ast.ClassDef), "a model is a class"
    for statement, after in pairwise(tree.body):
        match statement, after:
            case ast.AnnAssign(target=ast.Name(id=field)), ast.Expr(
                value=ast.Constant(value=str(text))
            ):
                yield field, inspect.cleandoc(text)


class _Schema(GenerateJsonSchema):
    """Shows defaults as people write them, and no titles that only repeat a name."""

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """Return the schema of a field with a default."""
        found = super().default_schema(schema)
        written: Any = schema["schema"].get("serialization", {})
        if found.get("default") is not None and written.get("type") == "function-plain":
            found["default"] = written["function"](schema["default"])
        return found

    def field_title_should_be_set(self, schema: object) -> bool:  # noqa: ARG002
        """Never: a field's name says it."""
        return False
