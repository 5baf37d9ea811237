"""Mistakes in a part's fields, in plain words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tacit.config import describe
from tacit.errors import nearest

_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "list_type": "a list",
    "tuple_type": "a list",
    "string_too_short": "text that is not empty",
}


class FieldError(NamedTuple):
    """What is wrong with a value, and the path to it."""

    path: tuple[str | int, ...]
    message: str
    kind: str
    offset: tuple[int, int] | None = None
    """Line and column in the text of a pattern."""


def list_field_errors(
    error: ValidationError, data: Any, model: type[BaseModel]
) -> Iterator[FieldError]:
    """Yield the mistakes that a model finds in data, each value once."""
    grouped: dict[tuple[str | int, ...], list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False):
        grouped.setdefault(_path(detail, data), []).append(detail)
    for path, details in grouped.items():
        inner = any(len(other) > len(path) and other[: len(path)] == path for other in grouped)
        if inner and all(detail["type"] in _EXPECTED for detail in details):
            continue  # one way to write it does not fit, another does but for an inner mistake
        yield _make_field_error(path, details, model)


def _path(detail: ErrorDetails, data: Any) -> tuple[str | int, ...]:
    """Return the path without the names that alternatives have in a model."""
    path: list[str | int] = []
    for part in detail["loc"]:
        with suppress(LookupError, TypeError):
            data = data[part]
            path.append(part)
    field = detail["loc"][-1] if detail["loc"] else 0
    missing = detail["type"] == "missing" and isinstance(field, str)
    return (*path, field) if missing else tuple(path)


def _make_field_error(
    path: tuple[str | int, ...], details: list[ErrorDetails], model: type[BaseModel]
) -> FieldError:
    detail = details[0]
    kind, context, value = detail["type"], detail.get("ctx", {}), detail["input"]
    offset = None
    if all(other["type"] in _EXPECTED for other in details):
        expected = " or ".join(dict.fromkeys(_EXPECTED[other["type"]] for other in details))
        message = f"expected {expected}; got {describe(value)}{_suggest(expected, value)}"
    elif kind == "missing":
        message = _missing(details)
    elif kind == "extra_forbidden":
        known = _find_known_fields(model, path[:-1])
        hint = nearest(str(path[-1])[:100], known) or f" Known here: {', '.join(known)}"
        message = f"there is no field {describe(path[-1])} here.{hint}"
    elif kind == "literal_error":
        choices = context["expected"].replace("'", "")
        near = nearest(str(value)[:100], choices.replace(" or ", ", ").split(", "))
        message = f"expected {choices}; got {describe(value)}.{near}"
    elif kind == "too_long":
        message = f"expected {context['max_length']} values; got {context['actual_length']}"
    elif kind == "pattern":
        message, offset = context["message"], (context["line"], context["column"])
    elif kind == "value_error":
        message = str(context["error"])
    else:
        message = f"{detail['msg']}; got {describe(value)}"
    return FieldError(path, message, kind, offset if offset != (None, None) else None)


def _missing(details: list[ErrorDetails]) -> str:
    name, value = details[-1]["loc"][-1], details[-1]["input"]
    if isinstance(name, int):
        return f"expected {name + 1} values; got {name + 1 - len(details)}"
    given = f" beside {', '.join(map(str, value))}" if isinstance(value, Mapping) and value else ""
    return f"the field '{name}' is missing here{given}; add it"


def _find_known_fields(model: type[BaseModel], path: tuple[str | int, ...]) -> list[str]:
    """Return the fields that are known at a path."""
    models: list[Any] = [model]
    for part in path:
        fields = (each.model_fields.get(part) for each in models)
        models = [inner for field in fields if field for inner in _models(field.annotation)]
    return [name for each in models for name in each.model_fields]


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


def _suggest(expected: str, value: Any) -> str:
    scalar = isinstance(value, bool | int | float) and "text" in expected
    return "; put it in quotes to make it text" if scalar else ""
