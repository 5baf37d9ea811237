"""Sliding windows against their meaning: each tuple lies in several of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from random import Random

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.engines import local
from tacit.errors import StateError
from tacit.events.subjects import Subjects
from tacit.patterns.reference import Tuple, detect
from tacit.pipeline.batches import MergedBatch, Rows
from tacit.pipeline.compiled_spec import CompiledSpec
from tacit.pipeline.engine import Engine
from tacit.spec.specification import Query, Specification
from tacit.spec.yaml_reader import loads
from tacit.windows.clock import TAKEN
from tests.patterns.strategies import VALUES, random_pattern
from tests.pipeline.test_engine import SPEC, Answer, Row, batch, flat, learned, row_lists, run

CHAINS = """
  - {name: guarded, consumer: x, pattern: "SEQ(NOT c, a, NOT big, b)"}
  - {name: twice, consumer: x, pattern: "SEQ(a{2}, b)"}
  - {name: pair, consumer: x, pattern: "SEQ(a x, a y) WHERE y.value >= x.value"}
"""


def sliding(panes: int, size: int = 10, lateness: int = 7) -> Specification:
    """The specification of `test_engine` and some more queries, with windows that overlap."""
    windows = f"{{size: {size} us, slide: {size // panes} us, lateness: {lateness} us"
    return loads(SPEC.replace("{size: 10 us, lateness: 7 us", windows) + CHAINS.lstrip("\n"))


HALVES, FIFTHS, TENTHS = sliding(2), sliding(5), sliding(10)
specifications = pytest.mark.parametrize("spec", [HALVES, FIFTHS, TENTHS], ids=["2", "5", "10"])


def typed(row: Row) -> Tuple:
    """A raw tuple with its event types."""
    types = {name for name, kind in zip("abc", range(3), strict=True) if row.kind == kind}
    if row.value is not None and np.isfinite(row.value) and row.value > 2:
        types.add("big")
    return Tuple(row.at, frozenset(types), {"value": row.value})


def expected(
    spec: Specification, rows: Sequence[Row], subjects: Sequence[int]
) -> tuple[dict[Answer, bool], list[int]]:
    """Answers and refused rows by the rules: a tuple is late for all its windows, or for none."""
    size, slide, lateness = spec.windows.size, spec.windows.pane, spec.windows.lateness
    seen: list[int] = []
    refused = []
    windows: dict[tuple[int, int], list[Tuple]] = defaultdict(list)
    for number, row in enumerate(rows):
        first_end = (row.at // slide + 1) * slide  # of the windows that it lies in
        if row.who not in subjects or (seen and first_end <= max(seen) - lateness):
            refused.append(number + 1)
            continue
        seen.append(row.at)
        for window in range((row.at - size) // slide + 1, row.at // slide + 1):
            assert window * slide <= row.at < window * slide + size
            windows[window, row.who].append(typed(row))
    if not seen:
        return {}, refused
    return {
        (window * slide, who, name): detect(pattern, windows[window, who])
        for window in range((min(seen) - size) // slide + 1, max(seen) // slide + 1)
        for who in subjects
        for name, pattern in spec.query_patterns.items()
    }, refused


@pytest.mark.cases(1)
@specifications
@given(row_lists, st.lists(st.integers(0, 25), max_size=3), st.booleans())
def test_answers_and_dead_letters_follow_the_rules_however_the_input_is_cut(
    spec: Specification, rows: list[Row], cuts: list[int], in_order: bool
) -> None:
    """Every window that overlaps the schedule is answered, for every subject and query."""
    if in_order:
        rows = sorted(rows, key=lambda row: row.at)
    assert run(spec, rows, [2, 0, 1], cuts) == expected(spec, rows, [2, 0, 1])


@given(st.integers(0, 2**32), st.sampled_from([2, 3, 4, 6]))
@settings(max_examples=40)
def test_any_pattern_is_detected_as_the_reference_says(seed: int, panes: int) -> None:
    random = Random(seed)
    patterns = [
        random_pattern(random, "abc", 3, where=random.random() < 0.4, spans=range(1, 12))
        for _ in range(4)
    ]
    queries = [Query(name=f"q{n}", consumer="c", pattern=p) for n, p in enumerate(patterns)]
    spec = sliding(panes, 12, 3).model_copy(
        update={"queries": tuple(queries), "subjects": ("0", "1")}
    )
    moments = sorted(random.randrange(60) for _ in range(30))
    sent = [
        (random.randrange(2), Tuple(at, frozenset("abc"[random.randrange(3)]), _values(random)))
        for at in moments
    ]
    frame = pl.DataFrame(
        {
            "who": [who for who, _ in sent],
            "at": moments,
            "kind": ["abc".index("".join(tuple_.types)) for _, tuple_ in sent],
            "value": pl.Series([None] * len(sent), dtype=pl.Float64),
            **{
                name: pl.Series([t.attributes[name] for _, t in sent], dtype=pl.Float64)
                for name in "vw"
            },
        }
    )
    found = local.detect(spec.checked(), frame).polars().rows(named=True)
    assert len(found) == 8 * (
        moments[-1] // spec.windows.pane - moments[0] // spec.windows.pane + panes
    )
    for row in found:
        begin, end = (int(row[edge].timestamp() * 1e6) for edge in ("window_start", "window_end"))
        inside = [t for who, t in sent if who == int(row["subject"]) and begin <= t.time < end]
        assert row["detected"] == detect(patterns[int(row["query"][1:])], inside)


def _values(random: Random) -> dict[str, float | None]:
    return {name: random.choice(VALUES) for name in "vw"}


@pytest.mark.cases(1)
@specifications
def test_many_windows_that_close_at_once_equal_the_reference(spec: Specification) -> None:
    random = Random(5)
    rows = [
        Row(random.randrange(70), at // 3, random.randrange(4), random.choice([1.0, 3.0, None]))
        for at in range(250)
    ]
    rows.sort(key=lambda row: row.at + random.randint(0, 7))
    assert run(spec, rows, range(70), [100, 101]) == expected(spec, rows, range(70))


def test_windows_close_one_by_one_as_the_watermark_passes_their_ends() -> None:
    registry = Subjects()
    registry.add([1])
    engine = Engine(CompiledSpec(HALVES), registry)
    closed = []
    for at in (2, 11, 12, 16, 17, 22):
        answers = list(engine.push(Rows("s", batch([Row(1, at, 0, None)]))))
        closed.append(sorted({start for start, _, _ in flat(answers)}))
    assert closed == [[], [], [-5], [], [0], [5]]
    assert {start for start, _, _ in flat(list(engine.finish()))} == {10, 15, 20}


def test_windows_are_as_long_as_they_say_and_begin_a_slide_apart() -> None:
    frame = pl.DataFrame({"who": [1, 1], "at": [3, 28], "kind": [0, 1], "value": [1.0, 2.0]})
    answers = local.detect(HALVES, frame).polars()
    starts = answers["window_start"].to_physical()
    assert (answers["window_end"].to_physical() - starts).unique().to_list() == [10]
    assert starts.unique().sort().to_list() == list(range(-5, 30, 5))
    assert local.detect(HALVES, frame).wide()["window_start"].to_physical().n_unique() == 7


def test_sliding_by_the_size_is_the_same_as_tumbling() -> None:
    whole = loads(SPEC.replace("{size: 10 us,", "{size: 10 us, slide: 10 us,"))
    assert whole == loads(SPEC)
    assert Engine(CompiledSpec(whole), Subjects()).window_state.sliding is None


@specifications
def test_a_gap_longer_than_the_ring_is_filled_with_answers(spec: Specification) -> None:
    answers, _ = run(spec, [Row(0, 5, 0, None), Row(0, 5_005, 1, 3.0)], [0])
    windows = 5000 // spec.windows.pane + spec.windows.panes
    assert len(answers) == windows * len(spec.queries)


@given(row_lists, st.lists(st.integers(0, 25), max_size=3))
def test_what_is_learned_does_not_depend_on_batches(rows: list[Row], cuts: list[int]) -> None:
    whole, refused = learned(rows, 30, spec=FIFTHS)
    assert learned(rows, 30, cuts, FIFTHS) == (whole, refused)


def test_learned_subjects_have_answers_in_every_window_of_the_schedule() -> None:
    rows = [Row(5, 1, 0, None), Row(6, 12, 0, None), Row(5, 48, 0, None)]
    answers, refused = learned(rows, 20, spec=HALVES)
    assert refused == []
    assert {start for start, who, _ in answers if who == 6} == set(range(-5, 50, 5))
    assert [answers[start, 6, "none"] for start in (0, 5, 10, 15)] == [True, False, False, True]


def test_a_subject_registered_later_has_answers_from_the_next_whole_window_on() -> None:
    registry = Subjects()
    registry.add([1])
    engine = Engine(CompiledSpec(FIFTHS), registry)
    answers = list(engine.push(Rows("s", batch([Row(1, 3, 0, None)]))))
    engine.register(["2"])
    rows = [Row(2, 3, 0, None), Row(2, 5, 0, None), Row(1, 40, 0, None)]
    answers += engine.push(Rows("s", batch(rows), first=2))
    assert engine.counts[TAKEN] == 3  # the pane from 2 to 4 has begun without it
    engine.register(["3"])
    answers += engine.push(Rows("s", batch([Row(3, 43, 0, None)]), first=5))
    found = flat([*answers, *engine.finish()])
    assert {start for start, who, _ in found if who == 1} == set(range(-6, 44, 2))
    assert {start for start, who, _ in found if who == 2} == set(range(4, 44, 2))
    assert {start for start, who, _ in found if who == 3} == {42}
    assert [start for start in range(4, 44, 2) if not found[start, 2, "none"]] == [4]
    assert not found[42, 3, "none"]


def test_rows_keep_apart_after_a_restore() -> None:
    """A pair needs two tuples: numbers of rows must not be given twice."""
    rows = [Row(0, 1, 0, 1.0), Row(0, 3, 1, 1.0), Row(0, 13, 1, 1.0), Row(0, 14, 0, 1.0)]
    spec = sliding(5, 20, 0)
    for cuts in ([], [1], [2], [3], [1, 2, 3]):
        assert run(spec, rows, [0], cuts) == expected(spec, rows, [0])


def test_rows_keep_apart_after_a_restore_while_subjects_are_learned() -> None:
    rows = [Row(0, 1, 0, 1.0), Row(0, 5, 3, None), Row(0, 7, 0, 2.0)]
    spec = sliding(5, 20, 0)
    whole, _ = learned(rows, 40, spec=spec)
    assert whole[0, 0, "pair"]
    for cuts in ([1], [2], [1, 2]):
        assert learned(rows, 40, cuts, spec)[0] == whole


def test_panes_that_were_put_together_last_may_come_again_and_no_others() -> None:
    registry = Subjects()
    registry.add([1])
    engine = Engine(CompiledSpec(HALVES), registry)
    rows = Rows("s", batch([Row(1, at, at % 3, 1.0) for at in range(0, 60, 4)]))
    engine.most_windows = 2
    handed = [*engine.insert(MergedBatch.from_batch(engine.extract(rows)))]
    once = [engine.answer(part) for part in handed[:3]]
    again = engine.answer(handed[2])
    assert flat([once[2]]) == flat([again])
    with pytest.raises(StateError, match="in order"):
        engine.answer(handed[0])
    engine.answer(handed[3])
