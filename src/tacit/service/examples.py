"""Examples in the OpenAPI document: each body has one where its reader looks first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel

_REFERENCE: Final = "#/components/schemas/"


def list_bodies(document: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield where it is, and the description, of each request's body and good response."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts = {"request": operation.get("requestBody", {}), **operation["responses"]}
            for part, description in parts.items():
                if part == "request" or part.startswith("2"):
                    for kind, body in description.get("content", {}).items():
                        yield f"{method.upper()} {path} {part} {kind}", body


def add_examples(document: Mapping[str, Any]) -> None:
    """Give each body without an example that of its schema.

    FastAPI leaves null out of examples, as if it were a missing description, so they come from the
    models again.
    """
    schemas = document["components"]["schemas"]
    for model in _list_models(BaseModel):
        extra = model.model_config.get("json_schema_extra")
        if model.__name__ in schemas and isinstance(extra, dict):
            schemas[model.__name__].update(extra)
    for _, body in list_bodies(document):
        if "example" not in body and "examples" not in body:
            found = _find_example(body.get("schema", {}), schemas)
            if found is not None:
                body["example"] = found


def _list_models(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for model in base.__subclasses__():
        if model.__module__.startswith("tacit.service."):
            yield model
        yield from _list_models(model)


def _find_example(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:
    """Return the example of a schema, of its elements, or of the first choice that has one."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].removeprefix(_REFERENCE)]
    if "example" in schema:
        return schema["example"]
    if "items" in schema:
        item = _find_example(schema["items"], schemas)
        return None if item is None else [item]
    choices = (_find_example(choice, schemas) for choice in schema.get("anyOf", ()))
    return next((choice for choice in choices if choice is not None), None)
