"""Explain errors in a pattern's text: what was expected, and what was probably meant."""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet

from lark import Token, UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from tacit.durations import UNITS
from tacit.errors import PatternError
from tacit.patterns.conditions import KEYWORDS
from tacit.patterns.language import find_position

_WORDS = {
    "NAME": "a name",
    "QUOTED": "a column in double quotes",
    "NUMBER": "a number",
    "TEXT": "a text in single quotes",
    "TRUE": "TRUE",
    "FALSE": "FALSE",
    "SEQ": "SEQ",
    "AND": "AND",
    "OR": "OR",
    "NOT": "NOT",
    "LPAR": "'('",
    "COMPARATOR": "a comparison (=, <>, <, <=, > or >=)",
    "PLUS": "'+'",
    "MINUS": "'-'",
    "STAR": "'*'",
    "SLASH": "'/'",
    "PERCENT": "'%'",
    "LBRACE": "'{'",
    "RBRACE": "'}'",
    "DOT": "'.'",
    "WITHIN": "WITHIN",
    "WHERE": "WHERE",
    "COMMA": "','",
    "RPAR": "')'",
    "$END": "the end",
}
_PATTERN_STARTS = frozenset({"NAME", "SEQ", "AND", "OR", "NOT", "LPAR"})
_NO_NAME = " A name has letters A to Z, digits and '_', and does not begin with a digit."
_FOREIGN = {
    "'": " The text that begins here has no closing quote.",
    '"': " The column that begins here has no closing quote.",
    "[": " Write a repetition in braces: a{2,3}.",
    "&": " Write AND(a, b).",
    "|": " Write OR(a, b).",
    "!": " Write NOT a.",
    ";": " Write SEQ(a, b), with a comma.",
}


def explain(error: UnexpectedInput, text: str, start: str) -> PatternError:
    """Return what was expected where, and a hint for common mistakes."""
    place = len(text.rstrip()) if error.pos_in_stream is None else error.pos_in_stream
    if isinstance(error, UnexpectedCharacters):
        before = _code(text[:place]).rstrip()
        hint = _foreign_hint(text[place:], before) or _FOREIGN.get(text[place], _NO_NAME)
        return PatternError(
            f"{text[place]} has no meaning here.{hint}", *find_position(text, place)
        )
    assert isinstance(error, UnexpectedToken)
    token, expected = error.token, frozenset(error.accepts or error.expected or {"$END"})
    at_end = token.type == "$END"
    if at_end:
        place = len(text.rstrip())
    came = f", but the {start} ends here" if at_end else f"; got '{_short(token)}'"
    before = _code(text[:place]).rstrip()
    hint = _foreign_hint(text[place:], before) or _hint(token.type, expected, before)
    message = f"expected {_list_expected(expected, before)}{came}.{hint}"
    return PatternError(message, *find_position(text, place))


_ORDER_WORDS = frozenset({"THEN", "FOLLOWED", "FOLLOWEDBY", "BEFORE", "NEXT"})
_FUNCTION = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)$")


def _foreign_hint(after: str, before: str) -> str:
    """Return a hint for words and signs of other pattern languages; `after` begins where it fails.

    >>> _foreign_hint("-> b", "a")
    ' Order is written SEQ(a, b).'
    """
    word = _FUNCTION.search(before)
    last = "" if word is None else word[1].upper()
    if after.startswith(("->", "→", "=>")) or last in _ORDER_WORDS:
        return " Order is written SEQ(a, b)."
    if after.startswith("(") and last == "COUNT":
        return " Repetition is written a{4,} for four times or more, a{2,3} for two or three."
    if after.startswith("(") and last:
        return f" There is no operator '{word[1] if word else last}': SEQ, AND, OR and NOT exist."
    return ""


def _hint(came: str, expected: AbstractSet[str], before: str) -> str:
    """Return a hint about the mistake; `before` is the text before it, without comments."""
    inside_condition = bool(expected & {"TEXT", "COMPARATOR", "STAR", "DOT"})
    part_ended = "WITHIN" in expected or "COMMA" in expected or expected == {"$END"}
    if came == "$END" and before.count("(") > before.count(")"):
        line, column = find_position(before, _find_unclosed(before))
        return f" The '(' at line {line}, column {column} is not closed."
    if came == "RPAR" and "$END" in expected:
        return " There is no '(' for this ')'."
    if came == "RPAR" and expected >= _PATTERN_STARTS:
        empty = before.endswith("(")
        return " Put at least one part there." if empty else " Remove the last comma."
    if "DOT" in expected:
        return " An attribute is written alias.column."
    if came == "COMPARATOR" and "AND" in expected:
        return " Join comparisons with AND."
    if "COMPARATOR" in expected:
        return " A condition compares: p.hired = TRUE."
    if came in KEYWORDS and "QUOTED" in expected:
        return " A column called like a keyword needs double quotes."
    if inside_condition or not (part_ended or expected >= _PATTERN_STARTS):
        return ""
    return _pattern_hint(came, expected, part_ended)


def _pattern_hint(came: str, expected: AbstractSet[str], part_ended: bool) -> str:
    if part_ended and came in ("AND", "OR"):
        return f" {came} is written before its parts: {came}(a, b)."
    if part_ended and "COMMA" in expected and came in _PATTERN_STARTS:
        return " Is a comma missing before it?"
    if came in ("MINUS", "DOT", "TEXT", "QUOTED", "SLASH") or (came == "NUMBER" and not part_ended):
        return _NO_NAME
    if expected == {"$END"} and came == "COMMA":
        return " Several parts are written SEQ(a, b), AND(a, b) or OR(a, b)."
    if came == "STAR":
        return " For one or more write a+; leave out optional events."
    if came == "COMPARATOR":
        return " Put comparisons after WHERE, or in the definition of an event."
    if not part_ended and came in KEYWORDS:
        return " It is a keyword: choose another name."
    return ""


def _list_expected(expected: AbstractSet[str], before: str) -> str:
    if expected == {"NAME"} and re.search(r"WITHIN\s+\S+$", before, re.IGNORECASE):
        return f"a unit of time ({UNITS})"
    if expected == {"NUMBER"} and before[-6:].upper() == "WITHIN":
        return "a duration, such as '10 min'"
    words = [words for terminal, words in _WORDS.items() if terminal in expected]
    if "NAME" in expected and "WITHIN" in expected:
        words[0] = "an alias"
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _short(token: Token) -> str:
    return str(token) if len(token) <= 40 else f"{token[:40]}..."


def _code(text: str) -> str:
    """Replace comments and quoted text by blanks."""
    quiet = re.compile(r"--[^\n]*|'(?:[^']|'')*'|\"(?:[^\"]|\"\")+\"")
    return quiet.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def _find_unclosed(code: str) -> int:
    """Return the place of the innermost parenthesis that is not closed."""
    opened: list[int] = []
    for found in re.finditer(r"[()]", code):
        if found[0] == "(":
            opened.append(found.start())
        elif opened:
            opened.pop()
    return opened[-1]
