"""Patterns and conditions in text: one grammar, and errors that say what was expected where.

>>> parse_pattern("SEQ(pickup, NOT dropoff, hospital_area) within 10 min")
SEQ(pickup, NOT dropoff, hospital_area) WITHIN 10 min

Text is read without recursion, so that depth is bounded by `MAX_DEPTH` alone.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from tacit.durations import parse_duration
from tacit.errors import PatternError
from tacit.patterns import conditions, tree
from tacit.patterns.conditions import KEYWORDS, Condition
from tacit.patterns.tree import MAX_DEPTH, Pattern

if TYPE_CHECKING:
    from lark import Lark, Token

# Keywords are names until `_keyword` looks at them, so that `SEQUENCE` is no `SEQ` and a stray
# keyword is an unexpected token like any other.
GRAMMAR = r"""
?pattern: NOT pattern                             -> negated
    | bounded
?bounded: repeated
    | bounded WITHIN NUMBER NAME                  -> within
    | bounded WHERE condition                     -> where
?repeated: atom
    | repeated "+"                                -> some
    | repeated "{" NUMBER "}"                     -> exactly
    | repeated "{" NUMBER "," "}"                 -> at_least
    | repeated "{" NUMBER "," NUMBER "}"          -> between
?atom: NAME                                       -> name
    | NAME NAME                                   -> name
    | (SEQ | AND | OR) "(" pattern ("," pattern)* ")"  -> operator
    | "(" pattern ")"

?condition: conjunction
    | condition OR conjunction                    -> either
?conjunction: negation
    | conjunction AND negation                    -> both
?negation: comparison
    | NOT negation                                -> negation
?comparison: sum COMPARATOR sum                   -> comparison
    | "(" condition ")"
?sum: product
    | sum (PLUS | MINUS) product                  -> arithmetic
?product: factor
    | product (STAR | SLASH | PERCENT) factor     -> arithmetic
?factor: MINUS factor                             -> minus
    | NUMBER                                      -> number
    | TEXT                                        -> text
    | (TRUE | FALSE)                              -> truth
    | NAME "." (NAME | QUOTED)                    -> attribute
    | "(" sum ")"

NAME: /[A-Za-z_][A-Za-z0-9_]*/
NUMBER: /([0-9]+(\.[0-9]+)?|\.[0-9]+)([eE][+-]?[0-9]+)?/
TEXT: /'(?:[^']|'')*'/
QUOTED: /"(?:[^"]|"")+"/
COMPARATOR: "==" | "=" | "<>" | "!=" | "<=" | "<" | ">=" | ">"
PLUS: "+"
MINUS: "-"
STAR: "*"
SLASH: "/"
PERCENT: "%"
COMMENT: /--[^\n]*/
%declare SEQ AND OR NOT WITHIN WHERE TRUE FALSE
%import common.WS
%ignore WS
%ignore COMMENT
"""


def parse_pattern(text: str) -> Pattern:
    """Read a pattern.

    >>> parse_pattern("SEQ(slow{3,}, stopped+)").parts[0].least
    3
    """
    pattern = cast("Pattern", _parse(text, "pattern"))
    if tree.depth(pattern) > MAX_DEPTH:
        raise PatternError(_too_deep("pattern"))
    for node in tree.walk(pattern):
        if isinstance(node, tree.Where) and conditions.depth(node.condition) > MAX_DEPTH:
            raise PatternError(_too_deep("condition"))
    return pattern


def parse_condition(text: str) -> Condition:
    """Read a condition, such as follows `WHERE`.

    >>> parse_condition("d.fare > 2 * p.fare and not d.zone = p.zone")
    (d.fare > (2 * p.fare) AND NOT (d.zone = p.zone))
    """
    condition = cast("Condition", _parse(text, "condition"))
    if conditions.depth(condition) > MAX_DEPTH:
        raise PatternError(_too_deep("condition"))
    return condition


def find_word(text: str, word: str) -> tuple[int, int] | None:
    """Line and column, from 1, where a name first stands in a pattern's text.

    >>> find_word("SEQ(pickup,\\n    parkd)", "parkd")
    (2, 5)
    """
    for found in re.finditer(r"--[^\n]*|'(?:[^']|'')*'|[A-Za-z_][A-Za-z0-9_]*", text):
        if found[0] == word:
            return find_position(text, found.start())
    return None


def _too_deep(what: str) -> str:
    return f"this {what} is nested more than {MAX_DEPTH} deep: reduce the nesting"


def find_position(text: str, offset: int) -> tuple[int, int]:
    """Line and column, from 1, of a place in a text."""
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


def _parse(text: str, start: str) -> Any:
    from lark import UnexpectedInput

    from tacit.patterns.syntax_errors import explain

    try:
        return _parser().parse(text, start=start)
    except UnexpectedInput as error:
        raise explain(error, text, start) from None


@cache
def _parser() -> Lark:
    """Built on first use: it takes about 10 ms, and not every command needs it."""
    from lark import Lark

    return Lark(
        GRAMMAR,
        parser="lalr",
        lexer="basic",
        start=["pattern", "condition"],
        transformer=_TreeBuilder(),
        lexer_callbacks={"NAME": _keyword},
    )


def _keyword(token: Token) -> Token:
    word = token.upper()
    return token.update(type=word) if word in KEYWORDS else token


_OPERATORS: dict[str, type[tree.Seq | tree.And | tree.Or]] = {
    "SEQ": tree.Seq,
    "AND": tree.And,
    "OR": tree.Or,
}


class _TreeBuilder:
    """Makes the tree while the text is read; each method is a rule of the grammar."""

    def negated(self, found: list[Any]) -> Pattern:
        return tree.Not(found[1])

    def within(self, found: list[Any]) -> Pattern:
        part, _, amount, unit = found
        try:
            return tree.Within(part, parse_duration(f"{amount} {unit}"))
        except ValueError as error:
            raise PatternError(str(error), amount.line, amount.column) from None

    def where(self, found: list[Any]) -> Pattern:
        return tree.Where(found[0], found[2])

    def some(self, found: list[Any]) -> Pattern:
        return tree.Repeat(found[0], 1, None)

    def exactly(self, found: list[Any]) -> Pattern:
        return _repeat(found[0], found[1], found[1])

    def at_least(self, found: list[Any]) -> Pattern:
        return _repeat(found[0], found[1], None)

    def between(self, found: list[Any]) -> Pattern:
        return _repeat(*found)

    def name(self, found: list[Any]) -> Pattern:
        return tree.Name(*map(str, found))

    def operator(self, found: list[Any]) -> Pattern:
        word, *parts = found
        return _OPERATORS[word.type](*parts)

    def either(self, found: list[Any]) -> Condition:
        return conditions.Disjunction(found[0], found[2])

    def both(self, found: list[Any]) -> Condition:
        return conditions.Conjunction(found[0], found[2])

    def negation(self, found: list[Any]) -> Condition:
        return conditions.Negation(found[1])

    def comparison(self, found: list[Any]) -> Condition:
        left, sign, right = found
        known = {"==": "=", "!=": "<>"}.get(sign, str(sign))
        return conditions.Comparison(cast("conditions.Comparator", known), left, right)

    def arithmetic(self, found: list[Any]) -> conditions.Term:
        left, sign, right = found
        return conditions.Arithmetic(cast("conditions.Operator", str(sign)), left, right)

    def minus(self, found: list[Any]) -> conditions.Term:
        term = found[1]
        if isinstance(term, conditions.Constant) and not isinstance(term.value, bool | str):
            return conditions.Constant(-term.value)
        return conditions.Arithmetic("-", conditions.Constant(0), term)

    def number(self, found: list[Any]) -> conditions.Term:
        return conditions.Constant(_number(found[0]))

    def text(self, found: list[Any]) -> conditions.Term:
        return conditions.Constant(str(found[0])[1:-1].replace("''", "'"))

    def truth(self, found: list[Any]) -> conditions.Term:
        return conditions.Constant(found[0].type == "TRUE")

    def attribute(self, found: list[Any]) -> conditions.Term:
        alias, column = map(str, found)
        quoted = column.startswith('"')
        return conditions.Attribute(alias, column[1:-1].replace('""', '"') if quoted else column)


def _repeat(part: Pattern, least: Token, most: Token | None) -> Pattern:
    try:
        return tree.Repeat(part, _count(least), None if most is None else _count(most))
    except PatternError as error:
        raise PatternError(error.message, least.line, least.column) from None


def _count(token: Token) -> int:
    if not token.isdigit() or len(token) > 9:
        raise PatternError(f"a repetition needs whole numbers up to {tree.MAX_COUNT}; got {token}")
    return int(token)


def _number(token: Token) -> int | float:
    value = float(token)
    if not abs(value) < 2.0**63:
        raise PatternError("this number is too large", token.line, token.column)
    return int(token) if token.isdigit() else value
