"""Event types that depend on one column are codes: the same masks, for every type of column."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import tacit
from tacit.events.extraction import Extractor
from tacit.events.masks import NO_CODES, EventMasks
from tacit.events.streams import Stream
from tacit.events.types import EventType
from tacit.spec.specification import Specification

STREAM = Stream(subject="taxi", time="ts")
NUMBERS = [3, 0, -2, 7, 3, -128, 100, 0]
TEXTS = ["bar", "bank", "", "bar", "zoo", "bank", "bar", "x"]


def extractor(*conditions: str) -> Extractor:
    """An extractor of an event type for each condition."""
    events = {f"e{n}": EventType(stream="s", where=text) for n, text in enumerate(conditions)}
    return Extractor("s", STREAM, events, {}, tuple(events))


def columns() -> dict[str, pa.Array]:
    """A column of each type, with and without nulls."""
    found: dict[str, pa.Array] = {
        str(kind): pa.array(NUMBERS, kind) for kind in (pa.int8(), pa.int16(), pa.int64())
    }
    found["uint8"] = pa.array([abs(number) for number in NUMBERS], pa.uint8())
    found["bool"] = pa.array([number > 0 for number in NUMBERS])
    found["text"] = pa.array(TEXTS)
    found["dictionary"] = pa.array(TEXTS).dictionary_encode()
    with_null = {
        f"{name} with nulls": pa.concat_arrays([array[:3], pa.nulls(2, array.type), array[5:]])
        for name, array in found.items()
    }
    return found | with_null


@pytest.mark.parametrize("name", list(columns()))
@pytest.mark.parametrize("cut", [slice(0, 8), slice(3, 7), slice(2, 2)])
def test_codes_give_the_same_masks_as_before(name: str, cut: slice) -> None:
    column = columns()[name]
    texts = name.startswith(("text", "dict"))
    conditions = ["v = 'bar'", "v IN ('bank', '')", "v IS NULL"] if texts else []
    conditions = conditions or (
        ["v", "NOT v", "v IS NULL"] if name.startswith("bool") else ["v = 3", "v < 1", "v IS NULL"]
    )
    asked, whole = extractor(*conditions), pa.record_batch({"v": column})
    for batch in (whole, whole.slice(cut.start, cut.stop - cut.start), whole):
        masks = asked.find_types(batch)
        assert masks.codes.dtype == np.uint8
        assert len(masks.codes) == len(masks) == batch.num_rows
        assert masks.dense.tolist() == asked.masks(batch).tolist()


def test_two_columns_or_too_many_values_have_no_codes() -> None:
    both = pa.record_batch({"v": pa.array(NUMBERS, pa.int8()), "w": pa.array(NUMBERS, pa.int8())})
    assert extractor("v = 3", "w = 3").find_types(both).codes is NO_CODES
    many = pa.record_batch({"v": pa.array(range(300))})
    asked = extractor("v = 3")
    assert asked.find_types(many).codes is NO_CODES
    assert asked.find_types(many).dense.tolist() == asked.masks(many).tolist()
    texts = pa.record_batch({"v": pa.array([str(number) for number in range(300)])})
    asked = extractor("v = '3'", "v = '4'", "v = '5'")
    for _ in range(2):
        assert asked.find_types(texts).dense.tolist() == asked.masks(texts).tolist()


def test_parts_of_codes_are_those_of_the_masks() -> None:
    table = np.arange(6, dtype=np.uint64).reshape(3, 2)
    codes = np.array([2, 0, 1, 2], np.uint8)
    coded, dense = EventMasks(table, codes), EventMasks(table[codes])
    assert len(coded) == len(dense) == 4
    assert len(coded[1:1]) == 0
    for chosen in (slice(1, 3), np.array([3, 0])):
        assert coded[chosen].dense.tolist() == dense[chosen].dense.tolist()
    both = EventMasks.concatenate([coded, dense[:2]])
    assert both.dense.tolist() == [*dense.dense.tolist(), *dense.dense.tolist()[:2]]


def test_refused_tuples_do_not_change_the_frame() -> None:
    """Subjects that are their own numbers are read where they are; marks need a copy."""
    spec = Specification.model_validate(
        {
            "streams": {"s": {"subject": "who", "time": "at"}},
            "windows": {"size": "1 min", "future": "1 h", "jump": "1 min"},
            "events": {"e": {"stream": "s", "where": "kind = 1"}},
            "queries": [{"name": "q", "consumer": "c", "pattern": "e"}],
            "subjects": [0, 1, 2],
        }
    ).checked()
    seconds = np.array([0, 1, 2, 10**8, 3, 600, 4, 5, 70, 71, 72])
    frame = pa.table(
        {
            "who": pa.array(np.arange(11) % 3, pa.int32()),
            "at": pa.array(seconds * 1_000_000).cast(pa.timestamp("us")),
            "kind": pa.array(np.ones(11, np.int8)),
        }
    )
    before = frame.to_pylist()
    found = tacit.detect(spec, frame)
    assert frame.to_pylist() == before
    assert found.polars()["detected"].sum() == 6
    refused = found.refused
    assert sum(refused.values()) == 2, refused
