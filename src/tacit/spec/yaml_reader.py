"""Specifications from YAML: every mistake is found, and reported with its place."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from tacit.config import Config, describe
from tacit.errors import Mistake, SpecificationError, nearest
from tacit.events.areas import Area
from tacit.events.streams import Stream
from tacit.events.types import EventType
from tacit.patterns.language import find_word
from tacit.spec.checks import PartialSpec, SpecFinding, find_mistakes
from tacit.spec.epsilon_split import find_overspending
from tacit.spec.field_errors import FieldError, list_field_errors
from tacit.spec.nodes import YamlNode, locate, read_nodes
from tacit.spec.specification import (
    NOT_WRITTEN,
    PatternText,
    Private,
    Query,
    Settings,
    Specification,
)
from tacit.windows.schedule import Windows

LARGEST = 16 * 1024 * 1024
"""The largest size of a specification in bytes."""
_LONGEST_MESSAGE = 600
_FIELDS = [name for name in Specification.model_fields if name not in NOT_WRITTEN]
_NEEDED = {
    "streams": "streams: {gps: {subject: taxi_id, time: ts}}",
    "windows": "windows: {size: 10 min}",
    "events": "events: {parked: {stream: gps, where: 'speed < 1'}}",
}
_STAND_INS: dict[type[BaseModel], dict[str, Any]] = {
    EventType: {"stream": "_"},
    Private: {"pattern": "_", "epsilon": 1},
    Query: {"name": "_", "consumer": "_", "pattern": "_"},
}
"""Values for missing required fields, while the rest of a part is read."""
_PLACE = re.compile(r"line (\d+), column (\d+)")
M = TypeVar("M", bound=BaseModel)


class _PatternFile(Config):
    """A pattern by itself."""

    pattern: PatternText


def load(
    path: str | os.PathLike[str], allow_paths: Iterable[str | os.PathLike[str]] = ()
) -> Specification:
    """Read a specification from a YAML file; raises SpecificationError with every mistake.

    Files that it names must be below its folder, or below one of `allow_paths`.
    """
    name = os.fspath(path)
    try:
        with open(path, "rb") as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise SpecificationError([Mistake(f"cannot read this file: {reason}", name)]) from error
    except ValueError as error:
        raise SpecificationError([Mistake(f"cannot read this file: {error}", name)]) from error
    return loads(_decode(content, name), name, Path(path).parent, allow_paths)


def loads(
    text: str | Mapping[str, Any],
    name: str = "<text>",
    folder: str | os.PathLike[str] | None = None,
    allow_paths: Iterable[str | os.PathLike[str]] = (),
) -> Specification:
    """Read a specification from YAML text or a dictionary; relative paths begin at `folder`.

    Files that it names must be below that folder, or below one of `allow_paths`.
    """
    if isinstance(text, Mapping):
        return _load_mapping(text, folder, allow_paths)
    if not isinstance(text, str):
        raise TypeError(f"expected YAML text or a dictionary; got {type(text).__name__}")
    reader = _SpecReader(text, name, Path(folder or ""), tuple(map(Path, allow_paths)))
    partial, settings = reader.read()
    for finding in find_mistakes(partial):
        reader.place(finding)
    reader.check()
    spec = Specification.model_validate(
        {
            **settings,
            "streams": partial.streams,
            "areas": partial.areas,
            "windows": partial.windows,
            "events": partial.events,
            "patterns": partial.patterns,
            "private": partial.private,
            "queries": partial.queries,
            "folder": partial.folder,
            "allow_paths": partial.allow_paths,
        }
    )
    for finding in find_overspending(spec):
        reader.place(finding)
    reader.check()
    return spec


def _to_plain(value: Any) -> Any:
    """Return mappings and sequences as dictionaries and lists."""
    if isinstance(value, Mapping):
        return {key: _to_plain(inner) for key, inner in value.items()}
    return [_to_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def _load_mapping(
    mapping: Mapping[str, Any],
    folder: str | os.PathLike[str] | None,
    allow_paths: Iterable[str | os.PathLike[str]],
) -> Specification:
    """Read a specification from a dictionary; its mistakes have no line."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes numbers, patterns and other values of the package as text."""

        def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
            return True

    Dumper.add_multi_representer(object, lambda to, value: to.represent_str(str(value)))
    text = yaml.dump(_to_plain(mapping), Dumper=Dumper, sort_keys=False, allow_unicode=True)
    try:
        return loads(text, "<dictionary>", folder, allow_paths)
    except SpecificationError as error:
        raise SpecificationError([Mistake(one.message) for one in error.mistakes]) from None


def _decode(content: bytes, name: str) -> str:
    if len(content) > LARGEST:
        raise SpecificationError([_too_large(name)])
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line, column = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        mistake = Mistake("this is not text in UTF-8; save it as UTF-8", name, line, column)
        raise SpecificationError([mistake]) from error


def _too_large(name: str) -> Mistake:
    return Mistake(
        f"a specification has at most {LARGEST // 2**20} MiB. Put long lists of subjects into a "
        "file (subjects: {file: subjects.txt}), shapes into GeoJSON files, and large sets of "
        "queries into several specifications",
        name,
    )


class _SpecReader:
    """Reads part by part, so that a mistake in one hides none in another."""

    def __init__(self, text: str, name: str, folder: Path, allow_paths: tuple[Path, ...]) -> None:
        self.text = text.removeprefix("\ufeff")
        self.name = name
        self.folder = folder
        self.allow_paths = allow_paths
        self.mistakes: list[Mistake] = []
        self.root = self._root()

    def _root(self) -> YamlNode:
        try:
            if len(self.text.encode()) > LARGEST:
                raise SpecificationError([_too_large(self.name)])
        except UnicodeEncodeError as error:
            mistake = Mistake(
                "this text contains half a character (an unpaired surrogate)", self.name
            )
            raise SpecificationError([mistake]) from error
        root, mistakes = read_nodes(self.text, self.name)
        self.mistakes.extend(mistakes)
        if root is None:
            message = "this specification is empty; begin with version: 1, streams:, windows:"
            raise SpecificationError([Mistake(message, self.name, 1, 1)])
        if root.kind != "mapping":
            message = f"expected fields such as streams: and windows:; got {describe(root.data)}"
            self.note(message, root)
            raise SpecificationError(self.mistakes)
        return root

    def read(self) -> tuple[PartialSpec, dict[str, Any]]:
        """Return the valid parts, and the simple fields."""
        for key, node in self.root.keys.items():
            if key not in _FIELDS:
                hint = nearest(key[:100], _FIELDS) or f" Known here: {', '.join(_FIELDS)}"
                self.note(f"there is no field {describe(key)} here.{hint}", node)
        for key, example in _NEEDED.items():
            if key not in self.root.values:
                self.note(f"the field '{key}' is missing; add, for example, {example}", self.root)
        patterns = self.named("patterns", _PatternFile)
        windows = self.root.values.get("windows")
        settings = dict(self.settings())
        partial = PartialSpec(
            streams=self.named("streams", Stream),
            areas=self.named("areas", Area),
            events=self.named("events", EventType),
            private=self.read_list("private", Private),
            queries=self.read_list("queries", Query),
            windows=self.build(Windows, windows) if windows else None,
            patterns={
                name: None if part is None else part.pattern for name, part in patterns.items()
            },
            subjects=settings.get("subjects"),
            folder=self.folder,
            allow_paths=self.allow_paths,
        )
        return partial, settings

    def named(self, section: str, model: type[M]) -> dict[str, M | None]:
        """Return the parts of a section that gives each a name."""
        node = self.section(section, "mapping", "names, each with its fields")
        if node is None:
            return {}
        return {name: self.build(model, value) for name, value in node.values.items()}

    def read_list(self, section: str, model: type[M]) -> list[M | None]:
        """Return the parts of a section that is a list."""
        node = self.section(section, "list", "a list: begin each part with '- '")
        if node is None:
            return []
        return [self.build(model, item) for item in node.items]

    def section(self, name: str, kind: str, expected: str) -> YamlNode | None:
        node = self.root.values.get(name)
        if node is None or node.kind == kind:
            if node is not None and not node.values and name in _NEEDED:
                self.note(f"{name} is empty; add, for example, {_NEEDED[name]}", node)
            return node
        if node.kind == "scalar" and node.data is None:
            if name in _NEEDED:
                self.note(f"{name} is empty; add, for example, {_NEEDED[name]}", node)
            return None
        self.note(f"{name} must be {expected}; got {describe(node.data)}", node)
        return None

    def settings(self) -> Iterator[tuple[str, Any]]:
        """Yield the simple fields that are valid."""
        for key in Settings.model_fields.keys() & self.root.values.keys():
            alone = replace(self.root, values={key: self.root.values[key]})
            part = self.build(Settings, alone)
            if part is not None:
                yield key, getattr(part, key)

    def build(self, model: type[M], node: YamlNode) -> M | None:
        """Build a part, or its valid fields if it has mistakes, which are recorded."""
        data = {"pattern": node.data} if model is _PatternFile else node.data
        try:
            return model.model_validate(data)
        except ValidationError as error:
            found = list(list_field_errors(error, data, model))
            for field_error in found:
                self.record_error(field_error, node, alone=model is _PatternFile)
            return _salvage(model, data, {str(each.path[0]) for each in found if each.path})

    def record_error(self, field_error: FieldError, node: YamlNode, alone: bool) -> None:
        """Record an error of a field, with its place in the file."""
        path = () if alone else field_error.path
        place = node.find(path)
        message = field_error.message
        if field_error.kind == "extra_forbidden":
            holder = node.find(path[:-1])
            name = str(path[-1])
            place = holder.keys[name]
            value = holder.values[name]
            cut = holder.flow and value.kind == "scalar" and value.data is None
            if cut and "Did you mean" not in message:
                message = (
                    f"there is no field {describe(name)} here. Inside {{ }} a comma ends a value: "
                    "put a pattern or condition with commas in quotes"
                )
        line_column = None
        if field_error.offset and place.kind == "scalar":
            line_column = self.inside(place, *field_error.offset)
            message = _PLACE.sub(lambda found: self.locate_match(place, found), message)
        self.note(message, place, line_column)

    def inside(self, node: YamlNode, line: int, column: int) -> tuple[int, int]:
        """Return the place in the file of a place in a scalar's text."""
        return locate(node, self.text, _offset(node.text, line, column))

    def locate_match(self, node: YamlNode, found: re.Match[str]) -> str:
        """Return a place in a pattern as a place in the file."""
        line, column = self.inside(node, int(found[1]), int(found[2]))
        return f"line {line}, column {column}"

    def place(self, finding: SpecFinding) -> None:
        """Find the place of a mistake that concerns several parts."""
        node = self.root.find(finding.path)
        if finding.of_name:
            node = self.root.find(finding.path[:-1]).keys[str(finding.path[-1])]
        line_column = None
        if finding.word is not None and node.kind == "scalar":
            found = find_word(node.text, finding.word)
            if found:
                line_column = self.inside(node, *found)
        self.note(finding.message, node, line_column)

    def check(self) -> None:
        """Raise SpecificationError if there are mistakes, in the order of their places."""
        if self.mistakes:
            ordered = sorted(self.mistakes, key=lambda each: (each.line or 0, each.column or 0))
            raise SpecificationError(list(dict.fromkeys(ordered)))

    def note(self, message: str, node: YamlNode, place: tuple[int, int] | None = None) -> None:
        if len(message) > _LONGEST_MESSAGE:
            message = message[:_LONGEST_MESSAGE] + "..."
        self.mistakes.append(Mistake(message, self.name, *(place or (node.line, node.column))))


def _salvage(model: type[M], data: Any, bad: set[str]) -> M | None:
    """Return a part without its invalid fields, so that mistakes in the others are found too."""
    if model not in _STAND_INS or not bad or not isinstance(data, dict):
        return None
    good = {name: data[name] for name in model.model_fields if name in data and name not in bad}
    stand_ins = _STAND_INS[model]
    if "count" in good:  # a query that counts has no other pattern
        stand_ins = {name: value for name, value in stand_ins.items() if name != "pattern"}
    try:
        part = model.model_validate(stand_ins | good)
    except ValidationError:
        return None
    unread: dict[str, Any] = dict.fromkeys(stand_ins.keys() - good.keys())
    return part.model_copy(update=unread | ({"subjects": ()} if "subjects" in bad else {}))


def _offset(text: str, line: int, column: int) -> int:
    """Return the place of a line and column in a text."""
    lines = text.split("\n")[: line - 1]
    return sum(len(each) + 1 for each in lines) + column - 1
