"""Parse conditions on one tuple: an SQL expression becomes a small tree.

The grammar has only expressions: columns, constants, operators and function calls. It has no
SELECT, no FROM and no table functions, so a condition cannot open a file or a connection. The
allowed functions are in `functions`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import NamedTuple, TypeAlias

LONGEST = 65_536
"""The largest number of characters of a condition."""
MOST_PARTS = 5_000
"""The largest number of columns, constants, operators and calls in a condition."""
DEEPEST = 50
"""The largest nesting depth of a condition."""

Scalar: TypeAlias = int | float | str | bool | date | datetime | time | timedelta | None


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the tuple."""

    name: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant."""

    value: Scalar


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """An operator or a function, by its name in capitals, and its arguments."""

    name: str
    arguments: tuple[Tree, ...]


Tree: TypeAlias = Column | Literal | FunctionCall


class _Token(NamedTuple):
    kind: str
    text: str
    place: int

    @property
    def word(self) -> str:
        return self.text.upper() if self.kind == "word" else ""


_TOKEN = re.compile(
    r"""
      (?P<blank>\s+|--[^\n]*|/\*.*?\*/)
    | (?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![\w.]))
    | (?P<text>'(?:[^']|'')*+')
    | (?P<quoted>"(?:[^"]|"")*+")
    | (?P<word>[^\W\d]\w*)
    | (?P<sign><>|!=|<=|>=|\|\||::|!~\*|!~|~\*|[-+*/%(),=<>~.])
    """,
    re.VERBOSE | re.DOTALL,
)
_COMPARISONS = {"=": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_MATCHES = {"~": ("~", True), "~*": ("~*", True), "!~": ("~", False), "!~*": ("~*", False)}
_MATCH_WORDS = {"LIKE": "LIKE", "ILIKE": "ILIKE", "RLIKE": "~", "REGEXP": "~"}
_CLOCK = {
    "CURRENT_DATE", "CURRENT_TIME", "CURRENT_TIMESTAMP", "GETDATE", "LOCALTIME", "LOCALTIMESTAMP",
    "NOW", "TODAY",
}  # fmt: skip
_BEYOND_ONE_TUPLE = {
    "DISTINCT", "EXISTS", "FILTER", "FROM", "GROUP", "HAVING", "JOIN", "LIMIT", "ORDER", "OVER",
    "PARTITION", "SELECT", "TABLE", "UNION", "VALUES", "WHERE", "WITH", "WITHIN",
}  # fmt: skip
"""Words of SQL queries; an error message says that they are not supported."""
_RESERVED = _CLOCK | {
    "AND", "AS", "BETWEEN", "CASE", "DISTINCT", "ELSE", "END", "EXISTS", "FALSE", "FROM", "ILIKE",
    "IN", "IS", "LIKE", "NOT", "NULL", "OR", "OVER", "REGEXP", "RLIKE", "SELECT", "THEN", "TRUE",
    "UNION", "WHEN", "WHERE", "WITH",
}  # fmt: skip
"""Words that can name a column only in double quotes."""
_UNITS = {
    "MICROSECOND": timedelta(microseconds=1),
    "MILLISECOND": timedelta(milliseconds=1),
    "SECOND": timedelta(seconds=1),
    "MINUTE": timedelta(minutes=1),
    "HOUR": timedelta(hours=1),
    "DAY": timedelta(days=1),
    "WEEK": timedelta(weeks=1),
}
_LENGTH = re.compile(r"\s*(-?[0-9]{1,9})\s*([A-Za-z]+?)s?\s*")


def parse_sql(text: str) -> Tree:
    """Parse an SQL expression over one tuple's columns; raise ValueError if it is invalid.

    >>> parse_sql("speed < 8")
    FunctionCall(name='<', arguments=(Column(name='speed'), Literal(value=8)))
    """
    if len(text) > LONGEST:
        raise ValueError(f"the SQL expression is longer than {LONGEST} characters")
    return _Parser(text).parse()


def parse_date(text: str) -> date:
    """Parse a constant date."""
    try:
        found = date.fromisoformat(text.strip())
    except ValueError:
        found = None
    if found is None or not re.fullmatch(r"\d{4}-\d\d-\d\d", text.strip()):
        raise ValueError(f"expected a date such as DATE '2024-06-01'; got '{text[:50]}'") from None
    return found


def parse_time(text: str) -> datetime:
    """Parse a constant time; without a time zone it is in UTC."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        found = None
    if found is None or not re.match(r"\d{4}-\d\d-\d\d", text.strip()):
        raise ValueError(
            f"expected a time such as TIMESTAMP '2024-06-01 12:30:00'; got '{text[:50]}'"
        ) from None
    if found.tzinfo is None:
        return found.replace(tzinfo=UTC)
    try:
        return found.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"the time '{text[:50]}' is outside the years 1 to 9999") from None


def parse_moment(text: str) -> date:
    """Parse a constant that is compared with a date or time, as one of both."""
    return parse_date(text) if len(text.strip()) == len("2024-06-01") else parse_time(text)


def _parse_time_of_day(text: str) -> time:
    try:
        found = time.fromisoformat(text.strip())
    except ValueError:
        found = None
    if found is None or found.tzinfo is not None or not re.match(r"\d\d:\d\d", text.strip()):
        raise ValueError(f"expected a time of day such as TIME '12:30:00'; got '{text[:50]}'")
    return found


def _parse_duration(text: str) -> timedelta:
    found = _LENGTH.fullmatch(text)
    if found is None or found[2].upper() not in _UNITS:
        units = ", ".join(unit.lower() for unit in _UNITS)
        raise ValueError(
            f"expected a duration such as INTERVAL '5 minutes' in one of {units}; got '{text[:50]}'"
        )
    try:
        length = int(found[1]) * _UNITS[found[2].upper()]
    except OverflowError:
        length = timedelta.max
    if abs(length) > timedelta(days=1_000_000):
        raise ValueError(f"the INTERVAL '{text[:50]}' is longer than 1,000,000 days")
    return length


_TYPED: dict[str, Callable[[str], Scalar]] = {
    "DATE": parse_date,
    "TIMESTAMP": parse_time,
    "DATETIME": parse_time,
    "TIME": _parse_time_of_day,
    "INTERVAL": _parse_duration,
}
"""Words that turn the text after them into a constant."""


class _Parser:
    """Recursive descent, from the loosest operator to the tightest."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0
        self._depth = 0
        self._sizes: dict[int, tuple[Tree, int, int]] = {}

    def parse(self) -> Tree:
        tree = self._expression()
        if self._next.kind != "end":
            raise self._unexpected("expected an operator or the end")
        return tree

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        token = self._next
        self._at += 1
        return token

    def _takes(self, *texts: str) -> bool:
        """Consume these words and signs if they come next; return whether they do."""
        ahead = self._tokens[self._at : self._at + len(texts)]
        found = [token.word or token.text for token in ahead if token.kind in ("word", "sign")]
        if found != list(texts):
            return False
        self._at += len(texts)
        return True

    def _need(self, text: str) -> None:
        if not self._takes(text):
            raise self._unexpected(f"expected {text}")

    def _unexpected(self, expected: str) -> ValueError:
        token = self._next
        if token.word in _CLOCK:
            return ValueError(
                f"'{token.word}' depends on the clock; an event may only depend on the tuple's "
                "own columns"
            )
        if token.word in _BEYOND_ONE_TUPLE:
            return _beyond_one_tuple(token.word)
        before = self._tokens[self._at - 1] if self._at else None
        if token.text == "=" and before is not None and before.text == "=":
            expected = "write a comparison with one '=',"
        got = "the end" if token.kind == "end" else f"{token.text[:30]!r}"
        compared = before is not None and before.text in ("=", "<>", "!=")
        is_text = token.word in _RESERVED and compared
        hint = f". Text takes single quotes: '{token.text}'" if is_text else ""
        return ValueError(
            f"not an SQL expression: {expected} at character {token.place + 1}; got {got}{hint}"
        )

    def _call(self, name: str, *arguments: Tree) -> Tree:
        """Build a call; limit its size as a tree, where a part used twice counts twice."""
        sizes = [self._sizes.get(id(part), (part, 1, 1)) for part in arguments]
        size, depth = 1 + sum(s[1] for s in sizes), 1 + max((s[2] for s in sizes), default=0)
        if size > MOST_PARTS:
            raise ValueError(f"the SQL expression has more than {MOST_PARTS} parts")
        if depth > DEEPEST:
            raise ValueError(f"the SQL expression is nested more than {DEEPEST} deep")
        call = FunctionCall(name, arguments)
        self._sizes[id(call)] = call, size, depth
        return call

    def _expression(self) -> Tree:
        self._depth += 1
        if self._depth > DEEPEST:
            raise ValueError(f"the SQL expression is nested more than {DEEPEST} deep")
        tree = self._chain("OR", lambda: self._chain("AND", self._negation))
        self._depth -= 1
        return tree

    def _chain(self, word: str, part: Callable[[], Tree]) -> Tree:
        parts = [part()]
        while self._takes(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else self._call(word, *parts)

    def _negation(self) -> Tree:
        times = 0
        while self._takes("NOT"):
            times += 1
        tree = self._comparison()
        for _ in range(times):
            tree = self._call("NOT", tree)
        return tree

    def _comparison(self) -> Tree:
        left = self._sum()
        while True:
            sign = self._next.text if self._next.kind == "sign" else ""
            if sign in _COMPARISONS:
                self._take()
                left = self._call(_COMPARISONS[sign], left, self._sum())
            elif sign in _MATCHES:
                self._take()
                name, wanted = _MATCHES[sign]
                left = self._unless(wanted, self._call(name, left, self._sum()))
            elif self._takes("IS"):
                left = self._is(left)
            elif self._tokens[self._at + self._starts_with_not].word in _MEMBERSHIPS:
                left = self._membership(left, not self._takes("NOT"))
            else:
                return left

    @property
    def _starts_with_not(self) -> bool:
        return self._next.word == "NOT"

    def _unless(self, wanted: bool, tree: Tree) -> Tree:
        return tree if wanted else self._call("NOT", tree)

    def _is(self, left: Tree) -> Tree:
        wanted = not self._takes("NOT")
        if self._takes("NULL"):
            return self._unless(wanted, self._call("IS NULL", left))
        if self._takes("TRUE"):
            return self._unless(wanted, self._call("IS TRUE", left))
        if self._takes("FALSE"):
            return self._unless(wanted, self._call("IS TRUE", self._call("NOT", left)))
        if self._takes("DISTINCT", "FROM"):
            return self._unless(wanted, self._call("IS DISTINCT FROM", left, self._sum()))
        raise self._unexpected("expected NULL, TRUE, FALSE or DISTINCT FROM")

    def _membership(self, left: Tree, wanted: bool) -> Tree:
        word = self._take().word
        if word == "BETWEEN":
            low = self._sum()
            self._need("AND")
            inside = self._call("<=", left, self._sum())
            return self._unless(wanted, self._call("AND", self._call(">=", left, low), inside))
        if word == "IN":
            self._need("(")
            return self._unless(wanted, self._call("IN", left, *self._arguments()))
        return self._unless(wanted, self._call(_MATCH_WORDS[word], left, self._sum()))

    def _arguments(self) -> list[Tree]:
        """Parse the arguments after an opening bracket."""
        parts = [self._expression()]
        while self._takes(","):
            parts.append(self._expression())
        self._need(")")
        return parts

    def _sum(self) -> Tree:
        left = self._product()
        while self._next.text in ("+", "-", "||") and self._next.kind == "sign":
            left = self._call(self._take().text, left, self._product())
        return left

    def _product(self) -> Tree:
        left = self._signed()
        while self._next.text in ("*", "/", "%") and self._next.kind == "sign":
            left = self._call(self._take().text, left, self._signed())
        return left

    def _signed(self) -> Tree:
        signs = 0
        while self._next.kind == "sign" and self._next.text in ("-", "+"):
            signs += self._take().text == "-"
        tree = self._converted()
        if isinstance(tree, Literal) and type(tree.value) in (int, float) and signs:
            return Literal(tree.value * (-1) ** signs)
        for _ in range(signs):
            tree = self._call("-", tree)
        return tree

    def _converted(self) -> Tree:
        tree = self._primary()
        while True:
            if self._takes("::"):
                tree = self._cast(tree)
            elif self._takes("AT", "TIME", "ZONE"):
                tree = self._call("AT TIME ZONE", tree, self._primary())
            else:
                return tree

    def _primary(self) -> Tree:
        token = self._next
        if token.kind == "number":
            return Literal(_number(self._take()))
        if token.kind == "text":
            return Literal(_unquote(self._take().text))
        if token.kind == "quoted":
            return self._column(_unquote(self._take().text))
        if self._takes("("):
            tree = self._expression()
            self._need(")")
            return tree
        if token.kind == "word":
            return self._named()
        raise self._unexpected("expected a column, a constant or a function")

    def _named(self) -> Tree:
        """Parse an expression that begins with a word."""
        following = self._tokens[self._at + 1]
        word = self._next.word
        if word in ("NULL", "TRUE", "FALSE"):
            self._take()
            return Literal({"NULL": None, "TRUE": True, "FALSE": False}[word])
        if word == "CASE":
            return self._case()
        if following.kind == "text" and word in _TYPED:
            self._take()
            return Literal(_TYPED[word](_unquote(self._take().text)))
        if word in _RESERVED:
            raise self._unexpected("expected a column, a constant or a function")
        if following.kind == "sign" and following.text == "(":
            return self._function()
        return self._column(self._take().text)

    def _column(self, name: str) -> Tree:
        if self._takes("."):
            raise ValueError(
                f"not an SQL expression: a column is named without a table, got '{name[:50]}.'; "
                "put a name that contains a dot in double quotes"
            )
        if name == "*" or (name.startswith("^") and name.endswith("$")):
            raise ValueError(
                "only conditions on one tuple are possible here; "
                f"the name '{name[:50]}' means several columns"
            )
        return Column(name)

    def _function(self) -> Tree:
        name = self._take().word
        self._need("(")
        if name in ("CAST", "TRY_CAST"):
            tree = self._expression()
            self._need("AS")
            tree = self._cast(tree)
            self._need(")")
            return tree
        if name == "EXTRACT":
            part = Literal(self._take().text)
            self._need("FROM")
            tree = self._call("EXTRACT", part, self._expression())
            self._need(")")
            return tree
        if self._takes(")"):
            return self._call(name)
        if self._next.text == "*":
            raise _beyond_one_tuple(f"{name}(*)")
        arguments = self._arguments()
        if len(arguments) == 1 and name in _TYPED:
            return _to_constant(name, arguments[0]) or self._call(name, *arguments)
        return self._call(name, *arguments)

    def _cast(self, tree: Tree) -> Tree:
        to = self._type()
        return _to_constant(str(to.value), tree) or self._call("CAST", tree, to)

    def _case(self) -> Tree:
        self._need("CASE")
        subject = None if self._next.word == "WHEN" else self._expression()
        parts: list[Tree] = []
        while self._takes("WHEN"):
            when = self._expression()
            parts.append(when if subject is None else self._call("=", subject, when))
            self._need("THEN")
            parts.append(self._expression())
        if not parts:
            raise self._unexpected("expected WHEN")
        parts.append(self._expression() if self._takes("ELSE") else Literal(None))
        self._need("END")
        return self._call("CASE", *parts)

    def _type(self) -> Literal:
        if self._next.kind != "word":
            raise self._unexpected("expected a type")
        name = self._take().word
        if name == "DOUBLE":
            self._takes("PRECISION")
        if self._next.text == "(":
            raise ValueError(f"a cast takes a type without brackets; write {name} alone")
        return Literal(name)


_MEMBERSHIPS = {"BETWEEN", "IN", *_MATCH_WORDS}


def _to_constant(name: str, tree: Tree) -> Literal | None:
    """Convert a constant text into a date or time; return None for anything else."""
    if name in _TYPED and isinstance(tree, Literal) and isinstance(tree.value, str):
        return Literal(_TYPED[name](tree.value))
    return None


_HINTS = {
    "&": "; write AND",
    "|": "; write OR",
    "!": "; write NOT",
    **dict.fromkeys("‘’‚“”„´", "; text takes straight quotes: 'on'"),  # noqa: RUF001
}


def _tokens(text: str) -> list[_Token]:
    tokens, place = [], 0
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            hint = _HINTS.get(text[place], "")
            raise ValueError(
                f"not an SQL expression: {text[place]!r} at character {place + 1} cannot be read"
                f"{hint}"
            )
        if found.lastgroup != "blank":
            tokens.append(_Token(str(found.lastgroup), found[0], place))
        place = found.end()
    # Two, so that there is always a token after the next.
    return [*tokens, _Token("end", "", len(text)), _Token("end", "", len(text))]


def _number(token: _Token) -> int | float:
    if token.text.isdigit():
        if len(token.text) > 38:
            raise ValueError("a whole number in a condition has at most 38 digits")
        return int(token.text)
    number = float(token.text)
    if number == float("inf"):
        raise ValueError(f"the number {token.text[:30]} is too large")
    return number


def _unquote(text: str) -> str:
    quote = text[0]
    return text[1:-1].replace(quote * 2, quote)


def _beyond_one_tuple(name: str) -> ValueError:
    return ValueError(
        "only conditions on one tuple are possible here, without aggregates, window functions, "
        f"subqueries or wildcards; this one uses {name}"
    )
