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
from tacit.events.interners import UNKNOWN
from tacit.events.subjects import NO_SUBJECT, Subjects, check_subject_type

INTEGERS = st.one_of(st.integers(-3, 30), st.integers(-(2**63), 2**63 - 1))
SPELLINGS = ["", "7", "07", "007", "+7", "-7", "-0", "0", "00", " 7", "7 ", "7.0", "1e1", "\u0667"]
LARGE = ["9223372036854775807", "9223372036854775808", "-9223372036854775808",
         "-9223372036854775809", "18446744073709551615", "99999999999999999999"]  # fmt: skip
TEXTS = st.one_of(
    st.sampled_from([*SPELLINGS, *LARGE, "a", "b", "taxi 1", "a\nb"]),
    INTEGERS.map(str),
    st.text(max_size=20),
)
Batch = tuple[list[Any], pa.DataType, bool, bool]
"""A column's values and type; whether it is learned, and whether it is a dictionary."""


def expected(known: dict[str, int], column: list[Any], learning: bool) -> list[int]:
    """What a dictionary of texts would do."""
    found = []
    for name in column:
        if name is None or name == "":
            found.append(NO_SUBJECT)
        elif learning:
            found.append(known.setdefault(str(name), len(known)))
        else:
            found.append(known.get(str(name), UNKNOWN))
    return found


def integers(kind: pa.DataType) -> st.SearchStrategy[int]:
    """Those that fit into a type."""
    bits, signed = kind.bit_width, pa.types.is_signed_integer(kind)
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.integers(max(low, -3), 30) | st.integers(low, high)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """A column of texts or integers in any layout."""
    numbers = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint32(), pa.uint64()]
    kind = draw(st.sampled_from([pa.string(), pa.large_string(), pa.string_view(), *numbers]))
    names = integers(kind) if pa.types.is_integer(kind) else TEXTS
    values = draw(st.lists(st.none() | names, max_size=30))
    return values, kind, draw(st.booleans()), draw(st.booleans())


@settings(max_examples=60)
@given(st.lists(batches(), max_size=6))
def test_names_are_numbered_as_a_dictionary_of_texts_would(drawn: list[Batch]) -> None:
    """Integers are their digits, however columns of both kinds follow each other."""
    subjects, known = Subjects(), dict[str, int]()
    for values, kind, learning, coded in drawn:
        column = pa.array(values, kind)
        column = column.dictionary_encode() if coded and kind != pa.string_view() else column
        found = subjects.learn(column) if learning else subjects.slots(column)
        assert subjects.find(column)[1] <= bool((subjects.slots(column) >= 0).all())
        assert found.dtype == np.int32
        assert found.tolist() == expected(known, values, learning)
        assert subjects.names.to_pylist() == list(known)
        again = Subjects.from_state(subjects.state())
        assert again.slots(column[1:]).tolist() == subjects.slots(column)[1:].tolist()


@settings(max_examples=50)
@given(
    st.lists(TEXTS.filter(bool), max_size=10),
    st.lists(INTEGERS | st.none(), max_size=40),
    st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=4),
    st.booleans(),
)
def test_slots_of_integers_are_those_of_their_digits_for_any_split_into_batches(
    before: list[str], values: list[int | None], cuts: list[tuple[int, bool]], learning: bool
) -> None:
    numbers, texts = Subjects(), Subjects()
    numbers.add(before)
    texts.add(before)
    whole = pa.array(values, pa.int64())
    digits = whole.cast(pa.string())
    spelled = texts.learn(digits) if learning else texts.slots(digits)
    found, start = list[int](), 0
    for stop, coded in [*sorted(cuts), (len(values), False)]:
        part = whole[start : min(stop, len(values))]
        part = part.dictionary_encode() if coded else part
        found += (numbers.learn(part) if learning else numbers.slots(part)).tolist()
        start = min(stop, len(values))
    assert found == spelled.tolist()
    assert numbers.names.to_pylist() == texts.names.to_pylist()


def test_only_how_a_number_is_written_is_found_by_its_value() -> None:
    subjects = Subjects()
    subjects.add([name for name in [*SPELLINGS, *LARGE] if name])
    asked = pa.array([7, -7, 0, 2**63 - 1, -(2**63), 10])
    found = subjects.slots(asked)
    spelled = subjects.slots(asked.cast(pa.string()))
    assert found.tolist() == spelled.tolist()
    assert not subjects.find(asked)[1]
    names = [None if slot < 0 else subjects.names[slot].as_py() for slot in found.tolist()]
    assert names == ["7", "-7", "0", LARGE[0], LARGE[2], None]
    assert subjects.slots(pa.array([2**63, 2**64 - 1], pa.uint64())).tolist() == [
        subjects.slots(pa.array([name]))[0] for name in (LARGE[1], LARGE[4])
    ]


def test_a_saved_registry_of_integers_is_their_digits() -> None:
    """So it was written before names were always text."""
    saved = np.array([1200, -7, 0, 7, 2**63 - 1])
    subjects = Subjects.from_state({"integers": saved})
    assert subjects.names.to_pylist() == [str(number) for number in saved]
    assert subjects.slots(pa.array(saved)).tolist() == [0, 1, 2, 3, 4]
    assert subjects.slots(pa.array(["7", "007"])).tolist() == [3, UNKNOWN]


@pytest.mark.parametrize("spread", [1, 7, 10**13])
def test_tables_grow_with_the_registry(spread: int) -> None:
    rng = random.Random(1)
    names = rng.sample(range(-30_000, 30_000), 50_000)
    subjects = Subjects()
    column = pa.array([name * spread for name in names])
    for start in range(0, len(names), 9_999):
        subjects.learn(column[start : start + 9_999])
        assert subjects.slots(column[:100]).tolist() == list(range(100))
    assert subjects.slots(column).tolist() == list(range(50_000))
    assert subjects.slots(pa.array([10**17, 40_000 * spread, -(2**63)])).tolist() == [UNKNOWN] * 3


def test_many_texts_of_many_lengths_are_told_apart() -> None:
    rng = random.Random(2)
    names = list({"x" * rng.randrange(40) + str(rng.randrange(10**6)) for _ in range(40_000)})
    subjects = Subjects()
    assert subjects.learn(pa.array(names)).tolist() == list(range(len(names)))
    assert subjects.slots(pa.array(names, pa.large_string())).tolist() == list(range(len(names)))
    assert subjects.slots(pa.array([n + "?" for n in names[:99]])).tolist() == [UNKNOWN] * 99
    assert subjects.names.to_pylist() == names


def test_long_and_odd_names_work() -> None:
    names = ["x" * 10_000, "x" * 9_999 + "y", "a\nb", "a\0b", "a\0", "a", "Zürich 🚕", " ", "é"]
    subjects = Subjects()
    assert subjects.learn(pa.array([*names, None, ""])).tolist() == [*range(9), -2, -2]
    assert subjects.names.to_pylist() == names
    assert subjects.slots(pl.Series(names[::-1])).tolist() == list(range(9))[::-1]


def test_registered_names_keep_their_slots() -> None:
    subjects = Subjects()
    assert subjects.add(["b", "a", "b"]) == 0
    assert subjects.add(["a", "c"]) == 2
    assert subjects.names.to_pylist() == ["b", "a", "c"]
    assert len(subjects) == 3
    numbers = Subjects()
    assert numbers.add([7, 5]) == 0
    assert numbers.add(pa.array([5, 9])) == 2
    assert numbers.add(["007", "9"]) == 3
    assert numbers.names.to_pylist() == ["7", "5", "9", "007"]
    for wrong in ([""], [None]):
        with pytest.raises(ValueError, match="empty or null"):
            subjects.add(wrong)


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint32(), pa.uint64()]
)
def test_integers_of_all_widths_are_the_same_names(kind: pa.DataType) -> None:
    subjects = Subjects()
    subjects.add(["5", "100"])
    column = pa.array([100, None, 5, 6], kind)
    assert subjects.slots(column).tolist() == [1, NO_SUBJECT, 0, UNKNOWN]


def test_integers_beyond_the_signed_ones_are_their_digits_too() -> None:
    column = pa.array([2**64 - 1, None, 1], pa.uint64())
    subjects = Subjects()
    assert subjects.learn(column).tolist() == [0, NO_SUBJECT, 1]
    assert subjects.names.to_pylist() == [str(2**64 - 1), "1"]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_texts_in_all_layouts_are_the_same_names(kind: pa.DataType) -> None:
    subjects = Subjects()
    subjects.add(["a", "a name that is longer than twelve bytes"])
    column = pa.array(["a name that is longer than twelve bytes", None, "", "a", "z"], kind)
    assert subjects.slots(column).tolist() == [1, -2, -2, 0, -1]
    assert subjects.slots(column[3:]).tolist() == [0, -1]
    frame = pl.Series(["a", None, "b"], dtype=pl.Categorical)
    assert subjects.learn(frame).tolist() == [0, -2, 2]


def test_a_dictionary_is_learned_in_the_order_of_the_tuples_and_only_what_they_name() -> None:
    column = pa.DictionaryArray.from_arrays([2, None, 0, 2], pa.array(["a", "unused", "c", None]))
    subjects = Subjects()
    assert subjects.learn(column).tolist() == [0, -2, 1, 0]
    assert subjects.names.to_pylist() == ["c", "a"]
    subjects.add(["unused"])
    assert subjects.slots(column.dictionary).tolist() == [1, 2, 0, -2]


def test_a_column_of_nulls_names_nobody() -> None:
    assert Subjects().learn(pa.nulls(2)).tolist() == [-2, -2]
    assert Subjects().slots(pa.chunked_array([], pa.string())).tolist() == []


def test_unfit_types_are_refused() -> None:
    for kind in (pa.float64(), pa.bool_(), pa.binary(), pa.binary(16), pa.date32()):
        with pytest.raises(SchemaError, match="cast them to text"):
            check_subject_type(kind)
        with pytest.raises(SchemaError):
            Subjects().slots(pa.array([], kind))


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
    subjects, known = Subjects(), dict[int, int]()
    for more in names:
        subjects.add(more)
        known |= {name: len(known) + place for place, name in enumerate(more)}
        near = {name + step for name in known for step in (-1, 0, 1)} | {0, -(2**63), 2**63 - 1}
        bits = 31 if kind == pa.int32() else 63
        asked = [name for name in near if -(2**bits) <= name < 2**bits]
        found = subjects.slots(pa.array(asked, kind)).tolist()
        digits = {str(name): slot for name, slot in known.items()}
        assert found == expected(digits, asked, learning=False)


def test_names_are_the_same_array_until_there_are_more() -> None:
    subjects = Subjects()
    assert subjects.names.to_pylist() == []
    subjects.add(["a"])
    before = subjects.names
    assert subjects.names is before
    subjects.add(["b"])
    assert before.to_pylist() == ["a"]
    assert subjects.names.to_pylist() == ["a", "b"]


def test_integers_that_are_their_own_slots_are_known_to_be_registered() -> None:
    subjects = Subjects()
    subjects.add(range(5))
    for values, known in (([4, 0, 2], True), ([4, 5], False), ([-1, 0], False), ([], True)):
        slots, registered = subjects.find(pa.array(values, pa.int32()))
        assert registered == known
        assert (slots >= 0).all() or not registered
