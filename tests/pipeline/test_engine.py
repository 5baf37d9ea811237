"""The whole flow against its meaning, written out one tuple, window and subject at a time."""

from __future__ import annotations

import io
import itertools
import json
import subprocess
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.answers.answers import Answers
from tacit.errors import StateError
from tacit.events.subjects import Subjects
from tacit.patterns.reference import Tuple, detect
from tacit.pipeline import snapshots
from tacit.pipeline.batches import Rows
from tacit.pipeline.compiled_spec import CompiledSpec
from tacit.pipeline.engine import Engine, RefusedRows
from tacit.spec.specification import Specification
from tacit.spec.yaml_reader import loads
from tacit.windows.clock import TAKEN
from tests.engines.forking import Forks

SPEC = """
version: 1
streams:
  s: {subject: who, time: at, unit: us}
windows: {size: 10 us, lateness: 7 us, future: 1 s}
events:
  a: {stream: s, where: "kind = 0"}
  b: {stream: s, where: "kind = 1"}
  c: {stream: s, where: "kind = 2"}
  big: {stream: s, where: "value > 2"}
queries:
  - {name: both, consumer: x, pattern: "AND(a, b)"}
  - {name: order, consumer: x, pattern: "SEQ(a, b, c)"}
  - {name: gap, consumer: x, pattern: "SEQ(a, NOT b, c) WITHIN 4 us"}
  - {name: none, consumer: x, pattern: "NOT OR(a, big)"}
  - {name: nested, consumer: x, pattern: "SEQ(AND(a, b), big)"}
  - {name: rising, consumer: x, pattern: "SEQ(a x, b y) WHERE y.value > x.value"}
"""


@dataclass(frozen=True)
class Row:
    """One raw tuple."""

    who: int
    at: int
    kind: int
    value: float | None


def batch(rows: Sequence[Row]) -> pa.RecordBatch:
    """Raw tuples as a batch."""
    return pa.record_batch(
        {
            "who": pa.array([row.who for row in rows], pa.int64()),
            "at": pa.array([row.at for row in rows], pa.int64()),
            "kind": pa.array([row.kind for row in rows], pa.int8()),
            "value": pa.array([row.value for row in rows], pa.float64()),
        }
    )


Answer = tuple[int, int, str]


def flat(answers: Sequence[Answers]) -> dict[Answer, bool]:
    """Answers by window start, subject and query; no answer may come twice."""
    rows: dict[Answer, bool] = {}
    told = 0
    for part in answers:
        table = part.table()
        starts = table["window_start"].cast(pa.int64()).to_pylist()
        subjects = map(int, table["subject"].to_pylist())
        keys = zip(starts, subjects, table["query"].to_pylist(), strict=True)
        rows.update(zip(keys, table["detected"].to_pylist(), strict=True))
        told += len(table)
    assert len(rows) == told
    return rows


def expected(spec: Specification, rows: Sequence[Row], subjects: Sequence[int]) -> tuple[
    dict[Answer, bool], list[int]
]:  # fmt: skip
    """Answers and refused rows by the rules, one tuple at a time."""
    size, lateness = spec.windows.size, spec.windows.lateness
    seen: list[int] = []
    refused = []
    windows: dict[tuple[int, int], list[Tuple]] = defaultdict(list)
    for number, row in enumerate(rows):
        closed = bool(seen) and (row.at // size + 1) * size <= max(seen) - lateness
        if row.who not in subjects or closed:
            refused.append(number + 1)
            continue
        seen.append(row.at)
        types = {name for name, kind in zip("abc", range(3), strict=True) if row.kind == kind}
        if row.value is not None and np.isfinite(row.value) and row.value > 2:
            types.add("big")
        windows[row.at // size, row.who].append(
            Tuple(row.at, frozenset(types), {"value": row.value})
        )
    if not seen:
        return {}, refused
    return {
        (window * size, who, name): detect(pattern, windows[window, who])
        for window in range(min(seen) // size, max(seen) // size + 1)
        for who in subjects
        for name, pattern in spec.query_patterns.items()
    }, refused


def run(
    spec: Specification, rows: Sequence[Row], subjects: Sequence[int], cuts: Sequence[int] = ()
) -> tuple[dict[Answer, bool], list[int]]:
    """Answers and refused rows by the engine, its state carried over as bytes at every cut."""
    flow = CompiledSpec(spec)
    refused: list[int] = []

    def note(found: RefusedRows) -> None:
        refused.extend(found.rows.number_rows(found.chosen).tolist())

    registry = Subjects()
    registry.add(subjects)
    engine = Engine(flow, registry, refused=note)
    answers: list[Answers] = []
    edges = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    for begin, end in itertools.pairwise(edges):
        answers += engine.push(Rows("s", batch(rows[begin:end]), first=begin + 1))
        snapshot = engine.snapshot()
        engine = Engine(flow, Subjects(), refused=note)
        engine.restore(snapshot)
    answers += engine.finish()
    assert engine.counts[TAKEN] == len(rows) - len(refused)
    return flat(answers), sorted(refused)


@pytest.fixture(scope="module")
def spec() -> Specification:
    """The specification of these tests."""
    return loads(SPEC)


SPECIFICATION = loads(SPEC)
CHAINS = loads(
    SPEC.split("queries:")[0]
    + """
queries:
  - {name: order, consumer: x, pattern: "SEQ(a, b, c)"}
  - {name: guarded, consumer: x, pattern: "SEQ(NOT c, a, NOT big, b)"}
  - {name: ended, consumer: x, pattern: "SEQ(a, OR(b, c), NOT a)"}
  - {name: twice, consumer: x, pattern: "SEQ(a{2}, b)"}
  - {name: mixed, consumer: x, pattern: "AND(c, NOT SEQ(b, a))"}
"""
)
"""Chains only: their automaton is walked as tuples come."""
row_lists = st.lists(
    st.builds(
        Row,
        st.integers(0, 3),
        st.integers(-30, 60),
        st.integers(0, 3),
        st.one_of(st.none(), st.sampled_from([0.0, 1.0, 2.0, 3.0, float("nan"), float("inf")])),
    ),
    max_size=25,
)


@pytest.mark.parametrize("spec", [SPECIFICATION, CHAINS], ids=["all paths", "chains"])
@given(row_lists, st.lists(st.integers(0, 25), max_size=3), st.booleans())
@settings(max_examples=50)
def test_answers_and_dead_letters_follow_the_rules_however_the_input_is_cut(
    spec: Specification, rows: list[Row], cuts: list[int], in_order: bool
) -> None:
    """Every registered subject has an answer for every query in every window of the schedule."""
    if in_order:
        rows = sorted(rows, key=lambda row: row.at)
    assert run(spec, rows, [2, 0, 1], cuts) == expected(spec, rows, [2, 0, 1])


def test_an_automaton_walked_as_tuples_come_equals_the_reference_on_many_windows() -> None:
    """In order, out of order, with equal times and with several events in a tuple."""
    assert CompiledSpec(CHAINS).evaluator.automaton is not None
    random = Random(5)
    for spread in (0, 1, 3, 7):
        rows = [
            Row(random.randrange(8), at // 3, random.randrange(4), random.choice([1.0, 3.0]))
            for at in range(3000)
        ]
        rows.sort(key=lambda row: row.at + random.randint(0, spread))
        assert run(CHAINS, rows, range(8), [500, 501, 2000]) == expected(CHAINS, rows, range(8))


def test_any_order_of_arrival_within_the_lateness_gives_the_same_answers() -> None:
    """Delays of up to the lateness change nothing and lose nothing."""
    random = Random(7)
    for _ in range(20):
        rows = sorted(
            (
                Row(random.randrange(3), random.randrange(100), random.randrange(3), 1.0)
                for _ in range(40)
            ),
            key=lambda row: row.at,
        )
        delayed = sorted(rows, key=lambda row: row.at + random.randint(0, 7))
        in_order, _ = run(SPECIFICATION, rows, [0, 1, 2])
        late, refused = run(SPECIFICATION, delayed, [0, 1, 2])
        assert late == in_order
        assert refused == []


def test_silent_subjects_are_answered_in_every_window(spec: Specification) -> None:
    """A missing row would tell that nothing happened."""
    answers, _ = run(spec, [Row(0, 5, 0, None), Row(0, 95, 0, None)], [0, 1])
    assert len(answers) == 10 * 2 * len(spec.queries)
    assert all(answers[window * 10, 1, "none"] for window in range(10))


def test_a_gap_longer_than_the_ring_is_filled_with_answers(spec: Specification) -> None:
    """The schedule has no holes, whatever the events do."""
    answers, _ = run(spec, [Row(0, 5, 0, None), Row(0, 25_005, 1, 3.0)], [0])
    assert len(answers) == 2501 * len(spec.queries)
    assert answers[0, 0, "none"] is False
    assert answers[10, 0, "none"] is True
    assert answers[25_000, 0, "none"] is False


def learned(
    rows: Sequence[Row], learn: int, cuts: Sequence[int] = (), spec: Specification = SPECIFICATION
) -> tuple[
    dict[Answer, bool], list[int]
]:  # fmt: skip
    """A run that learns its subjects from the first stretch, its state carried over at cuts."""
    refused: list[int] = []
    flow = CompiledSpec(spec)

    def note(found: RefusedRows) -> None:
        refused.extend(found.rows.number_rows(found.chosen).tolist())

    engine = Engine(flow, Subjects(), learn=learn, refused=note)
    answers: list[Answers] = []
    edges = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    for begin, end in itertools.pairwise(edges):
        answers += engine.push(Rows("s", batch(rows[begin:end]), first=begin + 1))
        snapshot = engine.snapshot()
        engine = Engine(flow, Subjects(), learn=learn, refused=note)
        engine.restore(snapshot)
    answers += engine.finish()
    return flat(answers), refused


def test_subjects_are_learned_from_the_first_stretch_and_have_all_of_its_answers() -> None:
    """Who appears later than that is refused, and never silently added."""
    rows = [
        Row(5, 1, 0, None),
        Row(6, 12, 0, None),
        Row(7, 22, 0, None),
        Row(5, 33, 0, None),
        Row(8, 34, 0, None),
    ]
    answers, refused = learned(rows, learn=20)
    assert refused == [3, 5]
    assert {who for _, who, _ in answers} == {5, 6}
    assert {start for start, who, _ in answers if who == 6} == {0, 10, 20, 30}
    assert answers[0, 6, "none"] is True


@given(row_lists, st.lists(st.integers(0, 25), max_size=3))
def test_what_is_learned_does_not_depend_on_batches(rows: list[Row], cuts: list[int]) -> None:
    """Held answers and a registry in the making survive a snapshot too."""
    for spec in (SPECIFICATION, CHAINS):
        whole, refused = learned(rows, 30, spec=spec)
        assert learned(rows, 30, cuts, spec) == (whole, refused)


def test_what_is_learned_does_not_depend_on_the_order_of_arrival_within_the_lateness() -> None:
    """The same subjects are registered, and the same answers given."""
    random = Random(11)
    for _ in range(20):
        rows = sorted(
            (Row(random.randrange(8), random.randrange(80), 0, None) for _ in range(25)),
            key=lambda row: row.at,
        )
        delayed = sorted(rows, key=lambda row: row.at + random.randint(0, 7))
        assert learned(delayed, 20)[0] == learned(rows, 20)[0]


def test_a_subject_registered_later_has_answers_from_the_next_window_on() -> None:
    """Growing the registry is an explicit act; tuples before it takes effect are refused."""
    refused: list[int] = []
    registry = Subjects()
    registry.add([1])
    engine = Engine(
        CompiledSpec(SPECIFICATION),
        registry,
        refused=lambda found: refused.extend(found.rows.number_rows(found.chosen).tolist()),
    )
    answers = list(engine.push(Rows("s", batch([Row(1, 5, 0, None)]))))
    engine.register(["2"])
    rows = [Row(2, 6, 0, None), Row(2, 12, 0, None), Row(1, 13, 1, None)]
    answers += engine.push(Rows("s", batch(rows), first=2))
    answers += engine.finish()
    found = flat(answers)
    assert refused == [2]
    assert {start for start, who, _ in found if who == 2} == {10}
    assert {start for start, who, _ in found if who == 1} == {0, 10}
    assert found[10, 2, "none"] is False


def test_shards_stand_alone(spec: Specification) -> None:
    """Two engines, each with some of the subjects, answer together what one answers."""
    random = Random(3)
    rows = [Row(random.randrange(6), at, random.randrange(3), 1.0) for at in range(0, 200, 2)]
    whole, _ = run(spec, rows, range(6))
    parts = []
    for names in ([0, 2, 4], [1, 3, 5]):
        registry = Subjects()
        registry.add(names)
        engine = Engine(CompiledSpec(spec), registry)
        answers = list(engine.push(Rows("s", batch([row for row in rows if row.who in names]))))
        parts.append(flat([*answers, *engine.finish()]))
    assert parts[0] | parts[1] == whole


def test_a_snapshot_is_restored_in_another_process(tmp_path: Path, forks: Forks) -> None:
    """The state is bytes: nothing of this process is in it."""
    rows = [Row(who, at, at % 3, float(at % 5)) for at in range(40) for who in range(2)]
    registry = Subjects()
    registry.add([0, 1])
    engine = Engine(CompiledSpec(SPECIFICATION), registry)
    list(engine.push(Rows("s", batch(rows[:41]))))
    (tmp_path / "state").write_bytes(engine.snapshot())
    (tmp_path / "spec.yaml").write_text(SPEC)
    with pa.ipc.new_file(tmp_path / "rest.arrow", batch(rows).schema) as file:
        file.write(batch(rows[41:]))
    (tmp_path / "elsewhere.py").write_text(_ELSEWHERE)
    there = subprocess.run(
        [forks.program, tmp_path / "elsewhere.py", tmp_path],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    here = flat([*engine.push(Rows("s", batch(rows[41:]))), *engine.finish()])
    assert there.stdout.split() == [
        f"{key[0]}/{key[1]}/{key[2]}={here[key]}" for key in sorted(here)
    ]


_ELSEWHERE = """
import sys
from pathlib import Path
import pyarrow as pa
from tacit.events.subjects import Subjects
from tacit.pipeline.batches import Rows
from tacit.pipeline.engine import Engine
from tacit.pipeline.compiled_spec import CompiledSpec
from tacit.spec.yaml_reader import load
from tests.pipeline.test_engine import flat

folder = Path(sys.argv[1])
engine = Engine(CompiledSpec(load(folder / "spec.yaml")), Subjects())
engine.restore((folder / "state").read_bytes())
rows = pa.ipc.open_file(folder / "rest.arrow").get_batch(0)
answers = flat([*engine.push(Rows("s", rows)), *engine.finish()])
print(*(f"{key[0]}/{key[1]}/{key[2]}={answers[key]}" for key in sorted(answers)))
"""


def test_a_snapshot_of_another_specification_is_refused(spec: Specification) -> None:
    """So is anything that is not a snapshot."""
    engine = Engine(CompiledSpec(spec), Subjects())
    other = Engine(CompiledSpec(loads(SPEC.replace("AND(a, b)", "AND(a, c)"))), Subjects())
    with pytest.raises(StateError, match="another specification"):
        other.restore(engine.snapshot())
    with pytest.raises(StateError, match="damaged"):
        other.restore(engine.snapshot()[:-30])
    with pytest.raises(StateError, match="not a snapshot"):
        other.restore(b"nothing")


def test_a_snapshot_of_an_earlier_version_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were archives of NumPy."""
    rows = [Row(who, at, at % 3, float(at % 5)) for at in range(40) for who in range(2)]
    registry = Subjects()
    registry.add([0, 1])
    engine = Engine(CompiledSpec(SPECIFICATION), registry)
    list(engine.push(Rows("s", batch(rows[:41]))))

    def archive(arrays: Mapping[str, Any]) -> bytes:
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
        return buffer.getvalue()

    with monkeypatch.context() as patch:
        patch.setattr(snapshots, "_pack_arrays", archive)
        before = engine.snapshot()
    assert before.startswith(b"PK")
    again = Engine(CompiledSpec(SPECIFICATION), Subjects())
    again.restore(before)
    assert again.snapshot() == engine.snapshot()


def test_a_snapshot_leaves_out_the_windows_of_a_ring_that_are_not_open() -> None:
    """All arrays come back as they were, and a ring with two open windows takes little room."""
    ring = np.full((100, 500, 1), 7, np.uint64)
    ring[3, 499], ring[98, 0] = 0, 2**64 - 1
    zeros = np.zeros((100, 500))
    zeros[5] = -0.0  # equal to zero, and not the same
    arrays = {
        "ring": ring,
        "part": ring[:, 1:400, 0].view(np.int64),
        "full": np.arange(6000).reshape(3, 2000),
        "row": np.zeros(9000, np.int64),
        "none": np.zeros((0, 5), np.int64),
        "zeros": zeros,
    }
    packed = snapshots._pack_arrays(arrays)
    found = snapshots._unpack_arrays(packed)
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()
    only = {name: arrays[name] for name in ("ring", "part")}
    assert len(snapshots._pack_arrays(only)) < 2 * 500 * 8 + 400 * 8 + 300


def test_arrays_that_were_written_whole_are_read() -> None:
    """Earlier versions listed names, types and shapes alone, and wrote every row."""
    arrays = {"a": np.arange(12).reshape(3, 4), "b": np.array([1.5, -0.0])}
    listed = [(name, array.dtype.str, array.shape) for name, array in arrays.items()]
    text = json.dumps(listed).encode()
    content = b"".join([text, *(array.tobytes() for array in arrays.values())])
    start = snapshots._START.pack(snapshots._MAGIC, zlib.crc32(content), len(text))
    found = snapshots._unpack_arrays(start + content)
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].tobytes() == array.tobytes()
        assert found[name].shape == array.shape


def test_a_damaged_snapshot_is_refused() -> None:
    whole = Engine(CompiledSpec(SPECIFICATION), Subjects()).snapshot()
    for place in range(0, len(whole), 7):
        damaged = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
        with pytest.raises(StateError, match="damaged"):
            Engine(CompiledSpec(SPECIFICATION), Subjects()).restore(damaged)
