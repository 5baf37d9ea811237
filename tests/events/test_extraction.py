"""Event types of tuples, against an evaluation row by row in plain Python."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from tacit.errors import SchemaError
from tacit.events import filters
from tacit.events.areas import Area
from tacit.events.extraction import Extractor
from tacit.events.streams import Stream
from tacit.events.types import EventType
from tests.longer import longer

STREAM = Stream(subject="taxi", time="ts")
Row = Mapping[str, Any]
Truth = Callable[[Row], Any]

SCHEMA = pa.schema(
    {
        "taxi": pa.int64(), "ts": pa.int64(), "kind": pa.int16(), "wide": pa.int64(),
        "count": pa.uint64(), "speed": pa.float64(), "small": pa.float32(), "hired": pa.bool_(),
        "place": pa.string(), "zone": pa.dictionary(pa.int32(), pa.string()), "lon": pa.float64(),
        "lat": pa.float32(),
    }
)  # fmt: skip
INTEGERS, FLOATS, TEXTS = ("kind", "wide", "count"), ("speed", "small"), ("place", "zone")
ODD = (float("nan"), float("inf"), float("-inf"))


def random_table(rng: random.Random, rows: int) -> pa.Table:
    """Tuples with nulls and odd numbers in every column that may have them."""
    values: dict[str, Callable[[], Any]] = {
        "kind": lambda: rng.randrange(-3, 8),
        "wide": lambda: rng.choice([rng.randrange(-5, 5), 2**62, -(2**62), 10**6]),
        "count": lambda: rng.choice([rng.randrange(5), 2**64 - 1, 2**63]),
        "speed": lambda: rng.choice([*ODD, 0.0, -0.0, 8.0, 8.5, rng.uniform(-20, 20)]),
        "small": lambda: rng.choice([*ODD, 0.0, 8.0, rng.uniform(-20, 20), 0.1]),
        "hired": lambda: rng.random() < 0.5,
        "place": lambda: rng.choice(["", "bar", "bank", "a\nb", "züge", "x" * 50]),
        "zone": lambda: rng.choice(["", "bar", "bank", "a\nb"]),
        "lon": lambda: rng.choice([*ODD, 0.0, 1.0, rng.uniform(-2, 3)]),
        "lat": lambda: rng.choice([*ODD, 0.0, 1.0, rng.uniform(-2, 3)]),
    }
    columns = {
        name: [None if rng.random() < 0.15 else draw() for _ in range(rows)]
        for name, draw in values.items()
    }
    return pa.table({"taxi": [1] * rows, "ts": [0] * rows, **columns}, SCHEMA)


def value(row: Row, column: str) -> Any:
    """An attribute as conditions see it: not finite is null."""
    found = row[column]
    return None if isinstance(found, float) and not math.isfinite(found) else found


def both(left: Any, right: Any) -> Any:
    return False if left is False or right is False else None if None in (left, right) else True


def negated(truth: Any) -> Any:
    return None if truth is None else not truth


def either(left: Any, right: Any) -> Any:
    return negated(both(negated(left), negated(right)))


def compared(sign: str, left: Any, right: Any) -> Any:
    if left is None or right is None:
        return None
    return {
        "=": left == right, "<>": left != right, "<": left < right, "<=": left <= right,
        ">": left > right, ">=": left >= right,
    }[sign]  # fmt: skip


def random_comparison(rng: random.Random) -> tuple[str, Truth]:
    sign = rng.choice(["=", "<>", "<", "<=", ">", ">="])
    column = rng.choice([*INTEGERS, *FLOATS, *TEXTS])
    constant: Any = rng.choice([-1, 0, 3, 8, 8.5, -2.25, 100])
    written = str(constant)
    if column in TEXTS:
        constant = rng.choice(["bar", "bank", "", "zug"])
        written = f"'{constant}'"
    return f"{column} {sign} {written}", lambda row: compared(sign, value(row, column), constant)


def random_membership(rng: random.Random) -> tuple[str, Truth]:
    column = rng.choice(["kind", "wide", "place", "zone"])
    chosen: list[Any] = rng.sample(["bar", "bank", ""] if column in TEXTS else [-1, 0, 3, 5], 2)
    if rng.random() < 0.3:
        chosen.append(None)
    wanted = rng.random() < 0.5

    def truth(row: Row) -> Any:
        found = None
        if value(row, column) is not None:
            inside = value(row, column) in [c for c in chosen if c is not None]
            found = True if inside else None if None in chosen else False
        return found if wanted else negated(found)

    written = ", ".join("NULL" if c is None else repr(c) for c in chosen)
    return f"{column} {'' if wanted else 'NOT '}IN ({written})", truth


def random_leaf(rng: random.Random) -> tuple[str, Truth]:
    """A condition without AND, OR and NOT."""
    number = rng.choice([*INTEGERS[:2], *FLOATS])
    text, low = rng.choice(TEXTS), rng.randrange(-4, 6)
    leaves: list[tuple[str, Truth]] = [
        random_comparison(rng),
        random_comparison(rng),
        random_comparison(rng),
        random_membership(rng),
        (f"{number} BETWEEN {low} AND {low + 3}",
         lambda r: both(compared(">=", value(r, number), low),
                        compared("<=", value(r, number), low + 3))),
        (f"{text} LIKE 'ba%'",
         lambda r: None if r[text] is None else r[text].startswith("ba")),
        (f"{text} NOT LIKE '%a%'",
         lambda r: None if r[text] is None else "a" not in r[text]),
        (f"{number} IS NULL", lambda r: value(r, number) is None),
        ("hired", lambda r: r["hired"]),
        (f"CASE WHEN kind > {low} THEN speed > 1 ELSE hired END",
         lambda r: compared(">", value(r, "speed"), 1)
         if compared(">", r["kind"], low) else r["hired"]),
        (f"speed / kind > {low}",
         lambda r: compared(">", divided(value(r, "speed"), r["kind"]), low)),
        (f"kind / 0 > {low}", lambda r: None),
        (f"speed > kind + {low}",
         lambda r: None if r["kind"] is None
         else compared(">", value(r, "speed"), r["kind"] + low)),
    ]  # fmt: skip
    return rng.choice(leaves)


def divided(left: Any, right: Any) -> Any:
    return None if left is None or not right else left / right


def random_condition(rng: random.Random, depth: int = 3) -> tuple[str, Truth]:
    """An SQL condition and what it means."""
    if depth == 0 or rng.random() < 0.3:
        return random_leaf(rng)
    left, left_truth = random_condition(rng, depth - 1)
    right, right_truth = random_condition(rng, depth - 1)
    return rng.choice(
        [
            (f"({left}) AND ({right})", lambda r: both(left_truth(r), right_truth(r))),
            (f"({left}) OR ({right})", lambda r: either(left_truth(r), right_truth(r))),
            (f"NOT ({left})", lambda r: negated(left_truth(r))),
        ]
    )


def extractor(events: Mapping[str, Any], areas: Mapping[str, Area] | None = None) -> Extractor:
    known = {name: EventType(stream="gps", **event) for name, event in events.items()}
    shapes = {name: area.shape() for name, area in (areas or {}).items()}
    return Extractor("gps", STREAM, known, shapes, list(known))


def found(masks: np.ndarray[Any, Any], number: int) -> list[bool]:
    return [bool(int(word) >> (number % 64) & 1) for word in masks[:, number // 64]]


@pytest.mark.parametrize("seed", [*range(4), *longer(*range(4, 12))])
def test_masks_equal_an_evaluation_row_by_row(seed: int) -> None:
    rng = random.Random(seed)
    table = random_table(rng, 120)
    conditions = [random_condition(rng) for _ in range(70)]
    masks = extractor({f"e{i}": {"where": c[0]} for i, c in enumerate(conditions)}).masks(table)
    assert masks.shape == (120, 2)
    rows = table.to_pylist()
    for number, (where, truth) in enumerate(conditions):
        assert found(masks, number) == [truth(row) is True for row in rows], where


@pytest.mark.cases(2)
@pytest.mark.parametrize("seed", range(5))
def test_how_the_input_is_cut_never_changes_the_result(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    table = random_table(rng, 300)
    events: dict[str, Any] = {f"e{i}": {"where": random_condition(rng)[0]} for i in range(20)}
    events["inside"] = {"inside": "home"}
    areas = {"home": Area(box=(0, 0, 1, 1))}
    whole = extractor(events, areas).masks(table)
    monkeypatch.setattr(filters, "WIDEST", rng.choice([1, 3, 100]))
    monkeypatch.setattr("tacit.events.extraction._BLOCK", rng.choice([1, 7, 64]))
    pieces = extractor(events, areas)
    start, masks = 0, []
    while start < len(table):
        size = rng.choice([0, 1, 2, 17, 90])
        masks.append(pieces.masks(table.slice(start, size)))
        start += size
    assert (np.concatenate(masks) == whole).all()


@pytest.mark.parametrize("seed", range(20))
def test_what_masks_held_before_never_shows(seed: int) -> None:
    """Whatever filter is the first: it writes every word of every mask."""
    rng = random.Random(seed)
    table = random_table(rng, 50)
    events = {f"e{i}": {"where": random_condition(rng)[0]} for i in range(rng.choice([1, 2, 70]))}
    ours = extractor(events)
    junk = np.full((50, ours.words), ~np.uint64(0))
    blank = np.zeros((50, ours.words), np.uint64)
    assert (ours.masks(table, junk) == ours.masks(table, blank)).all()


def test_polars_arrow_and_batches_give_the_same() -> None:
    rng = random.Random(1)
    table = random_table(rng, 200)
    events = {f"e{i}": {"where": random_condition(rng)[0]} for i in range(30)}
    ours = extractor(events)
    masks = ours.masks(table)
    frame = pl.DataFrame(table)
    assert (ours.masks(frame) == masks).all()
    assert (ours.masks(frame.with_columns(pl.col("place").cast(pl.Categorical))) == masks).all()
    assert (ours.masks(table.combine_chunks().to_batches()[0]) == masks).all()
    chunked = pa.concat_tables([table.slice(0, 3), table.slice(3, 100), table.slice(103)])
    assert (ours.masks(chunked) == masks).all()
    place = pa.array(table["place"].to_pylist(), pa.string_view())
    views = table.set_column(8, "place", place)
    assert (ours.masks(views) == masks).all()


def test_null_nan_and_infinity_match_neither_a_condition_nor_its_negation() -> None:
    table = pa.table(
        {"taxi": [1] * 5, "ts": [0] * 5, "speed": [None, *ODD, 9.0]},
        pa.schema({"taxi": pa.int64(), "ts": pa.int64(), "speed": pa.float64()}),
    )
    masks = extractor({"fast": {"where": "speed > 8"}, "slow": {"where": "NOT (speed > 8)"}})
    assert masks.masks(table)[:, 0].tolist() == [0, 0, 0, 0, 1]


def test_where_and_inside_must_both_hold() -> None:
    table = pa.table(
        {"taxi": [1] * 4, "ts": [0] * 4, "v": [1, 1, 2, 1], "lon": [0.5, 5.0, 0.5, None],
         "lat": [0.5] * 4}
    )  # fmt: skip
    areas = {"home": Area(box=(0, 0, 1, 1)), "far": Area(circle=(5, 0.5, "1 km"))}
    ours = extractor(
        {
            "home": {"where": "v = 1", "inside": "home"},
            "any": {"inside": ("home", "far")},
            "every": {},
            "never": {"where": "1 = 2"},
            "constant": {"where": "TRUE", "inside": "far"},
        },
        areas,
    )
    assert ours.masks(table)[:, 0].tolist() == [0b00111, 0b10110, 0b00110, 0b00100]


def test_event_types_are_numbered_over_all_streams() -> None:
    events = {
        "other": EventType(stream="meter"),
        "ours": EventType(stream="gps", where="v > 1"),
    }
    types = [f"filler{i}" for i in range(70)] + ["ours", "other"]
    ours = Extractor("gps", STREAM, events, {}, types)
    masks = ours.masks(pa.table({"taxi": [1, 1], "ts": [0, 0], "v": [1, 2]}))
    assert masks.tolist() == [[0, 0], [0, 1 << 6]]
    assert ours.columns == ("taxi", "ts", "v")


def test_an_array_can_be_used_again() -> None:
    out = np.full((2, 1), 77, np.uint64)
    table = pa.table({"taxi": [1, 1], "ts": [0, 0], "v": [1, 2]})
    assert extractor({"a": {"where": "v > 1"}}).masks(table, out) is out
    assert out.tolist() == [[0], [1]]
    assert extractor({"a": {"where": "FALSE"}, "b": {}}).masks(table, out).tolist() == [[2], [2]]


def test_no_event_types_give_masks_without_words() -> None:
    ours = Extractor("gps", STREAM, {}, {}, [])
    assert ours.masks(pa.table({"taxi": [1, 2], "ts": [0, 0]})).shape == (2, 0)


def test_a_table_without_rows_gives_no_masks() -> None:
    table = SCHEMA.empty_table()
    assert extractor({"a": {"where": "speed < 1 AND place = 'bar'"}}).masks(table).shape == (0, 1)


def test_a_batch_whose_column_is_all_null_is_no_error() -> None:
    ours = extractor({"a": {"where": "place LIKE 'x%'"}, "b": {"where": "place IS NULL"}})
    table = pa.table({"taxi": [1], "ts": [0], "place": pa.nulls(1)})
    ours.check(table.schema)
    assert ours.masks(table).tolist() == [[2]]


def test_a_cast_that_fails_is_null_and_not_an_error() -> None:
    ours = extractor({"a": {"where": "CAST(place AS INT) > 1"}})
    table = pa.table({"taxi": [1] * 3, "ts": [0] * 3, "place": ["x", "2", ""]})
    assert ours.masks(table)[:, 0].tolist() == [0, 1, 0]


def test_every_missing_column_is_named_with_its_event_type_and_the_nearest_name() -> None:
    ours = extractor({"slow": {"where": "sped < 1 AND hird"}}, {})
    with pytest.raises(SchemaError) as caught:
        ours.check(pa.schema({"taxi_id": pa.int64(), "ts": pa.int64(), "speed": pa.float64()}))
    message = str(caught.value)
    assert "'taxi', which the subject needs" in message
    assert "'sped', which event type 'slow' needs. Did you mean 'speed'?" in message
    assert "'hird'" in message


@pytest.mark.parametrize(
    ("event", "part"),
    [
        ({"where": "speed + 1"}, "must be true or false"),
        ({"where": "place > 1"}, "does not work here"),
        ({"where": "NULL"}, "must be true or false"),
        ({"inside": "home"}, "must be a number"),
    ],
)
def test_unfit_types_are_reported_before_the_run(event: dict[str, Any], part: str) -> None:
    ours = extractor({"slow": event}, {"home": Area(box=(0, 0, 1, 1))})
    schema = {"taxi": pa.int64(), "ts": pa.int64(), "speed": pa.float64(), "place": pa.string()}
    with pytest.raises(SchemaError, match=part):
        ours.check(pa.schema({**schema, "lon": pa.string(), "lat": pa.float64()}))


def test_several_columns_of_one_name_are_refused() -> None:
    schema = pa.schema(
        [("taxi", pa.int64()), ("ts", pa.int64()), ("v", pa.int8()), ("v", pa.int8())]
    )
    with pytest.raises(SchemaError, match="several columns named 'v'"):
        extractor({"a": {"where": "v = 1"}}).check(schema)


def test_a_table_that_lacks_a_column_is_a_schema_error() -> None:
    with pytest.raises(SchemaError):
        extractor({"a": {"where": "v = 1"}}).masks(pa.table({"taxi": [1], "ts": [0]}))


def test_integers_that_drift_apart_are_still_told_apart() -> None:
    ours = extractor({f"e{k}": {"where": f"v = {k}"} for k in (0, 7, 10**9)})
    for values in ([0, 7], [7, 10**9], [10**9, 0], [2**63 - 1, -(2**63)]):
        masks = ours.masks(pa.table({"taxi": [1, 1], "ts": [0, 0], "v": values}))
        expected = [sum(1 << i for i, k in enumerate((0, 7, 10**9)) if k == v) for v in values]
        assert masks[:, 0].tolist() == expected


def test_many_different_texts_are_told_apart() -> None:
    ours = extractor({f"e{k}": {"where": f"v = 't{k}'"} for k in range(5)})
    values = [f"t{i % 9000}" for i in range(20_000)]
    for _ in range(2):
        masks = ours.masks(pa.table({"taxi": [1] * 20_000, "ts": [0] * 20_000, "v": values}))
        assert masks[:, 0].tolist() == [1 << i % 9000 if i % 9000 < 5 else 0 for i in range(20_000)]


def test_a_value_that_an_expression_fails_on_is_no_match_and_no_error() -> None:
    ours = extractor({"a": {"where": "SUBSTR(place, 1, v) = 'ba'"}, "b": {"where": "v > 1"}})
    values, places = [2, -1, 0, 2, -7, 3], ["bar", "bar", "ba", "bank", "ba", "ba"]
    table = pa.table({"taxi": [1] * 6, "ts": [0] * 6, "v": values, "place": places})
    assert ours.masks(table)[:, 0].tolist() == [3, 0, 0, 3, 0, 3]
