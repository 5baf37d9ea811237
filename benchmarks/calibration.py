"""Compare stated with true confidence by time of day, on the test taxis of T-Drive.

    python -m benchmarks.calibration T-DRIVE [EPSILON ...]

For each epsilon, answers with memory are grouped by span of four hours and tenth of confidence. For
each tenth from 0.5 on, a line has what was stated, how often it was right, and of how many answers.
"""

from __future__ import annotations

import sys
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from tacit.evaluation.measurement import (
    compute_statistics,
    compute_true_bits,
    to_closed_panes,
    unpack,
)
from tacit.evaluation.taxi_areas import TaxiDataSet, make_taxi_data_set
from tacit.evaluation.tdrive import read_tdrive, select_taxis
from tacit.pipeline.protected_evaluator import ProtectedEvaluator
from tacit.planning.planner import make_plan
from tacit.privacy.mechanisms.mechanism import RunMemory, hash_names
from tacit.privacy.noise import Noise
from tacit.privacy.randomness import SeededSource

DRAWS = 3
LEAST = 150
"""Answers that are needed to judge a share."""
_BEIJING = 8


def main(arguments: list[str]) -> None:
    """Print a table for each epsilon."""
    reports = select_taxis(read_tdrive(arguments[0]).reports, "test")
    drawn = [make_taxi_data_set(reports, number) for number in range(DRAWS)]
    for epsilon in arguments[1:] or ["2", "3"]:
        parts = [_answer(one, Decimal(epsilon), number) for number, one in enumerate(drawn)]
        span, stated, right = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        print(f"epsilon {epsilon}: stated {stated.mean():.3f}, right {right.mean():.3f}")
        for four in range(6):
            shown = []
            for tenth in range(5, 10):
                own = (span == four) & (np.floor(stated * 10) == tenth)
                few = own.sum() < LEAST
                text = f"{stated[own].mean():.3f} {right[own].mean():.3f} of {own.sum()}"
                shown.append("too few" if few else text)
            print(f"  {4 * four:02} to {4 * four + 4:02} h:", "; ".join(shown))


def _answer(
    drawn: TaxiDataSet, epsilon: Decimal, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Return the span of the day, the confidence, and whether it is right, of uncertain answers."""
    private = tuple(one.model_copy(update={"epsilon": epsilon}) for one in drawn.spec.private)
    spec = drawn.spec.model_copy(update={"private": private}).checked()
    plan = make_plan(spec, compute_statistics(spec, drawn.history_streams), "optimal")
    assert plan.has_memory
    evaluator = ProtectedEvaluator(spec, plan.mechanisms, Noise(SeededSource(seed)))
    streams = drawn.test_streams
    closed = to_closed_panes(streams)
    windows, subjects = closed.words.shape[:2]
    memory = RunMemory({}, keys=hash_names(range(subjects)))
    words, certainty = evaluator.answer(closed, {}, np.zeros(subjects, np.int32), memory)
    told, true = unpack(words, subjects), unpack(compute_true_bits(spec, streams), subjects)
    hours = (streams.first + np.arange(windows)) * spec.windows.size / 3.6e9 + _BEIJING
    spans = np.repeat((hours % 24 // 4)[:, np.newaxis], subjects, axis=1)
    found = []
    for query in range(told.shape[1]):
        every = slice(0, windows), slice(0, subjects)
        confidence = certainty.compute_confidence(query, *every, told[:, query])
        own = confidence < 1
        found.append((spans[own], confidence[own], (told == true)[:, query][own]))
    span, stated, right = (np.concatenate(columns) for columns in zip(*found, strict=True))
    return span, stated, right


if __name__ == "__main__":
    main(sys.argv[1:])
