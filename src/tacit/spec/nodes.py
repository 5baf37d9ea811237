"""Parse YAML text into a tree of nodes with their places.

Only the JSON-like core of YAML 1.2 is supported: `yes`, `on` and `10:30` are text, as is `007`.
Aliases are followed within limits; merge keys and tags are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import yaml

from tacit.config import Number, describe
from tacit.errors import Mistake, SpecificationError

DEEPEST = 64
MOST = 2_000_000
"""The largest number of nodes in a specification, with aliases expanded."""

INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
NUMBER = re.compile(
    r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan"
)
_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}
_LONGEST_INTEGER = 40
_BEST_AT_BEGIN = ("a simple key", "a quoted scalar")
"""What is noticed to be wrong only lines later."""

Path: TypeAlias = tuple[str | int, ...]


_NOTHING: Mapping[str, YamlNode] = MappingProxyType({})


@dataclass(slots=True, eq=False)
class YamlNode:
    """A part of a YAML text: where it begins and ends, and its content."""

    kind: Literal["scalar", "list", "mapping"]
    line: int
    column: int
    begin: int
    end: int
    text: str = ""
    style: str = ""
    plain: bool = True
    flow: bool = False
    items: Sequence[YamlNode] = ()
    keys: Mapping[str, YamlNode] = field(default_factory=lambda: _NOTHING)
    values: Mapping[str, YamlNode] = field(default_factory=lambda: _NOTHING)
    weight: int = 1
    """The number of nodes, with aliases expanded."""

    @property
    def data(self) -> Any:
        """The same as plain Python data."""
        match self.kind:
            case "scalar":
                return read_scalar(self.text) if self.plain else self.text
            case "list":
                return [item.data for item in self.items]
            case "mapping":
                return {name: value.data for name, value in self.values.items()}

    def find(self, path: Path) -> YamlNode:
        """Return the node at a path, or the last one on the way that is there."""
        node = self
        for part in path:
            if isinstance(part, int) and node.kind == "list" and part < len(node.items):
                node = node.items[part]
            elif isinstance(part, str) and part in node.values:
                node = node.values[part]
        return node


def read_scalar(text: str) -> bool | int | Number | str | None:
    """Return what an unquoted word means.

    >>> [read_scalar(word) for word in ("1", "007", "no", "true", "~", "1e3")]
    [1, '007', 'no', True, None, 1000.0]
    """
    word = text.lower() if text in (text.lower(), text.upper(), text.capitalize()) else text
    if word in _WORDS:
        return _WORDS[word]
    if INTEGER.fullmatch(text) and len(text) <= _LONGEST_INTEGER and text == str(int(text)):
        return int(text)  # others, such as +7, must remember how they were written
    return Number(word) if NUMBER.fullmatch(word) else text


def read_nodes(text: str, name: str) -> tuple[YamlNode | None, list[Mistake]]:
    """Return the root of a YAML text (None if it is empty), and mistakes that leave it readable.

    Raises SpecificationError if it is not YAML, or too large.
    """
    return _Tree(text, name).read()


class _Tree:
    """Builds a tree from the parser's events, since the parser's own tree has unbounded depth."""

    def __init__(self, text: str, name: str) -> None:
        self.text = text
        self.name = name
        self.mistakes: list[Mistake] = []
        self.anchors: dict[str, YamlNode | None] = {}
        self.events: Iterator[yaml.Event] = iter(())
        self.depth = 0

    def read(self) -> tuple[YamlNode | None, list[Mistake]]:
        root = None
        try:
            self.events = iter(yaml.parse(self.text, Loader=yaml.CSafeLoader))
            for event in self.events:
                if isinstance(event, yaml.DocumentStartEvent):
                    if root is not None:
                        raise self.stop("a specification is one YAML document; remove '---'", event)
                    root = self.node(next(self.events))
        except yaml.reader.ReaderError as error:
            raise SpecificationError([explain_unreadable(self.text, error, self.name)]) from error
        except yaml.MarkedYAMLError as error:
            raise SpecificationError([self.syntax(error)]) from error
        empty = root is not None and root.kind == "scalar" and not root.text and root.plain
        return None if empty else root, self.mistakes

    def node(self, event: yaml.Event) -> YamlNode:
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event)
        assert isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
        begin, end = event.start_mark, event.end_mark
        assert begin is not None
        assert end is not None
        node = YamlNode("scalar", begin.line + 1, begin.column + 1, begin.index, end.index)
        if event.anchor:
            self.anchors[event.anchor] = None  # not whole before its end: it cannot hold itself
        if event.tag is not None:
            self.note("tags (!...) have no meaning here; remove it, and put text in quotes", node)
        if isinstance(event, yaml.ScalarEvent):
            node.text, node.style, node.plain = event.value, event.style or "", event.implicit[0]
        else:
            node.flow = bool(event.flow_style)
            self.collect(node, event)
        if node.weight > MOST:
            raise self.stop(
                f"more than {MOST} values, aliases (*name) written out; make it smaller", event
            )
        if event.anchor:
            self.anchors[event.anchor] = node
        return node

    def collect(self, node: YamlNode, event: yaml.Event) -> None:
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.stop(f"nested more than {DEEPEST} deep; a specification never is", event)
        if isinstance(event, yaml.SequenceStartEvent):
            node.kind = "list"
            node.items = list(self.parts(yaml.SequenceEndEvent))
            node.weight += sum(item.weight for item in node.items)
        else:
            node.kind = "mapping"
            self.fill(node)
        self.depth -= 1

    def parts(self, end: type[yaml.Event]) -> Iterator[YamlNode]:
        """Yield the nodes up to the end of a list or mapping."""
        for event in self.events:
            if isinstance(event, end):
                return
            yield self.node(event)

    def fill(self, node: YamlNode) -> None:
        """Keys and values take turns."""
        keys: dict[str, YamlNode] = {}
        values: dict[str, YamlNode] = {}
        node.keys, node.values = keys, values
        parts = self.parts(yaml.MappingEndEvent)
        for key, value in zip(parts, parts, strict=True):
            node.weight += key.weight + value.weight
            if key.kind != "scalar":
                self.note("a name must be a word, not a list or mapping", key)
            elif key.text == "<<" and key.plain:
                self.note("merge keys (<<) are not supported; write the fields out", key)
            elif key.text in values:
                name, first = describe(key.text), keys[key.text].line
                self.note(f"{name} is given twice (first in line {first}); remove one", key)
            else:
                keys[key.text], values[key.text] = key, value

    def alias(self, event: yaml.AliasEvent) -> YamlNode:
        name = event.anchor
        if name not in self.anchors:
            raise self.stop(f"*{name} refers to no anchor &{name} before it", event)
        node = self.anchors[name]
        if node is None:
            raise self.stop(f"*{name} refers to itself", event)
        return node

    def note(self, message: str, node: YamlNode) -> None:
        self.mistakes.append(Mistake(message, self.name, node.line, node.column))

    def stop(self, message: str, event: yaml.Event) -> SpecificationError:
        place = event.start_mark
        assert place is not None
        mistake = Mistake(message, self.name, place.line + 1, place.column + 1)
        return SpecificationError([*self.mistakes, mistake])

    def syntax(self, error: yaml.MarkedYAMLError) -> Mistake:
        mark, begin = error.problem_mark, error.context_mark
        context = f" {error.context}" if error.context else ""
        if begin is not None and (mark is None or context.endswith(_BEST_AT_BEGIN)):
            mark = begin
        elif begin is not None and mark is not None and begin.line != mark.line:
            context += f" that begins in line {begin.line + 1}"
        message = f"this is not YAML: {error.problem}{context}."
        if mark is None:
            return Mistake(message, self.name)
        if self.text[mark.index : mark.index + 1] == "\t":
            message = "a tab where YAML needs spaces; indent with spaces only"
        else:
            message += " Text with any of : , { } [ ] # & * ! % @ ` in it goes in quotes"
        line = min(mark.line, self.text.count("\n"))  # the parser counts one more at the end
        return Mistake(message, self.name, line + 1, mark.column + 1)


def explain_unreadable(text: str, error: yaml.reader.ReaderError, name: str) -> Mistake:
    """Report a character that is not allowed in a text file; the parser counts in bytes."""
    before = text.encode()[: error.position].decode(errors="ignore")
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    message = f"{error.reason} (character {error.character:#x}); is this a text file?"
    return Mistake(message, name, line, column)


_UNITS: dict[str, re.Pattern[str]] = {
    "'": re.compile(r"''|\S"),
    '"': re.compile(r"\\(?:x..|u.{4}|U.{8}|\s|.)|\S", re.DOTALL),
}
_ANY = re.compile(r"\S")
_PROPERTIES = re.compile(r"(?:[&!]\S*\s+)*")
_HEADER = re.compile(r"[|>][^\n]*\n")
_BLANKS = {r"\n", r"\t", r"\ ", r"\_", r"\N", r"\L", r"\P", r"\r", r"\v", r"\f", "\\\t"}


def locate(node: YamlNode, source: str, offset: int) -> tuple[int, int]:
    """Return line and column in the source of a character of a scalar's text.

    Line folding, indentation, quotes and escapes change only blanks, so it is enough to
    count the characters that are not blank.
    """
    ink = sum(not character.isspace() for character in node.text[:offset])
    begin = _PROPERTIES.match(source, node.begin, node.end).end()  # type: ignore[union-attr]
    header = _HEADER.match(source, begin, node.end) if node.style in "|>" and node.style else None
    begin = header.end() if header else begin + (node.style in ("'", '"'))
    end = node.end - (node.style in ("'", '"'))
    place = begin
    for unit in _UNITS.get(node.style, _ANY).finditer(source, begin, end):
        if unit[0] in _BLANKS or unit[0] == "\\\n":
            continue
        if ink == 0:
            place = unit.start()
            break
        ink -= 1
        place = unit.end()
    return node.line + source.count("\n", node.begin, place), place - source.rfind("\n", 0, place)
