"""Protected answers of sliding windows: policies, limits, draws that are kept, and snapshots."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from tacit.answers.answers import Answers
from tacit.connectors.frames import FrameSource
from tacit.events.subjects import Subjects
from tacit.pipeline.batches import MergedBatch, Rows
from tacit.pipeline.compiled_spec import CompiledSpec
from tacit.pipeline.engine import Engine
from tacit.pipeline.protected_evaluator import ProtectedEvaluator
from tacit.pipeline.reader import Input
from tacit.pipeline.run import Run
from tacit.planning.plan import Plan
from tacit.planning.planner import plan_without_history
from tacit.privacy.channels import Channel
from tacit.privacy.noise import Noise
from tacit.privacy.randomness import SeededSource
from tacit.spec.specification import Specification
from tacit.spec.yaml_reader import loads

SPEC = """
subjects: [{subjects}]
streams: {{s: {{subject: who, time: at, unit: us}}}}
windows: {{size: 30 us, slide: 10 us, lateness: 5 us}}
events:
  a: {{stream: s, where: "kind = 0"}}
  b: {{stream: s, where: "kind = 1"}}
  c: {{stream: s, where: "kind = 2"}}
private:
  - {{pattern: "AND(a, b)", epsilon: {epsilon}, limit: 1000 per day}}
  - {{pattern: c, epsilon: {epsilon}, subjects: [0, 3, 66]}}
queries:
  - {{name: both, consumer: x, pattern: "AND(a, b)"}}
  - {{name: order, consumer: x, pattern: "SEQ(a, c)"}}
  - {{name: gap, consumer: x, pattern: "SEQ(b, NOT a, c) WITHIN 15 us"}}
  - {{name: seen, consumer: x, pattern: c}}
"""
SUBJECTS = 70
WAYS = pytest.mark.parametrize(
    ("mechanism", "decode"),
    [(m, d) for m in ("uniform", "optimal") for d in ("literal", "posterior")],
)


def as_merged(current: Engine, table: pa.RecordBatch) -> MergedBatch:
    """The events of rows, as an engine inserts them."""
    return MergedBatch.from_batch(current.extract(Rows("s", table)))


def specification(epsilon: str = "2") -> Specification:
    return loads(SPEC.format(subjects=", ".join(map(str, range(SUBJECTS))), epsilon=epsilon))


def plan(spec: Specification, mechanism: str, decode: str) -> Plan:
    return plan_without_history(spec, mechanism, decode, {"a": 0.3, "b": 0.3, "c": 0.3})


def frame(seed: int, rows: int = 700, until: int = 200) -> pl.DataFrame:
    random = Random(seed)
    times = sorted(random.randrange(until) for _ in range(rows))
    return pl.DataFrame(
        {
            "who": [random.randrange(SUBJECTS) for _ in times],
            "at": times,
            "kind": [random.randrange(3) for _ in times],
        }
    )


def engine(spec: Specification, made: Plan, noise: Noise) -> Engine:
    registry = Subjects()
    registry.add(range(SUBJECTS))
    return Engine(CompiledSpec(spec, ProtectedEvaluator(spec, made.mechanisms, noise)), registry)


def batches(seed: int, cuts: int = 7) -> list[pa.RecordBatch]:
    whole = frame(seed)
    step = -(-len(whole) // cuts)
    parts = [whole[begin : begin + step] for begin in range(0, len(whole), step)]
    return [part.to_arrow().combine_chunks().to_batches()[0] for part in parts]


def bits(parts: list[Answers]) -> NDArray[np.bool_]:
    return np.concatenate([part.detected for part in parts])


def sure(parts: list[Answers]) -> NDArray[np.float64]:
    return np.concatenate(
        [np.stack([part.confidence(query) for query in range(4)], axis=1) for part in parts]
    )


@pytest.mark.parametrize("mechanism", ["uniform", "optimal"])
def test_with_a_huge_epsilon_answers_are_the_truth(mechanism: str) -> None:
    """Of order what private events' panes tell, with `uniform`; with `optimal` all of it."""
    spec = specification("400")
    inputs = [Input("s", FrameSource(frame(1), "s"))]
    made = plan(spec, mechanism, "literal")
    found = bits(list(Run(spec, inputs, plan=made, noise=Noise(SeededSource(1)))))
    true = bits(list(Run(spec, inputs)))
    assert len(found) == len(true) == 22
    exact = range(4) if mechanism == "optimal" else [0, 3]
    for query in exact:
        assert np.array_equal(found[:, query], true[:, query])
    # Events of whole panes keep their order, so that many are right all the same.
    assert (found == true).mean() > 0.85


@WAYS
def test_a_run_goes_on_from_a_snapshot_with_the_noise_that_was_drawn(
    mechanism: str, decode: str
) -> None:
    """Randomness from one source, with and without a new engine at every cut."""
    spec = specification()
    made = plan(spec, mechanism, decode)
    runs = []
    for restored in (False, True):
        noise = Noise(SeededSource(5))
        current = engine(spec, made, noise)
        found: list[Answers] = []
        for part in batches(3):
            found += current.push(Rows("s", part))
            if restored:
                state = current.snapshot()
                current = engine(spec, made, noise)
                current.restore(state)
        runs.append([*found, *current.finish()])
    whole, cut = runs
    assert np.array_equal(bits(whole), bits(cut))
    assert np.array_equal(sure(whole), sure(cut))


class Counting(Noise):
    """Counts the bits that are flipped, or not."""

    def __init__(self) -> None:
        super().__init__(SeededSource(2))
        self.bits = 0
        self.moments_drawn = 0

    def flip(self, words: Any, channel: Channel, lanes: Any = None) -> Any:
        """Flip as ever."""
        chosen = np.full_like(words, 2**64 - 1) if lanes is None else lanes
        self.bits += int(np.bitwise_count(chosen).sum())
        return super().flip(words, channel, lanes)

    def draw_times(self, count: int, span: int) -> NDArray[np.int64]:
        """Moments in panes."""
        assert span == 10
        self.moments_drawn += count
        return super().draw_times(count, span)


def test_each_element_is_flipped_once_in_each_pane() -> None:
    spec, noise = specification(), Counting()
    current = engine(spec, plan(spec, "uniform", "literal"), noise)
    answers = [part for batch in batches(3) for part in current.push(Rows("s", batch))]
    answers += current.finish()
    panes = sum(part.windows for part in answers)
    assert panes == 22
    # 67 subjects keep a and b private, and 3 of them c as well.
    assert noise.bits == panes * (2 * 67 + 3 * 3)
    # There is a moment for each element in each pane in which it came out, and no more.
    assert 0 < noise.moments_drawn < noise.bits


@WAYS
def test_panes_of_those_whose_limit_is_reached_are_never_told_of(
    mechanism: str, decode: str
) -> None:
    """Neither while it is reached nor in later windows, whatever they sent then."""
    spec = specification()
    made = plan(spec, mechanism, decode)
    seen = []
    for present in (False, True):
        current = engine(spec, made, Noise(SeededSource(4)))
        current.most_windows = 1
        rows = [(who, 10 * pane, 2) for pane in range(9) for who in range(SUBJECTS)]
        if present:  # subject 5 has a and b in the panes 3 and 4
            rows += [(5, 10 * pane + 1, kind) for pane in (3, 4) for kind in (0, 1)]
        who, at, kind = zip(*sorted(rows, key=lambda row: row[1]), strict=True)
        table = pl.DataFrame({"who": who, "at": at, "kind": kind}).to_arrow()
        handed = [
            *current.insert(as_merged(current, table.combine_chunks().to_batches()[0])),
            *current.flush(),
        ]
        answers = []
        for part in handed:
            exhausted = np.zeros(SUBJECTS, np.bool_)
            # Of all windows that hold a or b of subject 5 but those of the last pane, if panes
            # are drawn for; of all of them, if windows are.
            last = 5 if mechanism == "uniform" else 7
            exhausted[5] = 3 <= part.panes.first < last
            answers.append(current.answer(part, exhausted))
        seen.append((bits(answers)[:, :, 5], sure(answers)[:, :, 5]))
    for one, other in zip(*seen, strict=True):
        assert np.array_equal(one, other)


def test_windows_that_are_answered_again_have_new_noise_for_new_panes_alone() -> None:
    spec = specification("0.5")
    current = engine(spec, plan(spec, "uniform", "literal"), Noise(SeededSource(4)))
    current.most_windows = 1
    (first, second, *_) = [part for batch in batches(3) for part in
                           current.insert(as_merged(current, batch))]  # fmt: skip
    current.answer(first)
    assert current.window_state.sliding is not None
    kept = current.window_state.sliding.state()[0]["drawn.policy0.bits"].copy()
    drawn = []
    for _ in range(2):
        current.answer(second)
        drawn.append(current.window_state.sliding.state()[0]["drawn.policy0.bits"].copy())
    assert np.array_equal(drawn[0][0], kept[1])
    assert np.array_equal(drawn[1][0], kept[1])
    assert not np.array_equal(drawn[0][1], drawn[1][1])


def test_moments_lie_in_their_panes_and_are_the_same_for_all_windows() -> None:
    """With `SEQ(a, c)` a yes about the first two panes stays while both are in the window."""
    spec = specification("400")
    made = plan(spec, "uniform", "literal")
    rows = [(1, 3, 0), (1, 12, 2), (2, 12, 0), (2, 3, 2), (1, 60, 1)]
    who, at, kind = zip(*rows, strict=True)
    inputs = [Input("s", FrameSource(pl.DataFrame({"who": who, "at": at, "kind": kind}), "s"))]
    found = bits(list(Run(spec, inputs, plan=made, noise=Noise(SeededSource(7)))))[:, 1]
    # Windows begin at -20, -10, 0, ...: only those at -10 and 0 have both panes.
    assert found[:, 1].tolist() == [False, True, True, *[False] * 6]
    assert not found[:, 2].any()
