"""Queries that depend on order alone: presence is not noted, and answers are the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
import pytest

from tacit.answers.answers import Answers
from tacit.connectors.frames import FrameSource
from tacit.pipeline.evaluators import CountingDetector, Detector, Evaluator
from tacit.pipeline.reader import Input
from tacit.pipeline.run import Run
from tacit.spec.specification import Specification

ORDERED = ("SEQ(a, b, c)", "SEQ(c, a)", "OR(SEQ(b, c), SEQ(a, NOT c, b))", "NOT(SEQ(c, b))")
MIXED = ("AND(SEQ(a, b), c)", "SEQ(a, c)")
CONDITIONAL = ("SEQ(a x, b y) WHERE x.level < y.level",)
SUBJECTS, TUPLES = 40, 4000


def specification(patterns: Sequence[str]) -> Specification:
    """A query for each pattern."""
    return Specification.model_validate(
        {
            "streams": {"events": {"subject": "who", "time": "at"}},
            "windows": {"size": "1 min", "lateness": "5 s"},
            "events": {
                name: {"stream": "events", "where": f"kind = {number}"}
                for number, name in enumerate("abc")
            },
            "queries": [
                {"name": f"q{number}", "consumer": "all", "pattern": pattern}
                for number, pattern in enumerate(patterns)
            ],
            "subjects": list(range(SUBJECTS)),
        }
    ).checked()


def events(seed: int) -> pl.DataFrame:
    """Random events, out of order, some with equal times, some late, some of others."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.integers(60, 600, TUPLES)) - rng.integers(0, 4, TUPLES)
    times[rng.integers(TUPLES // 2, TUPLES, 20)] -= 200
    return pl.DataFrame(
        {
            "who": rng.integers(0, SUBJECTS + 2, TUPLES).astype(np.int32),
            "at": pl.Series(times * 1_000_000).cast(pl.Datetime("us")),
            "kind": rng.integers(0, 3, TUPLES).astype(np.int8),
            "level": rng.integers(0, 9, TUPLES),
        }
    )


def answer(
    spec: Specification, evaluator: Evaluator, frame: pl.DataFrame, batch: int
) -> tuple[list[Answers], Run]:
    """Run over batches."""
    source = FrameSource(frame.slice(begin, batch) for begin in range(0, len(frame), batch))
    run = Run(spec, [Input("events", source)], evaluator=evaluator)
    return list(run), run


@pytest.mark.cases(4)
@pytest.mark.parametrize("batch", [7, 1000, TUPLES])
@pytest.mark.parametrize("patterns", [ORDERED, MIXED, CONDITIONAL])
def test_answers_are_the_same_with_and_without_presence(
    patterns: Sequence[str], batch: int
) -> None:
    spec = specification(patterns)
    counting = CountingDetector(spec)
    for seed in range(2):
        frame = events(seed)
        ours, run = answer(spec, Detector(spec), frame, batch)
        theirs, other = answer(spec, counting, frame, batch)
        assert sum(int(part.detected.sum()) for part in ours) > 0
        assert [part.first for part in ours] == [part.first for part in theirs]
        for one, two in zip(ours, theirs, strict=True):
            assert (one.detected == two.detected).all()
        assert run.refusals == other.refusals
        assert len(run.refusals.reasons) == 2, "some are late, some are not registered"
    assert counting.occurrences["a"] > 0


def test_presence_is_noted_where_a_query_depends_on_it() -> None:
    assert not Detector(specification(ORDERED)).uses_presence
    assert not Detector(specification(CONDITIONAL)).uses_presence
    assert Detector(specification(MIXED)).uses_presence
    assert Detector(specification(["AND(a, b)"])).uses_presence
    assert CountingDetector(specification(ORDERED)).uses_presence
