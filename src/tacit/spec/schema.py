"""The JSON Schema of specifications, for editors."""

from __future__ import annotations

from typing import Any, Final

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from tacit.patterns.conditions import NAME
from tacit.spec.specification import Specification

SCHEMA_ID: Final = "urn:tacit:specification:1"
"""The name of the schema; its number is the `version` of the format."""


def json_schema() -> dict[str, Any]:
    """Return the schema (2020-12) that a specification, read as plain data, must meet."""
    schema = Specification.model_json_schema(schema_generator=_Schema)
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
