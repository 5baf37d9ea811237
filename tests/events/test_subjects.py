"""The registry of subjects, against a dictionary."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import SchemaError, StateError
from tacit.events.interning import UNKNOWN
from tacit.events.subjects import NO_SUBJECT, Kind, Subjects, subject_kind

INTEGERS = st.one_of(st.integers(-3, 30), st.integers(-(2**63), 2**63 - 1))
TEXTS = st.one_of(st.sampled_from(["", "a", "b", "taxi 1", "a\nb"]), st.text(max_size=20))


def expected(known: dict[Any, int], column: list[Any], learning: bool) -> list[int]:
    """What a dictionary would do."""
    found = []
    for name in column:
        if name is None or name == "":
            found.append(NO_SUBJECT)
        elif learning:
            found.append(known.setdefault(name, len(known)))
        else:
            found.append(known.get(name, UNKNOWN))
    return found


def columns(kind: Kind) -> st.SearchStrategy[list[tuple[list[Any], bool, bool]]]:
    """Several columns; whether each is learned, and whether as a dictionary."""
    names = st.none() | (INTEGERS if kind == "int" else TEXTS)
    return st.lists(st.tuples(st.lists(names, max_size=30), st.booleans(), st.booleans()))


def check(kind: Kind, drawn: list[tuple[list[Any], bool, bool]]) -> None:
    subjects, known = Subjects(kind), dict[Any, int]()
    dtype = pa.int64() if kind == "int" else pa.string()
    for values, learning, coded in drawn:
        column = pa.array(values, dtype)
        column = column.dictionary_encode() if coded else column
        found = subjects.learn(column) if learning else subjects.slots(column)
        assert found.dtype == np.int32
        assert found.tolist() == expected(known, values, learning)
        assert subjects.names.to_pylist() == list(known)
        again = Subjects.from_state(subjects.state())
        assert again.slots(column[1:]).tolist() == subjects.slots(column)[1:].tolist()


@settings(max_examples=150, deadline=None)
@given(columns("int"))
def test_integers_are_numbered_as_a_dictionary_would(
    drawn: list[tuple[list[Any], bool, bool]],
) -> None:
    check("int", drawn)


@settings(max_examples=150, deadline=None)
@given(columns("text"))
def test_texts_are_numbered_as_a_dictionary_would(
    drawn: list[tuple[list[Any], bool, bool]],
) -> None:
    check("text", drawn)


@pytest.mark.parametrize("spread", [1, 7, 10**13])
def test_tables_grow_with_the_registry(spread: int) -> None:
    rng = random.Random(1)
    names = rng.sample(range(-30_000, 30_000), 50_000)
    subjects = Subjects("int")
    column = pa.array([name * spread for name in names])
    for start in range(0, len(names), 9_999):
        subjects.learn(column[start : start + 9_999])
        assert subjects.slots(column[:100]).tolist() == list(range(100))
    assert subjects.slots(column).tolist() == list(range(50_000))
    assert subjects.slots(pa.array([10**17, 40_000 * spread, -(2**63)])).tolist() == [UNKNOWN] * 3


def test_many_texts_of_many_lengths_are_told_apart() -> None:
    rng = random.Random(2)
    names = list({"x" * rng.randrange(40) + str(rng.randrange(10**6)) for _ in range(40_000)})
    subjects = Subjects("text")
    assert subjects.learn(pa.array(names)).tolist() == list(range(len(names)))
    assert subjects.slots(pa.array(names, pa.large_string())).tolist() == list(range(len(names)))
    assert subjects.slots(pa.array([n + "?" for n in names[:99]])).tolist() == [UNKNOWN] * 99
    assert subjects.names.to_pylist() == names


def test_long_and_odd_names_work() -> None:
    names = ["x" * 10_000, "x" * 9_999 + "y", "a\nb", "a\0b", "a\0", "a", "Zürich 🚕", " ", "é"]
    subjects = Subjects("text")
    assert subjects.learn(pa.array([*names, None, ""])).tolist() == [*range(9), -2, -2]
    assert subjects.names.to_pylist() == names
    assert subjects.slots(pl.Series(names[::-1])).tolist() == list(range(9))[::-1]


def test_registered_names_keep_their_slots() -> None:
    subjects = Subjects("text")
    assert subjects.add(["b", "a", "b"]) == 0
    assert subjects.add(["a", "c"]) == 2
    assert subjects.names.to_pylist() == ["b", "a", "c"]
    assert len(subjects) == 3
    numbers = Subjects("int")
    assert numbers.add([7, 5]) == 0
    assert numbers.add(pa.array([5, 9])) == 2
    assert numbers.names.to_pylist() == [7, 5, 9]
    for wrong in ([""], [None]):
        with pytest.raises(ValueError, match="empty or null"):
            subjects.add(wrong)


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint32(), pa.uint64()]
)
def test_integers_of_all_widths_are_the_same_names(kind: pa.DataType) -> None:
    numbers, texts = Subjects("int"), Subjects("text")
    numbers.add([5, 100])
    texts.add([5, 100])
    column = pa.array([100, None, 5, 6], kind)
    assert numbers.slots(column).tolist() == [1, NO_SUBJECT, 0, UNKNOWN]
    assert texts.slots(column).tolist() == [1, NO_SUBJECT, 0, UNKNOWN]


def test_integers_beyond_the_signed_ones_need_a_registry_of_texts() -> None:
    column = pa.array([2**64 - 1, 1], pa.uint64())
    with pytest.raises(SchemaError, match="register the subjects as texts"):
        Subjects("int").slots(column)
    texts = Subjects("text")
    assert texts.learn(column).tolist() == [0, 1]
    assert texts.names.to_pylist() == [str(2**64 - 1), "1"]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_texts_in_all_layouts_are_the_same_names(kind: pa.DataType) -> None:
    subjects = Subjects("text")
    subjects.add(["a", "a name that is longer than twelve bytes"])
    column = pa.array(["a name that is longer than twelve bytes", None, "", "a", "z"], kind)
    assert subjects.slots(column).tolist() == [1, -2, -2, 0, -1]
    assert subjects.slots(column[3:]).tolist() == [0, -1]
    frame = pl.Series(["a", None, "b"], dtype=pl.Categorical)
    assert subjects.learn(frame).tolist() == [0, -2, 2]


def test_a_dictionary_is_learned_in_the_order_of_the_tuples_and_only_what_they_name() -> None:
    column = pa.DictionaryArray.from_arrays([2, None, 0, 2], pa.array(["a", "unused", "c", None]))
    subjects = Subjects("text")
    assert subjects.learn(column).tolist() == [0, -2, 1, 0]
    assert subjects.names.to_pylist() == ["c", "a"]
    subjects.add(["unused"])
    assert subjects.slots(column.dictionary).tolist() == [1, 2, 0, -2]


def test_a_column_of_nulls_names_nobody() -> None:
    assert Subjects("int").learn(pa.nulls(2)).tolist() == [-2, -2]
    assert Subjects("text").slots(pa.chunked_array([], pa.string())).tolist() == []


def test_unfit_types_are_refused() -> None:
    for kind in (pa.float64(), pa.bool_(), pa.binary(), pa.binary(16), pa.date32()):
        with pytest.raises(SchemaError, match="cast them to text"):
            subject_kind(kind)
        for registry in (Subjects("int"), Subjects("text")):
            with pytest.raises(SchemaError):
                registry.slots(pa.array([], kind))
    with pytest.raises(SchemaError, match="register the subjects as texts"):
        Subjects("int").slots(pa.array(["1"]))


def test_the_kind_is_integer_only_if_all_columns_are() -> None:
    coded = pa.dictionary(pa.int32(), pa.int64())
    assert subject_kind(pa.int8(), coded) == "int"
    assert subject_kind(pa.int8(), pa.string()) == "text"
    assert subject_kind(pa.null()) == "text"


def test_damaged_state_is_refused() -> None:
    texts = {"text": np.frombuffer(b"aa", np.uint8), "ends": np.array([0, 1, 2])}
    for state in ({}, {"integers": np.array([1, 1])}, texts, {**texts, "ends": np.array([0, 9])}):
        with pytest.raises(StateError):
            Subjects.from_state(state)


@pytest.mark.parametrize(
    "names",
    [
        [[5, 6, 7]],
        [[5, 6], [7, 8]],
        [[5, 6], [8, 7]],
        [[5, 6], [4]],
        [[7, 6, 5]],
        [[2**63 - 1, -(2**63)]],
        [[2**63 - 2, 2**63 - 1]],
        [[-(2**63), 1 - 2**63], [2 - 2**63]],
    ],
)
@pytest.mark.parametrize("kind", [pa.int64(), pa.int32()])
def test_numbers_that_count_up_and_such_that_nearly_do_are_all_found(
    names: list[list[int]], kind: pa.DataType
) -> None:
    subjects, known = Subjects("int"), dict[int, int]()
    for more in names:
        subjects.add(more)
        known |= {name: len(known) + place for place, name in enumerate(more)}
        near = {name + step for name in known for step in (-1, 0, 1)} | {0, -(2**63), 2**63 - 1}
        bits = 31 if kind == pa.int32() else 63
        asked = [name for name in near if -(2**bits) <= name < 2**bits]
        found = subjects.slots(pa.array(asked, kind)).tolist()
        assert found == expected(dict(known), asked, learning=False)


def test_names_are_the_same_array_until_there_are_more() -> None:
    for kind, first, second in (("int", [4], [9]), ("text", ["a"], ["b"])):
        subjects = Subjects(kind)  # type: ignore[arg-type]
        assert subjects.names.to_pylist() == []
        subjects.add(first)
        before = subjects.names
        assert subjects.names is before
        subjects.add(second)
        assert before.to_pylist() == first
        assert subjects.names.to_pylist() == first + second
