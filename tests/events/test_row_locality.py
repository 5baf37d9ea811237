"""What a condition gives for a tuple depends on that tuple alone, to the last bit.

Every function of the allow-list is evaluated on whole batches, on single rows, on shuffled
batches and on cuts; hypothesis writes further expressions and rows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.events.extraction import Extractor
from tacit.events.functions import FUNCTIONS, build_value, check_functions
from tacit.events.predicates import parse_predicate
from tacit.events.sql import Column, FunctionCall, Literal, Tree, parse_sql
from tacit.events.streams import Stream
from tacit.events.types import EventType
from tacit.events.values import Kind, column_value
from tests.longer import longer

SCHEMA = pl.Schema(
    {
        "f": pl.Float64(), "g": pl.Float64(), "h": pl.Float32(), "i": pl.Int64(), "j": pl.Int16(),
        "u": pl.UInt64(), "s": pl.String(), "w": pl.String(), "b": pl.Boolean(),
        "c": pl.Boolean(),
        "d": pl.Date(), "t": pl.Datetime("us", "UTC"), "n": pl.Datetime("ns"),
        "z": pl.Datetime("ms", "Europe/Berlin"), "o": pl.Time(), "l": pl.Duration("us"),
        "q": pl.Decimal(12, 3),
    }
)  # fmt: skip
BY_KIND: dict[Kind, tuple[str, ...]] = {
    "number": ("f", "g", "h", "i", "j", "u", "q"),
    "text": ("s", "w"),
    "truth value": ("b", "c"),
    "date": ("d",),
    "time": ("t", "n", "z"),
    "time of day": ("o",),
    "duration": ("l",),
}
TEXTS = [
    "", " ", "a", "A,b,,c", "7", " 12.5", "-3e4", "1e400", "true", "FALSE", "2024-01-31",
    "31/01/2024", "2024-01-31 10:00:00", "10:30", "ΣΑΣ", "straße", "ﬁn", "İı", "é\u0301",
    "\N{WOMAN}\u200d\N{GIRL}", "a\nb", "%_",
    "x" * 40, "0007", "+5", "١٢", "null", "2024-13-40", "9" * 30, "ǅ", "a\x00b",
]  # fmt: skip
_START = datetime(1960, 1, 1, tzinfo=UTC)

EXAMPLES: dict[str, list[str]] = {
    "AND": ["b AND c", "b AND c AND f > 0"],
    "OR": ["b OR c"],
    "NOT": ["NOT b"],
    "IS NULL": [f"{c} IS NULL" for c in SCHEMA],
    "IS TRUE": ["b IS TRUE", "b IS NOT FALSE"],
    "IS DISTINCT FROM": ["f IS DISTINCT FROM g", "s IS NOT DISTINCT FROM w",
                         "t IS DISTINCT FROM n"],
    "IN": ["f IN (1, 2.5, g)", "s IN ('a', w, NULL)", "i IN (0, 1, 2, 3, 4, 5, 6, 7, 8, NULL)",
           "s IN ('a', '', 'b', 'c', 'e', 'f', 'g', 'h', 'i', '7')", "t IN ('2024-01-31')",
           "h IN (0.1, 0.5)"],
    "CASE": ["CASE WHEN b THEN f WHEN c THEN i ELSE 0.5 END", "CASE s WHEN 'a' THEN d ELSE t END",
             "CASE WHEN b THEN s END"],
    "CAST": ["CAST(s AS BIGINT)", "s::double", "CAST(s AS BOOLEAN)", "CAST(f AS TEXT)", "h::text",
             "CAST(f AS INT)", "CAST(u AS TINYINT)", "CAST(i AS VARCHAR)", "CAST(b AS TEXT)",
             "CAST(b AS INT)", "CAST(f AS BOOL)", "CAST(t AS DATE)", "z::date", "n::date",
             "CAST(d AS TIMESTAMP)", "q::text", "CAST(q AS INT)", "CAST(s AS FLOAT)"],
    "COALESCE": ["COALESCE(f, i, 1)", "COALESCE(s, w, '')", "COALESCE(t, d)", "COALESCE(l)"],
    "IFNULL": ["IFNULL(h, g)", "IFNULL(o, o)"],
    "NULLIF": ["NULLIF(f, g)", "NULLIF(s, '')", "NULLIF(i, f)"],
    "GREATEST": ["GREATEST(f, i, 2)", "GREATEST(s, w)", "GREATEST(t, n, z, d)", "GREATEST(b, c)"],
    "LEAST": ["LEAST(f, g)", "LEAST(l, l)", "LEAST(h, q)"],
    **{sign: [f"f {sign} g", f"h {sign} 0.1", f"i {sign} f", f"u {sign} i", f"q {sign} 0.1",
              f"s {sign} w", f"s {sign} 'a'", f"b {sign} c", f"d {sign} '2024-01-31'",
              f"t {sign} n", f"t {sign} d", f"z {sign} TIMESTAMP '2024-01-31 10:00:00'",
              f"o {sign} TIME '10:00'", f"l {sign} INTERVAL '5 minutes'", f"i {sign} u * u * u"]
       for sign in ("=", "<>", "<", "<=", ">", ">=")},
    "+": ["f + g", "h + h", "i + u", "q + 0.1", "t + l", "d + INTERVAL '1 day'", "l + l", "n + l"],
    "-": ["-f", "-u", "f - i", "t - n", "d - d", "z - l", "l - l", "h - 0.1", "i - u"],
    "*": ["f * g", "h * 3", "i * i", "u * u * u", "q * q"],
    "/": ["f / g", "f / 3", "3 / f", "i / 7", "i / j", "h / 3", "1 / 3 + f", "q / 7", "f / 0"],
    "%": ["f % g", "f % 3", "i % 7", "i % j", "h % 0.3", "u % 5", "-7 % i", "q % 0.7"],
    "MOD": ["MOD(f, 0.7)", "MOD(i, j)"],
    "ABS": ["ABS(f)", "ABS(i)", "ABS(h)", "ABS(q)"],
    "CEIL": ["CEIL(f)", "CEIL(h)", "CEIL(i)"],
    "CEILING": ["CEILING(q)"],
    "FLOOR": ["FLOOR(f)", "FLOOR(u)", "FLOOR(h)"],
    "ROUND": ["ROUND(f)", "ROUND(f, 2)", "ROUND(h, 1)", "ROUND(i, 1)", "ROUND(q, 15)"],
    "SIGN": ["SIGN(f)", "SIGN(i)", "SIGN(u)"],
    "POW": ["POW(f, g)", "POW(f, 2)", "POW(f, 3)", "POW(f, 0.5)", "POW(2, f)", "POW(i, j)",
            "POW(h, 1.7)", "POW(f, -1)", "POW(f, -0.5)", "POW(0.3, i)", "POW(q, 4)"],
    "POWER": ["POWER(f, 1.5)"],
    "LOG": ["LOG(f, 3)", "LOG(i, 2)", "LOG(h, 10)"],
    "ATAN2": ["ATAN2(f, g)", "ATAN2(i, 2)", "ATAN2(1, f)", "ATAN2(h, q)"],
    "PI": ["f * PI()"],
    **{name: [f"{name}(f)", f"{name}(h)", f"{name}(i)", f"{name}(q / 1000)"]
       for name in ("SQRT", "CBRT", "EXP", "LN", "LOG2", "LOG10", "LOG1P", "SIN", "COS", "TAN",
                    "ASIN", "ACOS", "ATAN", "DEGREES", "RADIANS")},
    **{name: [f"{name}(s)", f"{name}(s || w)"]
       for name in ("LOWER", "UPPER", "INITCAP", "REVERSE")},
    **{name: [f"{name}(s)", f"{name}(s, 'a ')"] for name in ("TRIM", "LTRIM", "RTRIM")},
    "LEFT": ["LEFT(s, 0)", "LEFT(s, 3)"],
    "RIGHT": ["RIGHT(s, 0)", "RIGHT(s, 3)"],
    "SUBSTR": ["SUBSTR(s, 2)", "SUBSTR(s, j)", "SUBSTR(s, i, j)", "SUBSTR(s, 0, 2)",
               "SUBSTR('abcdef', j, 2)"],
    "SUBSTRING": ["SUBSTRING(s, -1, u)"],
    "REPLACE": ["REPLACE(s, 'a', 'bb')"],
    "||": ["s || w", "s || 'x'", "'x' || s || w"],
    "CONCAT": ["CONCAT(s, w)", "CONCAT(s)", "CONCAT('a', s, 'b')"],
    "CONCAT_WS": ["CONCAT_WS('-', s, w)", "CONCAT_WS('', s, 'z', w)"],
    "LPAD": ["LPAD(s, 5)", "LPAD(s, 5, '0')", "LPAD(s, 3, 'é')", "LPAD(s, 0)"],
    "RPAD": ["RPAD(s, 5)", "RPAD(s, 5, '0')", "RPAD(s, 3, 'é')", "RPAD(s, 0)"],
    "SPLIT_PART": ["SPLIT_PART(s, ',', 1)", "SPLIT_PART(s, ',', 3)"],
    "LENGTH": ["LENGTH(s)"],
    "CHAR_LENGTH": ["CHAR_LENGTH(s)"],
    "OCTET_LENGTH": ["OCTET_LENGTH(s)"],
    "STRPOS": ["STRPOS(s, 'a')", "STRPOS(s, 'ß')"],
    "STARTS_WITH": ["STARTS_WITH(s, 'a')", "STARTS_WITH(s, w)", "STARTS_WITH('abc', w)"],
    "ENDS_WITH": ["ENDS_WITH(s, 'b')", "ENDS_WITH(s, w)"],
    "REGEXP_LIKE": ["REGEXP_LIKE(s, '^[0-9]+$')"],
    "~": ["s ~ 'a.b'", "s !~ '\\d'"],
    "~*": ["s ~* 'ß'", "s !~* 'A'"],
    "LIKE": ["s LIKE 'a%'", "s LIKE '_'", "s NOT LIKE '%a_b%'", "s LIKE 'a.b'"],
    "ILIKE": ["s ILIKE 'STRASSE'", "s ILIKE 'A%'"],
    "DATE": ["DATE(s, '%Y-%m-%d')", "DATE(s, '%d/%m/%Y')", "DATE(s, '%Y-%m-%d %H:%M:%S')"],
    "TIMESTAMP": ["TIMESTAMP(s, '%Y-%m-%d %H:%M:%S')", "TIMESTAMP(s, '%d/%m/%Y')"],
    "DATETIME": ["DATETIME(s, '%Y-%m-%d %H:%M:%S%.f')"],
    "TIME": ["TIME(s, '%H:%M')"],
    "STRPTIME": ["STRPTIME(s, '%Y-%m-%d %H:%M:%S')", "STRPTIME(s, '%Y-%m-%dT%H:%M:%S%z')",
                 "STRPTIME(s, '%s')"],
    "STRFTIME": ["STRFTIME(t, '%Y-%m-%d %H')", "STRFTIME(d, '%d/%m/%Y')", "STRFTIME(d, '%H:%M')",
                 "STRFTIME(z, '%c %z')"],
    "EXTRACT": [*(f"EXTRACT({part} FROM {column})" for part in ("YEAR", "ISOYEAR", "QUARTER",
                  "MONTH", "WEEK", "DAY", "DOY", "DOW", "ISODOW", "EPOCH") for column in "tnzd"),
                *(f"EXTRACT({part} FROM {column})" for part in ("HOUR", "MINUTE", "SECOND")
                  for column in "tnzo"), "EXTRACT(EPOCH FROM l)", "EXTRACT(EPOCH FROM t - n)"],
    "DATE_PART": ["DATE_PART('hour', z)", "DATE_PART('epoch', n)"],
    "AT TIME ZONE": ["t AT TIME ZONE 'Europe/Berlin'", "CAST(n AT TIME ZONE 'Asia/Tokyo' AS DATE)",
                     "EXTRACT(HOUR FROM t AT TIME ZONE 'America/New_York')",
                     "d AT TIME ZONE 'Europe/Berlin'"],
}  # fmt: skip
ALL = [example for examples in EXAMPLES.values() for example in examples]


def random_value(rng: random.Random, dtype: pl.DataType) -> Any:
    """A value of a type; small ones, odd ones and extreme ones."""
    if rng.random() < 0.1:
        return None
    if dtype.is_float():
        return rng.choice(
            [rng.uniform(-1, 1), rng.gauss(0, 50), rng.lognormvariate(0, 5),
             float(rng.randrange(9)), 0.1, -0.0, 1e300, 5e-324, float("nan"), float("inf")]
        )  # fmt: skip
    if dtype.is_decimal():
        return rng.randrange(-(10**6), 10**6) / 1000
    if dtype.is_integer():
        bits = int(str(dtype).lstrip("UInt"))
        low, high = (
            (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
            if dtype.is_signed_integer()
            else (0, 2**bits - 1)
        )
        return rng.choice(
            [rng.randrange(max(low, -9), 10), rng.randrange(low, high + 1), low, high]
        )
    second = rng.choice([rng.randrange(0, 3 * 10**9), 2_022_321_600])
    moment = _START + timedelta(seconds=second, microseconds=rng.choice([0, 1, 999_999]))
    if isinstance(dtype, pl.Datetime):
        return moment if dtype.time_zone else moment.replace(tzinfo=None)
    if dtype == pl.Duration:
        return timedelta(microseconds=rng.randrange(-(10**12), 10**12))
    values: dict[type[pl.DataType], Callable[[], Any]] = {
        pl.String: lambda: rng.choice(TEXTS),
        pl.Boolean: lambda: rng.random() < 0.5,
        pl.Date: moment.date,
        pl.Time: lambda: time(rng.randrange(24), rng.randrange(60), rng.randrange(60)),
    }
    return values[type(dtype)]()


def random_frame(seed: int, rows: int) -> pl.DataFrame:
    rng = random.Random(seed)
    frame = pl.DataFrame(
        [
            pl.Series(name, [random_value(rng, dtype) for _ in range(rows)], dtype, strict=False)
            for name, dtype in SCHEMA.items()
        ]
    )
    floats = pl.col(pl.Float32, pl.Float64)
    return frame.with_columns(pl.when(floats.is_finite()).then(floats))


def built(tree: Tree) -> pl.Expr:
    check_functions(tree)
    return build_value(tree, lambda name: column_value(pl.col(name), SCHEMA[name])).expression


def bits(values: pl.Series) -> pl.Series:
    """Values that are equal only if all their bits are."""
    if values.dtype.is_float():
        word = np.uint32 if values.dtype == pl.Float32 else np.uint64
        whole = pl.Series(values.name, values.fill_null(0.0).to_numpy().view(word))
        return whole.set(values.is_null(), None)
    return values.to_physical() if values.dtype.is_temporal() else values


def evaluated(frame: pl.DataFrame, expressions: Sequence[pl.Expr]) -> pl.DataFrame:
    """The bits of each expression's values, a column each, as one call of Polars gives them."""
    # Polars may give one value where it is the same for all rows; each row gets it here.
    every = pl.when(pl.repeat(value=True, n=pl.len()))
    named = (every.then(one).alias(str(number)) for number, one in enumerate(expressions))
    return pl.DataFrame([bits(values) for values in frame.select(*named)])


def in_parts(rows: int, lengths: Sequence[int]) -> Iterator[tuple[str, list[list[int]]]]:
    """Ways to divide a batch: which rows lie together, in order."""
    yield "single rows", [[row] for row in range(rows)]
    for cut in (cut for cut in (1, 2, 3, 5, 8, 13, 21) if cut < rows):
        yield f"cut at {cut}", [[*range(cut)], [*range(cut, rows)]]
    yield "shuffled", [random.Random(rows).sample(range(rows), rows)]
    for length in lengths:
        parts = [[*range(rows)][start : start + length] for start in range(0, rows, length)]
        yield f"in parts of {length}", parts


def not_row_local(
    frame: pl.DataFrame, expressions: Sequence[pl.Expr], lengths: Sequence[int] = ()
) -> list[tuple[int, str]]:
    """The expressions, by number, whose values depend on how rows lie together."""
    whole = evaluated(frame, expressions)
    found = []
    for how, parts in in_parts(len(frame), lengths):
        pieces = pl.concat([evaluated(frame[part], expressions) for part in parts])
        wanted = whole[[row for part in parts for row in part]]
        pairs = zip(pieces, wanted, strict=True)
        found += [(place, how) for place, (one, two) in enumerate(pairs) if not one.equals(two)]
    return found


def test_every_function_of_the_allow_list_has_examples() -> None:
    assert EXAMPLES.keys() == FUNCTIONS.keys()
    for name, examples in EXAMPLES.items():
        for example in examples:
            used = set()
            pending = [parse_sql(example)]
            while pending:
                if isinstance(tree := pending.pop(), FunctionCall):
                    used.add(tree.name)
                    pending.extend(tree.arguments)
            assert name in used, example


def test_functions_give_the_same_bits_on_a_batch_on_rows_shuffled_and_in_parts() -> None:
    expressions = [built(parse_sql(example)) for example in ALL]
    found = not_row_local(random_frame(1, 40), expressions, [7, 17])
    assert not [(ALL[place], how) for place, how in found]


def test_the_check_finds_what_depends_on_other_rows_among_what_does_not() -> None:
    """Polars multiplies with the reciprocal of a constant, unless there is a single row."""
    f, s, t = pl.col("f"), pl.col("s"), pl.col("t")
    good, zero = built(parse_sql("f / 3")), pl.when(pl.len() > 1).then(0.0).otherwise(-0.0)
    wrong = [f / 3.0, f.sum(), s.shift(1), t.max(), f * zero, pl.col("b").first()]
    found = not_row_local(random_frame(1, 90), [good, *wrong, good])
    assert {place for place, _ in found} == {1, 2, 3, 4, 5, 6}
    assert [how for place, how in found if place == 1] == ["single rows"]
    assert "shuffled" in [how for place, how in found if place == 3]


@pytest.mark.parametrize(
    "where",
    [
        "CASE WHEN b THEN 0 ELSE f END = 0",
        "IFNULL(1, i) = 1",
        "f > 1 / 3 OR 1 / 3 > 0.3",
        "b OR TRUE",
    ],
)
def test_a_condition_gives_a_truth_for_every_row_even_where_it_is_the_same_for_all(
    where: str,
) -> None:
    frame = random_frame(2, 30).with_columns(b=pl.lit(value=True))
    bound = parse_predicate(where).bind(frame.schema)
    assert frame.select(x=bound.expression)["x"].to_list() == [True] * 30
    assert frame[:0].select(x=bound.expression)["x"].to_list() == []


@pytest.mark.parametrize("seed", [0, *longer(1)])
def test_masks_are_the_same_on_every_path_and_for_every_cut(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Look-up tables, steps and Polars; with few event types and with many."""
    rng = random.Random(seed)
    frame = random_frame(seed, 60).with_columns(taxi=pl.lit(1), ts=pl.lit(0))
    conditions = []
    for example in rng.sample(ALL, 70):
        values = frame.select(x=built(parse_sql(example))).to_series()
        conditions.append(f"({example}) IS NULL")
        if values.dtype == pl.Boolean:
            conditions.append(example)
        if values.dtype.is_numeric():
            constants = values.drop_nulls().to_list()
            conditions.append(f"({example}) >= {rng.choice(constants) if constants else 0!r}")
    events = {f"e{n}": EventType(stream="gps", where=where) for n, where in enumerate(conditions)}

    def masks(tables: Sequence[pa.Table], some: Sequence[str]) -> np.ndarray[Any, Any]:
        chosen = {name: events[name] for name in some}
        stream = Stream(subject="taxi", time="ts")
        extractor = Extractor("gps", stream, chosen, {}, list(chosen))
        return np.concatenate([extractor.masks(table).copy() for table in tables])

    table = frame.to_arrow()
    whole = masks([table], list(events))
    single = masks([table.slice(row, 1) for row in range(60)], list(events))
    assert (single == whole).all()
    for cut in (1, 7, 59):
        assert (masks([table.slice(0, cut), table.slice(cut)], list(events)) == whole).all()
    encoded = table.set_column(6, "s", table["s"].dictionary_encode())
    assert (masks([encoded], list(events)) == whole).all()
    for number, name in enumerate(events):
        alone = masks([table.slice(0, 25), table.slice(25, 1), table.slice(26)], [name])
        expected = whole[:, number // 64] >> np.uint64(number % 64) & np.uint64(1)
        assert (alone[:, 0] == expected).all(), conditions[number]
    monkeypatch.setattr("tacit.events.filters.WIDEST", 1)
    assert (masks([table], list(events)) == whole).all()


def literals(kind: Kind) -> st.SearchStrategy[Tree]:
    """Constants of a kind."""
    values: dict[Kind, st.SearchStrategy[Any]] = {
        "number": st.one_of(st.integers(-100, 100), st.floats(-100, 100)),
        "text": st.one_of(st.sampled_from(TEXTS), st.text(max_size=5)),
        "truth value": st.booleans(),
        "date": st.dates(date(1970, 1, 1), date(2040, 1, 1)),
        "time": st.datetimes(datetime(1970, 1, 1), datetime(2040, 1, 1), timezones=st.just(UTC)),
        "time of day": st.times(),
        "duration": st.timedeltas(timedelta(-100), timedelta(100)),
    }
    return st.one_of(values[kind], st.none()).map(Literal)


CONSTANTS: dict[str, st.SearchStrategy[Any]] = {
    "whole number": st.integers(0, 12),
    "whole number above 1": st.integers(2, 12),
    "'text'": st.text(min_size=1, max_size=1),
    "'format'": st.sampled_from(["%Y-%m-%d", "%d/%m/%Y", "%Y-%m-%d %H:%M:%S", "%H:%M"]),
    "'pattern'": st.sampled_from(["a", "^a.*", "%a_", "[0-9]+", "ß|x"]),
    "part": st.sampled_from(["HOUR", "DOW", "EPOCH", "YEAR"]),
    "'part'": st.sampled_from(["HOUR", "DOW", "EPOCH", "YEAR"]),
    "'zone'": st.sampled_from(["Europe/Berlin", "UTC", "Asia/Kolkata"]),
    "type": st.sampled_from(["BIGINT", "SMALLINT", "DOUBLE", "TEXT", "BOOLEAN", "DATE"]),
}


@st.composite
def trees(draw: st.DrawFn, kind: Kind, depth: int = 3) -> Tree:
    """Expressions over all functions; those whose kinds do not fit are skipped by the test."""
    leaf = depth == 0 or draw(st.integers(0, 3)) == 0
    if leaf:
        columns = st.sampled_from([Column(name) for name in BY_KIND[kind]])
        return draw(st.one_of(columns, columns, literals(kind)))
    fitting = [f for f in FUNCTIONS.values() if f.returns in (kind, None) and f.parameters]
    function = draw(st.sampled_from(fitting))
    count = len(function.parameters)
    if function.repeated:
        count += draw(st.integers(0, 2))
    if function.name == "CASE":
        count = draw(st.sampled_from([3, 5]))
    same = draw(st.sampled_from(list(BY_KIND))) if function.returns else kind
    arguments: list[Tree] = []
    for place in range(count):
        parameter = function.parameter(place)
        if parameter.constant is not None:
            arguments.append(Literal(draw(CONSTANTS[str(parameter)])))
            continue
        wanted = draw(st.sampled_from(parameter.kinds)) if parameter.kinds else same
        if function.name == "CASE" and place % 2 == 0 and place < count - 1:
            wanted = "truth value"
        arguments.append(draw(trees(wanted, depth - 1)))
    return FunctionCall(function.name, tuple(arguments))


@settings(max_examples=50)
@given(st.sampled_from(list(BY_KIND)).flatmap(trees), st.integers(0, 1000), st.integers(1, 9))
def test_whatever_expression_hypothesis_writes_is_row_local(
    tree: Tree, seed: int, rows: int
) -> None:
    try:
        expression = built(tree)
    except ValueError:
        return
    if expression.meta.root_names():
        assert not not_row_local(random_frame(seed, rows), [expression])
