"""The operators and functions that a condition may use: the allow-list.

Each one is row-local for every kind of value that it accepts: its result for a tuple depends only
on that tuple's values, to the last bit, however the input is split into batches. The tests
evaluate each of them on whole batches, single rows, shuffled batches and every split. Anything
that is not in `FUNCTIONS` is refused, so a new function of Polars must be checked first.

Formats, regular expressions and sizes are constants. A format that is inferred from data would
depend on other tuples, and a size from data could build texts without bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from math import pi
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo

import polars as pl
from polars.exceptions import PanicException

from tacit.errors import nearest
from tacit.events.sql import Column, FunctionCall, Literal, Scalar, Tree, parse_moment
from tacit.events.values import (
    NULL_TYPES,
    Kind,
    Value,
    align,
    as_float,
    as_instant,
    choose_integer_type,
    compare,
    compute,
    constant_value,
    null_nonfinite,
    null_of,
)

LONGEST_TEXT = 65_536
"""The largest number of bytes that an expression may add to the texts of a tuple."""
LARGEST_FACTOR = 64
"""The largest factor by which an expression may lengthen the texts of a tuple."""
LONGEST_PATTERN = 1_000
"""The largest number of characters of a regular expression or a format."""

Build: TypeAlias = Callable[..., Value]
_SAMPLE = datetime(2024, 11, 29, 13, 57, 48, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a function."""

    kinds: tuple[Kind, ...]
    """The accepted kinds of values; empty for any kind."""
    constant: type[Scalar] | None = None
    """The type of the constant, if it must be one."""
    text: str = ""
    """Its name in the documentation; by default the kinds."""

    def __str__(self) -> str:
        return self.text or " or ".join(self.kinds) or "any"


@dataclass(frozen=True, slots=True)
class Function:
    """An operator or a function."""

    name: str
    parameters: tuple[Parameter, ...]
    returns: Kind | None
    """The kind of its values; None if it is that of its arguments."""
    build: Build
    optional: int = 0
    """The number of parameters at the end that can be omitted."""
    repeated: bool = False
    """Whether the last parameter can be repeated."""
    check: Callable[..., None] | None = None
    """Raises ValueError if constants are invalid; called with the arguments' trees."""
    growth: Callable[..., tuple[float, float]] | None = None
    """The largest length of its text: a factor and a number of bytes, from the arguments'."""

    def parameter(self, place: int) -> Parameter:
        """Return the parameter of an argument."""
        return self.parameters[min(place, len(self.parameters) - 1)]

    @property
    def signature(self) -> str:
        """Its signature, for the documentation."""
        names = [str(parameter) for parameter in self.parameters]
        needed = len(names) - self.optional
        shown = [*names[:needed], *(f"[{name}]" for name in names[needed:])]
        return f"{self.name}({', '.join(shown)}{', ...' if self.repeated else ''})"


def check_functions(tree: Tree) -> None:
    """Raise ValueError if a function is not allowed or is used incorrectly."""
    factor, size = _check(tree)
    if factor > LARGEST_FACTOR or size > LONGEST_TEXT:
        raise ValueError(
            f"the SQL expression could build a text of more than {LARGEST_FACTOR} times its "
            f"columns' length plus {LONGEST_TEXT} bytes; make its constants shorter"
        )


def build_value(tree: Tree, column: Callable[[str], Value]) -> Value:
    """Build the value of a checked tree; raise ValueError if kinds do not match."""
    match tree:
        case Column(name):
            return column(name)
        case Literal(constant):
            return constant_value(constant)
        case FunctionCall(name, arguments):
            return _build(FUNCTIONS[name], arguments, column)


def _check(tree: Tree) -> tuple[float, float]:
    """Check a tree; return the largest length of its text: a factor, and a number of bytes."""
    match tree:
        case Column():
            return 1, 0
        case Literal(value):
            return 0, len(value.encode()) if isinstance(value, str) else 32
    function = FUNCTIONS.get(tree.name)
    if function is None:
        raise ValueError(
            "only conditions on one tuple are possible here, without aggregates and window "
            f"functions; {tree.name[:50]} is not among the functions that are known to depend on "
            f"one tuple alone.{nearest(tree.name[:50], list(FUNCTIONS))} docs/specification.md "
            "lists them"
        )
    arguments = tree.arguments
    least, most = len(function.parameters) - function.optional, len(function.parameters)
    if len(arguments) < least or (len(arguments) > most and not function.repeated):
        raise ValueError(f"expected {function.signature}; got {len(arguments)} arguments")
    for place, argument in enumerate(arguments):
        wanted = function.parameter(place).constant
        if wanted is not None and not (
            isinstance(argument, Literal) and type(argument.value) is wanted
        ):
            raise ValueError(
                f"in {function.signature}, argument {place + 1} must be a constant, written out; "
                f"got {describe_tree(argument)}"
            )
    sizes = [_check(argument) for argument in arguments]
    if function.check is not None:
        function.check(*arguments)
    if function.growth is not None:
        return function.growth(*arguments, sizes=sizes)
    return max((f for f, _ in sizes), default=0), max((s for _, s in sizes), default=0)


def _build(function: Function, arguments: Sequence[Tree], column: Callable[[str], Value]) -> Value:
    values: list[Any] = []
    for place, argument in enumerate(arguments):
        parameter = function.parameter(place)
        if parameter.constant is not None:
            assert isinstance(argument, Literal)
            values.append(argument.value)
            continue
        value = build_value(argument, column)
        if not parameter.kinds or value.kind in parameter.kinds:
            values.append(value)
        elif value.kind is None:
            values.append(null_of(value, parameter.kinds[0]))
        else:
            raise ValueError(
                f"{function.name} needs a {parameter}; {describe_tree(argument)} is a {value.kind}"
            )
    if {"date", "time"} & {value.kind for value in values if isinstance(value, Value)}:
        values = [
            _as_moment(value, argument) for value, argument in zip(values, arguments, strict=True)
        ]
    return function.build(*values)


def _as_moment(value: Any, argument: Tree) -> Any:
    """Convert a constant text next to a date or time into one."""
    if not (isinstance(value, Value) and value.kind == "text" and isinstance(argument, Literal)):
        return value
    return constant_value(parse_moment(str(argument.value)))


def describe_tree(tree: Tree) -> str:
    """Describe a part of a condition, for messages."""
    match tree:
        case Column(name):
            return f"the column '{name[:50]}'"
        case Literal(value):
            return f"the constant {str(value)[:50]!r}"
        case FunctionCall(name):
            return f"the result of {name}"


# Helpers that build values.


def _truth(expression: pl.Expr) -> Value:
    return Value(expression, "truth value")


def _text(expression: pl.Expr) -> Value:
    return Value(expression, "text")


def _whole(expression: pl.Expr, bits: int = 32) -> Value:
    return Value(expression.cast(pl.Int64), "number", bits)


def _float_function(function: Callable[[pl.Expr], pl.Expr]) -> Build:
    """Build a function of floating-point numbers."""
    return lambda x: Value(null_nonfinite(function(as_float(x).expression)), "number")


def _text_function(function: Callable[..., pl.Expr]) -> Build:
    """Build a function of a text and constants."""
    return lambda x, *constants: _text(function(x.expression, *constants))


def _compare(sign: str) -> Build:
    def build(left: Value, right: Value) -> Value:
        _check_kinds(sign, [left, right])
        return _truth(compare(sign, left, right))

    return build


def _same_kind(name: str, values: Sequence[Value]) -> list[Value]:
    """Check that values are of one kind, and align their types."""
    _check_kinds(name, values)
    return align(list(values))


def _check_kinds(name: str, values: Sequence[Value]) -> None:
    """Check that values are of one kind; a date and a time are."""
    kinds = {value.kind for value in values if value.kind is not None}
    if len(kinds) > 1 and kinds != {"date", "time"}:
        raise ValueError(f"{name} needs values of one kind; got a {' and a '.join(sorted(kinds))}")


def _plus(left: Value, right: Value) -> Value:
    left, right = _convert_times(left, right)
    match left.kind, right.kind:
        case "duration", "duration":
            return Value(left.expression + right.expression, "duration")
        case "time", "duration":
            return Value(as_instant(left).expression + right.expression, "time")
        case "duration", "time":
            return Value(as_instant(right).expression + left.expression, "time")
    return compute("+", *_numbers("+", left, right))


def _minus(left: Value, right: Value | None = None) -> Value:
    if right is None:
        return compute("-", constant_value(0), *_numbers("-", left))
    if left.kind is None and right.kind in ("date", "time"):
        left = null_of(left, right.kind)
    left, right = _convert_times(left, right)
    match left.kind, right.kind:
        case "duration", "duration":
            return Value(left.expression - right.expression, "duration")
        case "time", "duration":
            return Value(as_instant(left).expression - right.expression, "time")
        case "time", "time":
            return Value(as_instant(left).expression - as_instant(right).expression, "duration")
    return compute("-", *_numbers("-", left, right))


def _convert_times(left: Value, right: Value) -> tuple[Value, Value]:
    """Convert the sides of a sum of times and durations, if it is one; a null is a duration."""
    kinds = {left.kind, right.kind}
    if not kinds & {"date", "time", "duration"} or kinds - {"date", "time", "duration", None}:
        return left, right
    sides = [null_of(side, "duration") for side in (left, right)]
    first, second = (as_instant(side) if side.kind == "date" else side for side in sides)
    return first, second


def _numbers(name: str, *values: Value) -> list[Value]:
    for value in values:
        if value.kind not in ("number", None):
            raise ValueError(f"{name} needs numbers, or times and durations; got a {value.kind}")
    return [null_of(value, "number") for value in values]


def _arithmetic(sign: str) -> Build:
    return lambda left, right: compute(sign, left, right)


def _abs(x: Value) -> Value:
    if x.bits is None:
        return Value(x.expression.abs(), "number")
    return Value(x.expression.cast(choose_integer_type(x.bits + 1)).abs(), "number", x.bits + 1)


def _rounding(function: Callable[[pl.Expr], pl.Expr]) -> Build:
    return lambda x: x if x.bits is not None else Value(function(x.expression), "number")


def _round(x: Value, digits: int = 0) -> Value:
    if x.bits is not None:
        return x
    return Value(
        null_nonfinite(as_float(x).expression.round(digits, mode="half_away_from_zero")), "number"
    )


def _sign(x: Value) -> Value:
    return _whole(x.expression.sign(), 1)


def _logarithm(x: Value, base: float) -> Value:
    return Value(null_nonfinite(as_float(x).expression.log(float(base))), "number")


def _case(*parts: Value) -> Value:
    """Build a CASE from alternating conditions and values, and a final default."""
    conditions, values = parts[:-1:2], _same_kind("CASE", [*parts[1:-1:2], parts[-1]])
    result = values[-1].expression
    for condition, value in zip(reversed(conditions), reversed(values[:-1]), strict=True):
        result = pl.when(condition.expression).then(value.expression).otherwise(result)
    return Value(result, *values[-1][1:])


def _case_of(*parts: Value) -> Value:
    for condition in parts[:-1:2]:
        if condition.kind not in ("truth value", None):
            raise ValueError(f"CASE WHEN needs a truth value; got a {condition.kind}")
    conditions = [
        null_of(part, "truth value") if place % 2 == 0 and place < len(parts) - 1 else part
        for place, part in enumerate(parts)
    ]
    return _case(*conditions)


def _choose(name: str, function: Callable[..., pl.Expr]) -> Build:
    """Build a function that selects one of several values of one kind."""

    def build(*values: Value) -> Value:
        same = _same_kind(name, values)
        return Value(function(*(value.expression for value in same)), *same[0][1:])

    return build


def _null_if(x: Value, other: Value) -> Value:
    ours, theirs = _same_kind("NULLIF", [x, other])
    equal = (ours.expression == theirs.expression).fill_null(False)
    return Value(pl.when(~equal).then(ours.expression), *ours[1:])


def _is_in(x: Value, *items: Value) -> Value:
    """Build one comparison for all items, or one for each if they are few."""
    same = _same_kind("IN", [x, *items])
    listed = [item.expression for item in same[1:]]
    hashed = x.kind == "text" or (same[0].bits or 64) <= 63
    if hashed and len(listed) > 8 and not any(item.meta.root_names() for item in listed):
        constants = pl.select(pl.concat_list(listed).explode()).to_series()
        found = same[0].expression.is_in(constants.drop_nulls().implode())
        return _truth(pl.when(found | (not constants.has_nulls())).then(found))
    equal = [same[0].expression == item.expression for item in same[1:]]
    return _truth(_join(equal, lambda left, right: left | right))


def _join(parts: Sequence[pl.Expr], join: Callable[[pl.Expr, pl.Expr], pl.Expr]) -> pl.Expr:
    """Join many expressions into a tree of small depth."""
    while len(parts) > 1:
        pairs = [parts[place : place + 2] for place in range(0, len(parts), 2)]
        parts = [reduce(join, pair) for pair in pairs]
    return parts[0]


def _all(*parts: Value) -> Value:
    return _truth(_join([part.expression for part in parts], lambda a, b: a & b))


def _any(*parts: Value) -> Value:
    return _truth(_join([part.expression for part in parts], lambda a, b: a | b))


def _distinct(left: Value, right: Value) -> Value:
    ours, theirs = _same_kind("IS DISTINCT FROM", [left, right])
    return _truth(ours.expression.ne_missing(theirs.expression))


# Texts.


def _like(pattern: str, flags: str) -> str:
    """Translate a LIKE pattern into a regular expression."""
    parts = {"%": ".*", "_": "."}
    return f"(?{flags})\\A" + "".join(parts.get(c) or _escaped(c) for c in pattern) + "\\z"


def _escaped(character: str) -> str:
    return f"\\{character}" if character in r"\.+*?()|[]{}^$#&-~" else character


def _matches(flags: str, like: bool = False) -> Build:
    def build(x: Value, pattern: str) -> Value:
        regex = _like(pattern, flags) if like else f"(?{flags}){pattern}" if flags else pattern
        return _truth(x.expression.str.contains(regex))

    return build


def _check_pattern(_: Tree, pattern: Literal) -> None:
    text = str(pattern.value)
    _check_length(text, "a regular expression")
    try:
        pl.Series([""]).str.contains(text)
    except (pl.exceptions.PolarsError, PanicException):
        raise ValueError(
            "it has a regular expression that is not valid, or too large when compiled"
        ) from None


def _check_like(_: Tree, pattern: Literal) -> None:
    _check_length(str(pattern.value), "a LIKE pattern")


def _check_length(text: str, what: str) -> None:
    if len(text) > LONGEST_PATTERN:
        raise ValueError(f"{what} has at most {LONGEST_PATTERN} characters; got {len(text)}")


def _check_range(place: int, most: int, least: int = 1) -> Callable[..., None]:
    """Return a check that a constant is a number within bounds."""

    def check(*arguments: Tree) -> None:
        if place < len(arguments):
            number = arguments[place]
            assert isinstance(number, Literal)
            if not least <= number.value <= most:  # type: ignore[operator]
                raise ValueError(
                    f"argument {place + 1} must be between {least} and {most}; got {number.value}"
                )

    return check


def _check_pad(x: Tree, size: Literal, fill: Literal | None = None) -> None:
    _check_range(1, LONGEST_TEXT // 4, 0)(x, size)
    if fill is not None and len(str(fill.value)) != 1:
        raise ValueError("LPAD and RPAD fill with a single character")


def _pad(at_start: bool) -> Build:
    def build(x: Value, size: int, fill: str = " ") -> Value:
        text = x.expression.str
        padded = text.pad_start(size, fill) if at_start else text.pad_end(size, fill)
        return _text(padded.str.slice(0, size))

    return build


def _substring(x: Value, start: Value, length: Value | None = None) -> Value:
    """Build SUBSTRING: characters from a position on, counted from 1; a negative length is null."""
    first = _clip(start) - 1
    begin = pl.max_horizontal(first, 0)
    if length is None:
        result = x.expression.str.slice(begin)
    else:
        size = _clip(length)
        end = first + size
        kept = pl.max_horizontal(end - begin, 0)
        result = pl.when(size >= 0).then(x.expression.str.slice(begin, kept))
    known = start.expression.is_not_null()
    if length is not None:
        known = known & length.expression.is_not_null()
    return _text(pl.when(known).then(result))


def _clip(number: Value) -> pl.Expr:
    """Clip a whole number so that sums cannot overflow; null counts as 1."""
    if number.bits is None:
        raise ValueError("SUBSTRING needs whole numbers; use CAST(... AS BIGINT)")
    return number.expression.clip(-(2**31), 2**31).cast(pl.Int64).fill_null(1)


def _position(x: Value, part: str) -> Value:
    """Build STRPOS: where a text begins in another, counted from 1 in characters; 0 if nowhere."""
    before = x.expression.str.splitn(part, 2).struct.field("field_0").str.len_chars()
    found = x.expression.str.contains(part, literal=True)
    return _whole(pl.when(found).then(before + 1).when(~found).then(0))


def _split_part(x: Value, separator: str, number: int) -> Value:
    part = x.expression.str.splitn(separator, number + 1).struct.field(f"field_{number - 1}")
    return _text(pl.when(x.expression.is_not_null()).then(part.fill_null("")))


def _check_not_empty(place: int) -> Callable[..., None]:
    def check(*arguments: Tree) -> None:
        argument = arguments[place]
        assert isinstance(argument, Literal)
        if argument.value == "":
            raise ValueError(f"argument {place + 1} is an empty text; write what to look for")

    return check


def _check_split(x: Tree, separator: Tree, number: Literal) -> None:
    _check_not_empty(1)(x, separator)
    _check_range(2, 100)(x, separator, number)


def _concat(*parts: Value) -> Value:
    return _text(pl.concat_str([part.expression for part in parts], ignore_nulls=True))


def _concat_with(separator: str, *parts: Value) -> Value:
    texts = [part.expression for part in parts]
    return _text(pl.concat_str(texts, separator=separator, ignore_nulls=True))


def _added_up(*_: Tree, sizes: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return sum(factor for factor, _ in sizes), sum(size for _, size in sizes)


def _added_up_with(
    separator: Literal, *parts: Tree, sizes: Sequence[tuple[float, float]]
) -> tuple[float, float]:
    factor, size = _added_up(sizes=sizes[1:])
    return factor, size + len(parts) * len(str(separator.value).encode())


def _replaced(
    _: Tree, old: Literal, new: Literal, *, sizes: Sequence[tuple[float, float]]
) -> tuple[float, float]:
    times = max(1.0, len(str(new.value).encode()) / max(1, len(str(old.value).encode())))
    return sizes[0][0] * times, sizes[0][1] * times


def _cased(_: Tree, *, sizes: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Bound a change of case: a two-byte letter can become three letters of two bytes each."""
    return sizes[0][0] * 3, sizes[0][1] * 3


def _padded(
    _: Tree, size: Literal, *__: Tree, sizes: Sequence[tuple[float, float]]
) -> tuple[float, float]:
    assert isinstance(size.value, int)
    return sizes[0][0], max(sizes[0][1], 4 * size.value)


def _formatted(
    _: Tree, form: Literal, *, sizes: Sequence[tuple[float, float]]
) -> tuple[float, float]:
    """Bound a format: a single letter of it can expand to a whole date and time."""
    return sizes[0][0], 64 * len(str(form.value))


# Dates and times.


def _check_format(kind: Kind) -> Callable[..., None]:
    """Return a check that a format is valid, and parses what it writes."""

    def check(_: Tree, form: Tree) -> None:
        assert isinstance(form, Literal)
        text = str(form.value)
        _check_length(text, "a format")
        try:
            written = _text(pl.lit(_SAMPLE).dt.strftime(text))
            found = pl.select(_parse_time(kind)(written, text).expression).item()
        except (pl.exceptions.PolarsError, PanicException):
            found = None
        day = found.date() if isinstance(found, datetime) else found
        if day is None or (kind != "time of day" and day != _SAMPLE.date()):
            raise ValueError(
                f"the format '{text[:50]}' does not describe a {kind}; "
                "expected one such as '%Y-%m-%d %H:%M:%S'"
            )

    return check


def _check_written_format(_: Tree, form: Literal) -> None:
    text = str(form.value)
    _check_length(text, "a format")
    try:
        pl.Series([_SAMPLE]).dt.strftime(text)
    except (pl.exceptions.PolarsError, PanicException):
        raise ValueError(f"the format '{text[:50]}' is not valid") from None


def _parse_time(kind: Kind) -> Build:
    """Build a function that parses a text by a format; other texts become null."""

    def build(x: Value, form: str) -> Value:
        text = x.expression.str
        if kind == "date":
            return Value(text.strptime(pl.Date, form, strict=False, exact=True), kind)
        if kind == "time of day":
            return Value(text.strptime(pl.Time, form, strict=False), kind)
        found = text.strptime(pl.Datetime("us"), form, strict=False, exact=True)
        zoned = any(sign in form for sign in ("%z", "%:z", "%#z", "%+"))
        return Value(found if zoned else found.dt.replace_time_zone("UTC"), kind)

    return build


def _format(x: Value, form: str) -> Value:
    moment = as_instant(x) if x.kind == "date" else x
    return _text(moment.expression.dt.strftime(form))


def _refuse_inference(name: str) -> Callable[..., None]:
    """Return a check that a format is given, not inferred from other tuples."""
    form = {"DATE": "%Y-%m-%d", "TIME": "%H:%M:%S"}.get(name, "%Y-%m-%d %H:%M:%S")
    kind: Kind = {"DATE": "date", "TIME": "time of day"}.get(name, "time")  # type: ignore[assignment]

    def check(x: Tree, given: Tree | None = None) -> None:
        if given is not None:
            _check_format(kind)(x, given)
            return
        shown = x.name if isinstance(x, Column) else "..."
        raise ValueError(
            f"{name} without a format would infer it from other tuples. Write "
            f"{name}({shown}, '{form}'), or declare the column as `time` in the stream's "
            f"`columns` and compare it directly (CAST({shown} AS DATE) is a time's date)"
        )

    return check


def _extract(part: str, x: Value) -> Value:
    name = part.upper()
    kinds: dict[Kind, bool] = {
        "time": True,
        "date": name not in _CLOCK_PARTS,
        "time of day": name in _CLOCK_PARTS,
        "duration": name == "EPOCH",
    }
    if x.kind is not None and not kinds[x.kind]:
        raise ValueError(f"EXTRACT({name} ...) has no meaning for a {x.kind}")
    moment = x.expression.dt
    if name == "EPOCH" and x.kind == "duration":
        return compute("/", _whole(moment.total_microseconds(), 63), constant_value(1_000_000))
    if name == "EPOCH":
        micros = as_instant(x).expression.dt.timestamp("us")
        return compute("/", _whole(micros, 63), constant_value(1_000_000))
    if name == "DOW":
        return _whole(moment.weekday() % 7)
    return _whole(getattr(moment, _PARTS[name])())


_CLOCK_PARTS = {"HOUR", "MINUTE", "SECOND"}
_PARTS = {
    "YEAR": "year", "ISOYEAR": "iso_year", "QUARTER": "quarter", "MONTH": "month", "WEEK": "week",
    "DAY": "day", "DOY": "ordinal_day", "DOW": "dow", "ISODOW": "weekday", "HOUR": "hour",
    "MINUTE": "minute", "SECOND": "second", "EPOCH": "epoch",
}  # fmt: skip
"""Parts of a time, and their names in Polars. DOW counts from Sunday as 0, ISODOW from
Monday as 1."""


def _check_part(part: Literal, _: Tree) -> None:
    if str(part.value).upper() not in _PARTS:
        raise ValueError(
            f"EXTRACT knows {', '.join(_PARTS)}; got {str(part.value)[:30]!r}."
            f"{nearest(str(part.value).upper()[:30], list(_PARTS))}"
        )


def _at_zone(x: Value, zone: str) -> Value:
    return Value(as_instant(x).expression.dt.convert_time_zone(zone), "time")


def _check_zone(_: Tree, zone: Literal) -> None:
    try:
        ZoneInfo(str(zone.value))
    except (KeyError, ValueError, OSError):
        raise ValueError(
            f"expected the name of a time zone, such as 'Europe/Berlin'; got '{zone.value}'"
        ) from None


_INTEGER_BITS = {
    "TINYINT": 8, "SMALLINT": 16, "INT": 32, "INT4": 32, "INTEGER": 32, "BIGINT": 64, "INT8": 64,
}  # fmt: skip
CAST_KINDS: dict[str, Kind] = {
    **dict.fromkeys(_INTEGER_BITS, "number"),
    **dict.fromkeys(("FLOAT", "DOUBLE", "REAL"), "number"),
    **dict.fromkeys(("TEXT", "VARCHAR", "STRING", "CHAR"), "text"),
    **dict.fromkeys(("BOOLEAN", "BOOL"), "truth value"),
    "DATE": "date",
    **dict.fromkeys(("TIMESTAMP", "DATETIME"), "time"),
}
"""The types that CAST supports, and the kinds of their values."""


def _check_cast(_: Tree, to: Literal) -> None:
    name = str(to.value)
    if name not in CAST_KINDS:
        raise ValueError(
            f"CAST knows {', '.join(CAST_KINDS)}; got {name[:30]}."
            f"{nearest(name[:30], list(CAST_KINDS))}"
        )


def _cast(x: Value, name: str) -> Value:
    kind = CAST_KINDS[name]
    value = null_of(x, kind)
    if kind in ("date", "time"):
        return _cast_to_moment(value, name, kind)
    if value.kind not in ("number", "text", "truth value"):
        raise ValueError(
            f"CAST(... AS {name}) needs a number, text or truth value; got a {value.kind}. "
            "Use EXTRACT or STRFTIME for dates and times"
        )
    if kind == "number" and name in _INTEGER_BITS:
        number = _strip(value).cast(getattr(pl, f"Int{_INTEGER_BITS[name]}"), strict=False)
        return _whole(number, _INTEGER_BITS[name] - 1)
    if kind == "number":
        return Value(null_nonfinite(_strip(value).cast(pl.Float64, strict=False)), "number")
    if kind == "truth value" and value.kind == "text":
        known = _strip(value).str.to_lowercase()
        return _truth(pl.when(known.is_in(["true", "false"])).then(known == "true"))
    if kind == "truth value" and value.kind == "number":
        return _truth(value.expression != 0)
    return Value(value.expression.cast(NULL_TYPES[kind], strict=False), kind)


def _strip(value: Value) -> pl.Expr:
    """Strip blanks around a text, which are not part of a number or truth value."""
    return value.expression.str.strip_chars() if value.kind == "text" else value.expression


def _cast_to_moment(value: Value, name: str, kind: Kind) -> Value:
    if value.kind == "date" or value.kind == "time":
        if kind == "time":
            return value if value.kind == "time" else as_instant(value)
        return Value(value.expression.dt.date(), "date")
    form = "%Y-%m-%d" if kind == "date" else "%Y-%m-%d %H:%M:%S"
    raise ValueError(
        f"CAST(... AS {name}) needs a date or a time; got a {value.kind}. A format must not be "
        f"inferred from other tuples: write {name}(..., '{form}'), or declare the column as `time` "
        "in the stream's `columns`"
    )


# The list.

_ANY = Parameter(())
_NUMBER = Parameter(("number",))
_TEXT = Parameter(("text",))
_TRUTH = Parameter(("truth value",))
_MOMENT = Parameter(("time", "date"))
_SIZE = Parameter(("number",), int, "whole number")
_NUMERAL = Parameter(("number",), int, "whole number")
_WORDS = Parameter(("text",), str, "'text'")
_FORMAT = Parameter(("text",), str, "'format'")
_PATTERN = Parameter(("text",), str, "'pattern'")


def _float_functions() -> list[Function]:
    functions: dict[str, Callable[[pl.Expr], pl.Expr]] = {
        "SQRT": lambda x: x.sqrt(),
        "CBRT": lambda x: x.cbrt(),
        "EXP": lambda x: x.exp(),
        "LN": lambda x: x.log(),
        "LOG2": lambda x: x.log(2.0),
        "LOG10": lambda x: x.log10(),
        "LOG1P": lambda x: x.log1p(),
        "SIN": lambda x: x.sin(),
        "COS": lambda x: x.cos(),
        "TAN": lambda x: x.tan(),
        "ASIN": lambda x: x.arcsin(),
        "ACOS": lambda x: x.arccos(),
        "ATAN": lambda x: x.arctan(),
        "DEGREES": lambda x: x.degrees(),
        "RADIANS": lambda x: x.radians(),
    }
    return [
        Function(name, (_NUMBER,), "number", _float_function(f)) for name, f in functions.items()
    ]


def _comparisons() -> list[Function]:
    signs = ("=", "<>", "<", "<=", ">", ">=")
    return [Function(sign, (_ANY, _ANY), "truth value", _compare(sign)) for sign in signs]


def _text_functions() -> list[Function]:
    plain: dict[str, Callable[[pl.Expr], pl.Expr]] = {
        "LOWER": lambda x: x.str.to_lowercase(),
        "UPPER": lambda x: x.str.to_uppercase(),
        "INITCAP": lambda x: x.str.to_titlecase(),
        "REVERSE": lambda x: x.str.reverse(),
    }
    trims: dict[str, Callable[..., pl.Expr]] = {
        "TRIM": lambda x, chars=None: x.str.strip_chars(chars),
        "LTRIM": lambda x, chars=None: x.str.strip_chars_start(chars),
        "RTRIM": lambda x, chars=None: x.str.strip_chars_end(chars),
    }
    ends: dict[str, Callable[[pl.Expr, int], pl.Expr]] = {
        "LEFT": lambda x, n: x.str.head(n),
        "RIGHT": lambda x, n: x.str.tail(n) if n else x.str.head(0),
    }
    return [
        *(
            Function(n, (_TEXT,), "text", _text_function(f), growth=_cased)
            for n, f in plain.items()
        ),
        *(Function(n, (_TEXT, _WORDS), "text", _text_function(f), 1) for n, f in trims.items()),
        *(
            Function(n, (_TEXT, _SIZE), "text", _text_function(f),
                     check=_check_range(1, LONGEST_TEXT, 0))
            for n, f in ends.items()
        ),
        *(
            Function(name, (_TEXT, Parameter(("number",)), _NUMBER), "text", _substring, 1)
            for name in ("SUBSTR", "SUBSTRING")
        ),
        Function(
            "REPLACE", (_TEXT, _WORDS, _WORDS), "text",
            _text_function(lambda x, old, new: x.str.replace_all(old, new, literal=True)),
            check=_check_not_empty(1), growth=_replaced,
        ),
        Function("||", (_TEXT, _TEXT), "text",
                 lambda x, y: _text(x.expression + y.expression), growth=_added_up),
        Function("CONCAT", (_TEXT,), "text", _concat, repeated=True, growth=_added_up),
        Function("CONCAT_WS", (_WORDS, _TEXT), "text", _concat_with, repeated=True,
                 growth=_added_up_with),
        Function("LPAD", (_TEXT, _SIZE, _WORDS), "text", _pad(True), 1, check=_check_pad,
                 growth=_padded),
        Function("RPAD", (_TEXT, _SIZE, _WORDS), "text", _pad(False), 1, check=_check_pad,
                 growth=_padded),
        Function("SPLIT_PART", (_TEXT, _WORDS, _NUMERAL), "text", _split_part, check=_check_split),
        *(
            Function(name, (_TEXT,), "number", lambda x: _whole(x.expression.str.len_chars()))
            for name in ("LENGTH", "CHAR_LENGTH")
        ),
        Function("OCTET_LENGTH", (_TEXT,), "number",
                 lambda x: _whole(x.expression.str.len_bytes())),
        Function("STRPOS", (_TEXT, _WORDS), "number", _position, check=_check_not_empty(1)),
        Function("STARTS_WITH", (_TEXT, _TEXT), "truth value",
                 lambda x, y: _truth(x.expression.str.starts_with(y.expression))),
        Function("ENDS_WITH", (_TEXT, _TEXT), "truth value",
                 lambda x, y: _truth(x.expression.str.ends_with(y.expression))),
        Function("REGEXP_LIKE", (_TEXT, _PATTERN), "truth value", _matches(""),
                 check=_check_pattern),
        Function("~", (_TEXT, _PATTERN), "truth value", _matches(""), check=_check_pattern),
        Function("~*", (_TEXT, _PATTERN), "truth value", _matches("i"), check=_check_pattern),
        Function("LIKE", (_TEXT, _PATTERN), "truth value", _matches("s", like=True),
                 check=_check_like),
        Function("ILIKE", (_TEXT, _PATTERN), "truth value", _matches("is", like=True),
                 check=_check_like),
    ]  # fmt: skip


def _time_functions() -> list[Function]:
    moments: dict[str, Kind] = {
        "DATE": "date", "TIMESTAMP": "time", "DATETIME": "time", "TIME": "time of day",
    }  # fmt: skip
    parts = Parameter((), str, "part")
    moment = Parameter(("time", "date", "time of day", "duration"))
    return [
        *(
            Function(name, (_TEXT, _FORMAT), kind, _parse_time(kind), 1,
                     check=_refuse_inference(name))
            for name, kind in moments.items()
        ),
        Function("STRPTIME", (_TEXT, _FORMAT), "time", _parse_time("time"),
                 check=_check_format("time")),
        Function("STRFTIME", (_MOMENT, _FORMAT), "text",
                 _format,
                 check=_check_written_format, growth=_formatted),
        Function("EXTRACT", (parts, moment), "number", _extract, check=_check_part),
        Function("DATE_PART", (Parameter((), str, "'part'"), moment), "number", _extract,
                 check=_check_part),
        Function("AT TIME ZONE", (_MOMENT, Parameter((), str, "'zone'")), "time", _at_zone,
                 check=_check_zone),
    ]  # fmt: skip


def _general_functions() -> list[Function]:
    return [
        Function("AND", (_TRUTH,), "truth value", _all, repeated=True),
        Function("OR", (_TRUTH,), "truth value", _any, repeated=True),
        Function("NOT", (_TRUTH,), "truth value", lambda x: _truth(~x.expression)),
        Function("IS NULL", (_ANY,), "truth value", lambda x: _truth(x.expression.is_null())),
        Function("IS TRUE", (_TRUTH,), "truth value",
                 lambda x: _truth(x.expression.fill_null(False))),
        Function("IS DISTINCT FROM", (_ANY, _ANY), "truth value", _distinct),
        Function("IN", (_ANY, _ANY), "truth value", _is_in, repeated=True),
        Function("CASE", (_ANY,), None, _case_of, repeated=True),
        Function("CAST", (_ANY, Parameter((), str, "type")), None, _cast, check=_check_cast),
        Function("COALESCE", (_ANY,), None, _choose("COALESCE", pl.coalesce), repeated=True),
        Function("IFNULL", (_ANY, _ANY), None, _choose("IFNULL", pl.coalesce)),
        Function("NULLIF", (_ANY, _ANY), None, _null_if),
        Function("GREATEST", (_ANY,), None, _choose("GREATEST", pl.max_horizontal), repeated=True),
        Function("LEAST", (_ANY,), None, _choose("LEAST", pl.min_horizontal), repeated=True),
    ]  # fmt: skip


def _number_functions() -> list[Function]:
    two = _NUMBER, _NUMBER
    base = Parameter(("number",), int, "whole number above 1")
    return [
        Function("+", (_ANY, _ANY), None, _plus),
        Function("-", (_ANY, _ANY), None, _minus, 1),
        Function("*", two, "number", _arithmetic("*")),
        Function("/", two, "number", _arithmetic("/")),
        Function("%", two, "number", _arithmetic("REM")),
        Function("MOD", two, "number", _arithmetic("REM")),
        Function("ABS", (_NUMBER,), "number", _abs),
        Function("CEIL", (_NUMBER,), "number", _rounding(lambda x: x.ceil())),
        Function("CEILING", (_NUMBER,), "number", _rounding(lambda x: x.ceil())),
        Function("FLOOR", (_NUMBER,), "number", _rounding(lambda x: x.floor())),
        Function("ROUND", (_NUMBER, _NUMERAL), "number", _round, 1, check=_check_range(1, 15, 0)),
        Function("SIGN", (_NUMBER,), "number", _sign),
        Function("POW", two, "number", _arithmetic("POW")),
        Function("POWER", two, "number", _arithmetic("POW")),
        Function("LOG", (_NUMBER, base), "number", _logarithm, check=_check_range(1, 2**53, 2)),
        Function("ATAN2", two, "number",
                 lambda y, x: Value(null_nonfinite(
                     pl.arctan2(as_float(y).expression, as_float(x).expression)), "number")),
        Function("PI", (), "number", lambda: constant_value(pi)),
    ]  # fmt: skip


FUNCTIONS: dict[str, Function] = {
    function.name: function
    for function in (
        *_general_functions(),
        *_comparisons(),
        *_number_functions(),
        *_float_functions(),
        *_text_functions(),
        *_time_functions(),
    )
}
"""Every operator and function that a condition may use, by its name."""
