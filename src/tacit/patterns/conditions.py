"""Conditions between a pattern's named elements: comparisons of attributes, with arithmetic.

`d.fare > 2 * p.fare AND d.zone <> p.zone` compares attributes of the tuples that the
elements named `d` and `p` come from. An attribute that is null, not a number or infinite
meets no comparison, and its negation meets none either (SQL's third truth value).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Literal, TypeAlias

from tacit.errors import PatternError

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Valid names of events, patterns and aliases."""
KEYWORDS = frozenset({"SEQ", "AND", "OR", "NOT", "WITHIN", "WHERE", "TRUE", "FALSE"})
"""Reserved words, in upper or lower case."""

Comparator: TypeAlias = Literal["=", "<>", "<", "<=", ">", ">="]
Operator: TypeAlias = Literal["+", "-", "*", "/", "%"]


@dataclass(frozen=True, slots=True, repr=False)
class Attribute:
    """A column of the tuple bound to an element's name."""

    alias: str
    column: str

    def __repr__(self) -> str:
        plain = NAME.fullmatch(self.column) and self.column.upper() not in KEYWORDS
        column = self.column if plain else '"' + self.column.replace('"', '""') + '"'
        return f"{self.alias}.{column}"


@dataclass(frozen=True, slots=True, repr=False)
class Constant:
    """A number, a text or a truth value."""

    value: int | float | str | bool

    def __post_init__(self) -> None:
        if isinstance(self.value, float) and not isfinite(self.value):
            raise PatternError(f"a condition's numbers must be finite; got {self.value}")

    def __repr__(self) -> str:
        match self.value:
            case bool():
                return "TRUE" if self.value else "FALSE"
            case str():
                return "'" + self.value.replace("'", "''") + "'"
            case _:
                return repr(self.value)


@dataclass(frozen=True, slots=True, repr=False)
class Arithmetic:
    """An arithmetic operation on two terms."""

    operator: Operator
    left: Term
    right: Term

    def __repr__(self) -> str:
        return f"({self.left!r} {self.operator} {self.right!r})"


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """Two terms that are compared."""

    comparator: Comparator
    left: Term
    right: Term

    def __repr__(self) -> str:
        return f"{self.left!r} {self.comparator} {self.right!r}"


@dataclass(frozen=True, slots=True, repr=False)
class Conjunction:
    """Two conditions that must both hold."""

    left: Condition
    right: Condition

    def __repr__(self) -> str:
        return f"({self.left!r} AND {self.right!r})"


@dataclass(frozen=True, slots=True, repr=False)
class Disjunction:
    """Two conditions of which one must hold."""

    left: Condition
    right: Condition

    def __repr__(self) -> str:
        return f"({self.left!r} OR {self.right!r})"


@dataclass(frozen=True, slots=True, repr=False)
class Negation:
    """A condition that must be false (unknown is not false)."""

    part: Condition

    def __repr__(self) -> str:
        return f"NOT ({self.part!r})"


Term: TypeAlias = Attribute | Constant | Arithmetic
Condition: TypeAlias = Comparison | Conjunction | Disjunction | Negation


def parts(condition: Condition | Term) -> tuple[Condition | Term, ...]:
    """Return the direct parts of a condition or a term."""
    match condition:
        case Attribute() | Constant():
            return ()
        case Negation(part):
            return (part,)
        case Arithmetic() | Comparison() | Conjunction() | Disjunction():
            return (condition.left, condition.right)


def depth(condition: Condition | Term) -> int:
    """Return the deepest nesting of conditions and terms."""
    deepest, level = 0, [condition]
    while level:
        deepest += 1
        level = [part for node in level for part in parts(node)]
    return deepest


def attributes(condition: Condition | Term) -> Iterator[Attribute]:
    """Yield every attribute that a condition uses, in order of appearance."""
    pending = [condition]
    while pending:
        condition = pending.pop()
        if isinstance(condition, Attribute):
            yield condition
        pending.extend(reversed(parts(condition)))
