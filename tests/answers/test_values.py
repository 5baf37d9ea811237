"""Queries with several values: from written queries to values, against a simple reference."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tacit
from tacit.answers.values import find_chances, find_values, list_values
from tacit.errors import OptionError, SpecificationError
from tacit.patterns.reference import Tuple, detect, matches
from tacit.patterns.tree import Pattern
from tacit.spec.boolean_queries import group_queries

TYPES = ("home", "work", "walk", "stop")
MECHANISMS = [
    ("optimal", "posterior"),
    ("optimal", "literal"),
    ("adaptive", "posterior"),
    ("uniform", "literal"),
]


def make_spec(mechanism: str = "optimal", decode: str = "posterior") -> tacit.Specification:
    return tacit.Specification(
        streams={"s": tacit.Stream(subject="who", time="at")},
        windows=tacit.Windows(size="10 min"),
        events={
            name: tacit.EventType.model_validate({"stream": "s", "where": f"kind = '{name}'"})
            for name in TYPES
        },
        private=(
            tacit.Private.model_validate({"pattern": "home", "epsilon": 2}),
            tacit.Private.model_validate({"pattern": "stop", "epsilon": 2}),
        ),
        queries=(
            tacit.Query.model_validate(
                {
                    "name": "place",
                    "consumer": "city",
                    "one_of": {"home": "home", "work": "work", "trip": "SEQ(walk, stop)"},
                }
            ),
            tacit.Query.model_validate(
                {"name": "stops", "consumer": "city", "times": "stop", "up_to": 3}
            ),
            tacit.Query.model_validate({"name": "walks", "consumer": "gym", "pattern": "walk"}),
        ),
        mechanism=mechanism,
        decode=decode,
        memory=False,
    ).checked()


def draw_events(seed: int, windows: int = 150, subjects: int = 20) -> pl.DataFrame:
    chance = np.random.default_rng(seed)
    counts = chance.poisson([0.5, 0.4, 0.4, 1.2], (windows, subjects, len(TYPES)))
    window, subject, kind = (part.repeat(counts.ravel()) for part in _places(counts.shape))
    frame = pl.DataFrame(
        {
            "who": [f"p{number}" for number in subject],
            "at": window * 600 + chance.integers(600, size=len(window)),
            "kind": np.array(TYPES)[kind],
        }
    )
    return frame.sort("at")


def _places(shape: tuple[int, ...]) -> Iterator[np.ndarray]:
    return (part.ravel() for part in np.indices(shape))


def count_matches(pattern: Pattern, window: list[Tuple]) -> int:
    """Return the most matches one after the other, tried in all ways."""
    found = list(matches(pattern, window))

    def longest(last: float, used: frozenset[object]) -> int:
        later = [one for one in found if last <= one.first and not used & one.events]
        return max((1 + longest(one.last, used | one.events) for one in later), default=0)

    return longest(-np.inf, frozenset())


def test_true_values_equal_the_reference() -> None:
    spec = make_spec()
    events = draw_events(3, windows=40, subjects=6)
    wide = tacit.detect(spec, events).wide()
    by_window = {
        (start, who): [
            Tuple(at, frozenset({kind})) for at, kind in group.select("at", "kind").iter_rows()
        ]
        for (start, who), group in events.with_columns(start=pl.col("at") // 600).group_by(
            "start", "who"
        )
    }
    first = wide["window_start"].dt.epoch("s").min()
    assert isinstance(first, int)
    place, stops = spec.queries[0].one_of, spec.queries[1].times
    assert place is not None
    assert stops is not None
    for row in wide.iter_rows(named=True):
        start = int(row["window_start"].timestamp()) // 600
        window = by_window.get((start, row["subject"]), [])
        expected = next((name for name, one in place.items() if detect(one, window)), "none")
        assert row["place"] == expected
        assert row["stops"] == str(min(3, count_matches(stops, window)))
        assert row["walks"] == any("walk" in one.types for one in window)


@pytest.mark.parametrize(("mechanism", "decode"), MECHANISMS)
def test_plans_expect_what_runs_on_fresh_data_get(mechanism: str, decode: str) -> None:
    spec = make_spec(mechanism, decode)
    plan = tacit.plan(spec, draw_events(1))
    now = draw_events(2)
    truth, got = tacit.detect(spec, now).polars(), tacit.run(spec, now, plan=plan, seed=5).polars()
    both = truth.join(got, on=["window_start", "subject", "query"], suffix="_told")
    text = both.select("query", "confidence", pl.col("value", "value_told").cast(pl.String))
    place = text.filter(pl.col("query") == "place")
    right = (place["value"] == place["value_told"]).to_numpy()
    values = {value.query: value for value in plan.values}
    error = 4 * np.sqrt(0.25 / len(place))
    bounds = values["place"].accuracy
    assert bounds is not None
    assert bounds[0] - error <= right.mean() <= bounds[1] + error
    assert abs(right.mean() - place["confidence"].to_numpy().mean()) < error
    stops = text.filter(pl.col("query") == "stops")
    off = (stops["value"].cast(pl.Int64) - stops["value_told"].cast(pl.Int64)).abs().to_numpy()
    assert values["stops"].error is not None
    assert abs(values["stops"].error - off.mean()) < 4 * off.std() / np.sqrt(len(off))
    assert abs((off == 0).mean() - stops["confidence"].to_numpy().mean()) < error


def test_values_are_in_rows_ledgers_and_distributions(tmp_path: object) -> None:
    spec, history, now = make_spec(), draw_events(1, 40), draw_events(2, 20)
    plan = tacit.plan(spec, history)
    direct = tacit.run(spec, now, plan=plan, seed=7)
    stored = tacit.run(spec, now, plan=plan, seed=7, ledger=f"{tmp_path}/spent.db")
    assert len(direct) == len(direct.polars()) == 20 * 20 * 3
    ours, theirs = direct.polars(), stored.polars().drop("id")
    columns = ["window_start", "subject", "query", "detected", "value"]
    text = pl.col("subject", "query", "value").cast(pl.String)
    assert set(theirs["value"].drop_nulls().cast(pl.String)) <= {
        *"0123",
        "home",
        "work",
        "trip",
        "none",
    }
    assert ours.select(columns).with_columns(text).shape == theirs.select(columns).shape
    assert stored.wide().columns == ["window_start", "subject", "walks", "place", "stops"]
    chances = direct.distribution("place").drop("window_start", "subject").to_numpy()
    assert np.allclose(chances.sum(axis=1), 1)
    told = ours.filter(pl.col("query") == "place")["confidence"].to_numpy()
    assert np.all(told <= chances.max(axis=1) + 1e-6)
    with pytest.raises(OptionError, match="walks"):
        direct.distribution("walks")


@given(st.lists(st.booleans(), min_size=3, max_size=3), st.data())
def test_the_only_yes_is_the_value_and_otherwise_the_most_likely(
    bits: list[bool], data: st.DataObject
) -> None:
    sure = data.draw(st.lists(st.floats(0.0625, 1, width=32), min_size=3, max_size=3))
    columns = group_queries(["at=home", "at=work", "at=none"])
    shape = (1, 1, 3)
    answers = np.array(bits).reshape(shape)
    confidence = np.array(sure, np.float32).reshape(shape)
    found = find_values(columns, answers, confidence)
    chances = find_chances(columns[0], answers, confidence)[0, 0]
    value = list_values(columns)[found.values[0, 0, 0]]
    expected = int(np.argmax(bits)) if sum(bits) == 1 else int(np.argmax(chances))
    assert value == ("home", "work", "none")[expected]
    assert found.detected[0, 0, 0] == (value != "none")
    assert found.confidence is not None
    assert np.isclose(found.confidence[0, 0, 0], chances[expected])


def test_numbers_count_the_yes_answers() -> None:
    columns = group_queries(["n>=1", "n>=2"])
    for bits in product((False, True), repeat=2):
        found = find_values(columns, np.array(bits).reshape(1, 1, 2), None)
        assert list_values(columns)[found.values[0, 0, 0]] == str(sum(bits))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pattern": "a", "times": "a", "up_to": 2}, "pattern and times"),
        ({"times": "a"}, "needs up_to"),
        ({"pattern": "a", "up_to": 2}, "for queries with times"),
        ({"one_of": {"none": "a"}}, "'none'"),
        ({"one_of": {"x-y": "a"}}, "cannot be a name"),
        ({"one_of": {}}, "1 to 64"),
        ({"one_of": {"x": "missing"}}, "missing"),
        ({"times": "a", "up_to": 2, "alpha": 0.9}, "for queries with pattern"),
    ],
)
def test_mistakes_in_queries_with_several_values(fields: dict[str, object], message: str) -> None:
    plain = {
        "streams": {"s": {"subject": "who", "time": "at"}},
        "windows": {"size": "1 min"},
        "events": {"a": {"stream": "s"}},
        "queries": [{"name": "q", "consumer": "c", **fields}],
    }
    with pytest.raises(SpecificationError, match=message):
        tacit.loads(plain)


def test_a_query_asks_something() -> None:
    plain = {
        "streams": {"s": {"subject": "who", "time": "at"}},
        "windows": {"size": "1 min"},
        "events": {"a": {"stream": "s"}},
        "queries": [{"name": "q", "consumer": "c"}],
    }
    with pytest.raises(SpecificationError, match="none of them"):
        tacit.loads(plain)


def test_specifications_with_values_are_written_and_read_again() -> None:
    spec = make_spec()
    assert tacit.loads(tacit.to_yaml(spec)) == spec
