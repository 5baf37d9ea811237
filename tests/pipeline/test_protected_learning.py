"""Protected answers while the registry is learned: rows and noise for all, also the silent."""

from __future__ import annotations

from itertools import product
from random import Random

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from tacit.answers.answers import Answers
from tacit.events.subjects import Subjects
from tacit.patterns.event_lists import EventLists
from tacit.patterns.reference import Tuple, detect
from tacit.pipeline.batches import Rows
from tacit.pipeline.compiled_spec import CompiledSpec
from tacit.pipeline.engine import Engine
from tacit.pipeline.evaluators import Evaluator
from tacit.pipeline.protected_evaluator import ProtectedEvaluator
from tacit.pipeline.window_state import ClosedWindows
from tacit.planning.planner import plan_without_history
from tacit.privacy.noise import Noise
from tacit.privacy.randomness import SeededSource
from tacit.spec.queries import compile_queries
from tacit.spec.specification import Specification
from tacit.spec.yaml_reader import loads
from tacit.windows.panes import ClosedPanes
from tests.patterns.windowing import event_lists, presence

SPEC = """
version: 1
streams: {s: {subject: who, time: at, unit: us}}
windows: {size: 10 us, lateness: 3 us}
events:
  a: {stream: s, where: "kind = 0"}
  x: {stream: s, where: "kind = 1"}
  y: {stream: s, where: "kind = 2"}
private:
  - {pattern: "AND(x, y)", epsilon: EPSILON}
  - {pattern: "OR(x, a)", epsilon: EPSILON, subjects: [3, 7, 12, 31]}
queries:
  - {name: there, consumer: c, pattern: x}
  - {name: both, consumer: c, pattern: "AND(a, y)"}
  - {name: order, consumer: c, pattern: "SEQ(a, x)"}
  - {name: rising, consumer: c, pattern: "SEQ(a p, y q) WHERE p.v < q.v AND p.v > 0"}
"""
WAYS = [("uniform", "literal"), ("uniform", "posterior"), ("optimal", "posterior")]
RATES = {"a": 0.4, "x": 0.3, "y": 0.3}


def specification(epsilon: float) -> Specification:
    return loads(SPEC.replace("EPSILON", str(epsilon)))


def evaluator(spec: Specification, mechanism: str, decode: str, seed: int) -> Evaluator:
    made = plan_without_history(spec, mechanism, decode, RATES)
    return ProtectedEvaluator(spec, made.mechanisms, Noise(SeededSource(seed)))


def engine(spec: Specification, mechanism: str, decode: str, seed: int = 1) -> Engine:
    return Engine(
        CompiledSpec(spec, evaluator(spec, mechanism, decode, seed)), Subjects(), learn=60
    )


def batches(seed: int, subjects: int = 100, windows: int = 12) -> list[pa.RecordBatch]:
    """Subjects that come one after the other, most of them late in the stretch."""
    rng = Random(seed)
    rows = []
    for at in range(10 * windows):
        known = max(1, min(subjects, at * subjects // 55))
        for _ in range(6):
            rows.append((rng.randrange(known), at, rng.choice((0, 1, 2, 3)), rng.random() - 0.2))
    frame = pl.DataFrame(rows, schema=["who", "at", "kind", "v"], orient="row")
    return list(frame.rechunk().to_arrow().to_batches(max_chunksize=37))


def push(target: Engine, parts: list[pa.RecordBatch]) -> list[Answers]:
    return [answers for part in parts for answers in target.push(Rows("s", part, "here"))]


def rows(answers: list[Answers]) -> pl.DataFrame:
    return pl.concat([pl.DataFrame(part.table()) for part in answers]).with_columns(
        pl.col("query").cast(pl.String)
    )


@pytest.mark.parametrize(("mechanism", "decode"), WAYS)
def test_windows_held_back_are_answered_for_all_who_are_learned(
    mechanism: str, decode: str
) -> None:
    """Every subject, window and query once, from the first window on."""
    target = engine(specification(1), mechanism, decode)
    parts = batches(1)
    found = rows(push(target, parts) + list(target.finish()))
    came = pl.concat([pl.DataFrame(part) for part in parts]).filter(pl.col("at") < 60)
    assert set(found["subject"]) == set(came["who"].cast(pl.String))
    assert len(found) == came["who"].n_unique() * 12 * 4
    assert found.select("window_start", "subject", "query").is_unique().all()
    assert found["confidence"].is_between(0, 1).all()
    assert found["confidence"].is_not_null().all()


def test_silent_subjects_have_noise_in_windows_that_were_held_back() -> None:
    """With next to no epsilon a yes is as likely as a no, for who was not even known then."""
    target = engine(specification(0.001), "uniform", "literal")
    found = rows(push(target, batches(1)) + list(target.finish()))
    first = found.filter(pl.col("window_start").dt.epoch("us") == 0, query="there")
    late = first.filter(pl.col("subject").cast(pl.String).cast(pl.Int64) > 30)
    assert len(late) > 50
    share = late["detected"].mean()
    assert isinstance(share, float)
    assert abs(share - 0.5) < 4 * 0.5 / np.sqrt(len(late))


@pytest.mark.cases(3)
@pytest.mark.parametrize(("mechanism", "decode"), WAYS)
@pytest.mark.parametrize("at", [1, 5, 9])
def test_a_snapshot_in_the_middle_of_learning_goes_on_as_if_nothing_had_been(
    mechanism: str, decode: str, at: int
) -> None:
    spec, parts = specification(1), batches(2)
    whole = engine(spec, mechanism, decode)
    expected = rows(push(whole, parts) + list(whole.finish()))
    before = engine(spec, mechanism, decode)
    assert push(before, parts[:at]) == []
    assert before.learning
    after = engine(spec, mechanism, decode)
    after.restore(before.snapshot())
    assert after.learning == before.learning
    found = rows(push(after, parts[at:]) + list(after.finish()))
    assert found.equals(expected)


def test_noise_is_not_drawn_before_the_registry_is_announced() -> None:
    """So that nothing that is drawn could be forgotten with a crash, and drawn again."""
    spec = specification(1)
    source = SeededSource(1)
    drawn = []
    plain = source.draw
    source.draw = lambda number: drawn.append(number) or plain(number)  # type: ignore[method-assign, func-returns-value]
    made = plan_without_history(spec, "uniform", "literal", RATES)
    flow = CompiledSpec(spec, ProtectedEvaluator(spec, made.mechanisms, Noise(source)))
    target = Engine(flow, Subjects(), learn=60)
    push(target, batches(1)[:9])
    assert drawn == []
    list(target.finish())
    assert drawn


def test_windows_that_were_closed_together_are_the_same_for_a_registry_that_has_grown() -> None:
    """Ordered events and rows keep their subjects and windows; newcomers sent nothing."""
    rng = Random(1)
    spec = specification(1)
    types, patterns = tuple(spec.types), list(spec.query_patterns.values())
    queries = compile_queries(spec, patterns, walk=False)
    windows = [
        [
            Tuple(
                10 * (place // 3) + rng.randrange(10),
                frozenset({rng.choice(types)}),
                {"v": rng.random() - 0.2},
            )
            for _ in range(rng.randrange(6))
        ]
        for place in range(12)  # four windows of three subjects
    ]
    lists = event_lists(windows, types)
    full = np.flatnonzero(np.diff(lists.starts))
    starts = np.append(lists.starts[full], lists.starts[-1])
    words = presence(lists).reshape(4, 3, 1)
    closed = ClosedPanes(0, words, full, EventLists(starts, lists.times, lists.masks))
    told = [(place, t) for place, window in enumerate(windows) for t in window]
    frame = pl.DataFrame(
        {
            "slot": np.array([place % 3 for place, _ in told], np.int32),
            "row": np.arange(len(told)),
            "time": [t.time for _, t in told],
            "mask0": np.array([1 << types.index(min(t.types)) for _, t in told], np.uint64),
            "@v": [t.attributes["v"] for _, t in told],
            "bucket": [place for place, _ in told],
        }
    )
    handed = ClosedWindows(closed, {"s": frame}, np.zeros(3, np.int64))
    for slots in (3, 5, 70):
        wider = handed.widen(np.zeros(slots, np.int64), np.uint64(0))
        octets = queries.match(wider.panes, wider.rows).astype("<u8").view(np.uint8)
        found = np.unpackbits(octets, axis=2, bitorder="little", count=slots)
        for window, slot in product(range(4), range(slots)):
            seen = windows[3 * window + slot] if slot < 3 else []
            expected = [detect(pattern, seen) for pattern in patterns]
            assert found[window, :, slot].tolist() == expected
