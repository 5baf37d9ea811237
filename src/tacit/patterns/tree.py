"""The abstract syntax tree of patterns: one tree, written in text or in Python.

>>> from tacit.patterns.tree import Not, Seq
>>> Seq("pickup", Not("dropoff"), "hospital_area").within(minutes=10)
SEQ(pickup, NOT dropoff, hospital_area) WITHIN 10 min

A `Name` refers to an event type or to another pattern; `resolve` replaces the names of patterns,
so that only event types are left.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from tacit.durations import LONGEST, MICROSECONDS, format_duration
from tacit.errors import PatternError
from tacit.patterns.conditions import KEYWORDS, NAME, Condition

MAX_DEPTH = 250
"""How deep a pattern, or a condition, may be nested."""
MAX_COUNT = 1000
"""The largest count of a repetition."""


class _PatternMethods:
    """The methods of every pattern."""

    __slots__ = ()

    def __repr__(self) -> str:
        return _format_pattern(_known(self))

    def __eq__(self, other: object) -> bool:
        return _equal(_known(self), other) if isinstance(other, _PatternMethods) else NotImplemented

    def __hash__(self) -> int:
        pattern = _known(self)
        return hash((type(self), _own(pattern), children(pattern)))

    def within(
        self, *, hours: float = 0, minutes: float = 0, seconds: float = 0, microseconds: int = 0
    ) -> Within:
        """Require that the match's last time minus its first is at most this long."""
        span = round(
            hours * MICROSECONDS["h"] + minutes * MICROSECONDS["min"] + seconds * MICROSECONDS["s"]
        )
        return Within(_known(self), span + microseconds)

    def where(self, condition: str | Condition) -> Where:
        """Require a condition on the attributes of named elements."""
        if isinstance(condition, str):
            from tacit.patterns.language import parse_condition

            condition = parse_condition(condition)
        return Where(_known(self), condition)

    def repeat(self, least: int, most: int | None = None, *, unbounded: bool = False) -> Repeat:
        """Require this pattern `least` to `most` times in order; `most` is `least` by default."""
        return Repeat(_known(self), least, None if unbounded else (least if most is None else most))


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Name(_PatternMethods):
    """An event type, or another pattern, by name; `alias` binds the event for a condition."""

    name: str
    alias: str | None = None

    def __hash__(self) -> int:
        return hash((Name, self.name, self.alias))

    def __post_init__(self) -> None:
        _check_name(self.name)
        if self.alias is not None:
            _check_name(self.alias)


@dataclass(frozen=True, slots=True, repr=False, eq=False, init=False)
class Seq(_PatternMethods):
    """All parts in order of time; negated parts are absences in the gaps between the others."""

    parts: tuple[Pattern, ...]

    def __init__(self, *parts: Pattern | str) -> None:
        object.__setattr__(self, "parts", _patterns("SEQ", parts))


@dataclass(frozen=True, slots=True, repr=False, eq=False, init=False)
class And(_PatternMethods):
    """All parts, in any order; parts may share events."""

    parts: tuple[Pattern, ...]

    def __init__(self, *parts: Pattern | str) -> None:
        object.__setattr__(self, "parts", _patterns("AND", parts))


@dataclass(frozen=True, slots=True, repr=False, eq=False, init=False)
class Or(_PatternMethods):
    """At least one of the parts."""

    parts: tuple[Pattern, ...]

    def __init__(self, *parts: Pattern | str) -> None:
        object.__setattr__(self, "parts", _patterns("OR", parts))


@dataclass(frozen=True, slots=True, repr=False, eq=False, init=False)
class Not(_PatternMethods):
    """The absence of a pattern: in a gap of the `SEQ` it is a part of, else in the window."""

    part: Pattern

    def __init__(self, part: Pattern | str) -> None:
        object.__setattr__(self, "part", _pattern(part))


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Repeat(_PatternMethods):
    """A pattern several times in order, at least `least` and at most `most` (or without end)."""

    part: Pattern
    least: int
    most: int | None

    def __post_init__(self) -> None:
        if self.least < 1:
            raise PatternError(f"a repetition counts from 1; got {self.least}. For none, use NOT.")
        if self.most is not None and self.most < self.least:
            raise PatternError(
                f"a repetition's largest count must be at least its smallest; "
                f"got {self.least} to {self.most}"
            )
        if max(self.least, self.most or 0) > MAX_COUNT:
            raise PatternError(f"a repetition counts up to {MAX_COUNT}")


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Within(_PatternMethods):
    """A match whose last time minus its first is at most `span` microseconds."""

    part: Pattern
    span: int

    def __post_init__(self) -> None:
        if not 0 <= self.span <= LONGEST:
            raise PatternError(f"WITHIN needs 0 to {LONGEST} microseconds; got {self.span}")


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Where(_PatternMethods):
    """A match whose named elements meet a condition."""

    part: Pattern
    condition: Condition


Pattern: TypeAlias = Name | Seq | And | Or | Not | Repeat | Within | Where


def children(pattern: Pattern) -> tuple[Pattern, ...]:
    """Return the direct parts of a pattern."""
    match pattern:
        case Name():
            return ()
        case Seq(parts) | And(parts) | Or(parts):
            return parts
        case Not(part) | Repeat(part) | Within(part) | Where(part):
            return (part,)


def walk(pattern: Pattern) -> Iterator[Pattern]:
    """Yield the pattern and everything below it, from the top down."""
    pending = [pattern]
    while pending:
        pattern = pending.pop()
        yield pattern
        pending.extend(reversed(children(pattern)))


def elements(pattern: Pattern) -> tuple[str, ...]:
    """Return all names in a pattern, at any depth, negated ones included, in order of appearance.

    >>> elements(Seq("a", Not("b"), "a"))
    ('a', 'b')
    """
    if isinstance(pattern, Name):
        return (pattern.name,)
    found: dict[str, None] = {}
    pending: list[Pattern] = [pattern]
    while pending:
        node = pending.pop()
        if isinstance(node, Name):
            found[node.name] = None
        else:
            pending.extend(reversed(children(node)))
    return tuple(found)


def depth(pattern: Pattern) -> int:
    """Return the nesting depth of a pattern.

    >>> depth(Seq("a", Not("b")))
    3
    """
    deepest, level = 0, [pattern]
    while level:
        deepest += 1
        level = [part for node in level for part in children(node)]
    return deepest


def _check_name(name: str) -> None:
    if name.upper() in KEYWORDS:
        raise PatternError(f"'{name}' is a word of the pattern language: choose another name")
    if not NAME.fullmatch(name):
        raise PatternError(
            f"a name has letters A to Z, digits and '_' and does not begin with a digit; "
            f"got '{name}'"
        )


def _patterns(operator: str, parts: tuple[Pattern | str, ...]) -> tuple[Pattern, ...]:
    if not parts:
        raise PatternError(f"{operator}() has no parts: put at least one between the parentheses")
    return tuple(_pattern(part) for part in parts)


def _pattern(part: Pattern | str) -> Pattern:
    return Name(part) if isinstance(part, str) else part


def _known(node: _PatternMethods) -> Pattern:
    assert isinstance(node, Pattern)
    return node


def _own(pattern: Pattern) -> object:
    """Return a pattern's own fields, without its parts."""
    match pattern:
        case Name(name, alias):
            return name, alias
        case Repeat(_, least, most):
            return least, most
        case Within(_, own) | Where(_, own):
            return own
        case _:
            return None


def _equal(pattern: Pattern, other: _PatternMethods) -> bool:
    """Compared without recursion, and quickly where parts are shared."""
    pending = [(pattern, _known(other))]
    while pending:
        ours, theirs = pending.pop()
        if ours is theirs:
            continue
        if type(ours) is not type(theirs) or _own(ours) != _own(theirs):
            return False
        our_parts, their_parts = children(ours), children(theirs)
        if len(our_parts) != len(their_parts):
            return False
        pending.extend(zip(our_parts, their_parts, strict=True))
    return True


def _format_pattern(pattern: Pattern) -> str:
    """Return the pattern's text, put together without recursion."""
    text: list[str] = []
    pending: list[Pattern | str] = [pattern]
    while pending:
        piece = pending.pop()
        if isinstance(piece, str):
            text.append(piece)
        else:
            pending.extend(reversed(_pieces(piece)))
    return "".join(text)


def _pieces(pattern: Pattern) -> list[Pattern | str]:
    match pattern:
        case Name(name, alias):
            return [f"{name} {alias}" if alias else name]
        case Seq(parts) | And(parts) | Or(parts):
            listed = [piece for part in parts for piece in (", ", part)]
            return [f"{type(pattern).__name__.upper()}(", *listed[1:], ")"]
        case Not(part):
            return ["NOT ", *_tight(part)]
        case Repeat(part):
            return [*_tight(part), _count(pattern)]
        case Within(part, span):
            return [*_loose(part), f" WITHIN {format_duration(span)}"]
        case Where(part, condition):
            return [*_loose(part), f" WHERE {condition}"]


def _count(pattern: Repeat) -> str:
    match pattern.least, pattern.most:
        case 1, None:
            return "+"
        case least, None:
            return f"{{{least},}}"
        case least, most if least == most:
            return f"{{{least}}}"
        case least, most:
            return f"{{{least},{most}}}"


def _tight(pattern: Pattern) -> list[Pattern | str]:
    """Add parentheses unless the text is unambiguous next to any other."""
    plain = isinstance(pattern, Seq | And | Or) or (
        isinstance(pattern, Name) and pattern.alias is None
    )
    return [pattern] if plain else ["(", pattern, ")"]


def _loose(pattern: Pattern) -> list[Pattern | str]:
    """Add parentheses if a following WITHIN or WHERE would bind to the inner pattern."""
    return ["(", pattern, ")"] if isinstance(pattern, Not | Where) else [pattern]
