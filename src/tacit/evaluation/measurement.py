"""Measure the quality of a plan on windows of presence bits, with the engine's own release."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tacit.answers.answers import Answers
from tacit.patterns.lists import EventLists
from tacit.pipeline.release import Release
from tacit.pipeline.survey import HistorySurvey
from tacit.planning.plan import Plan
from tacit.privacy.noise import Noise
from tacit.privacy.quality import Confusion, micro_alpha
from tacit.privacy.statistics import Statistics
from tacit.spec.queries import compile_queries
from tacit.spec.specification import Specification
from tacit.windows.clock import NONE
from tacit.windows.panes import ClosedPanes

Presence = NDArray[np.bool_]


def to_closed_panes(presence: Presence) -> ClosedPanes:
    """Convert windows `[window][event type]` to one window of as many subjects."""
    rows, types = presence.shape
    width = -(-types // 64)
    padded = np.zeros((rows, 64 * width), np.bool_)
    padded[:, :types] = presence
    words = np.packbits(padded, axis=1, bitorder="little").view("<u8").astype(np.uint64)
    nothing = EventLists(
        np.zeros(1, np.int64), np.empty(0, np.int64), np.empty((0, width), np.uint64)
    )
    return ClosedPanes(0, words.reshape(1, rows, width), np.empty(0, np.int64), nothing)


def compute_statistics(spec: Specification, presence: Presence) -> list[Statistics]:
    """Compute the statistics of a history of presence, for subjects that no pattern names."""
    evaluator = HistorySurvey(spec, literal=False)
    closed = to_closed_panes(presence)
    policies = np.zeros(len(presence), np.int32)
    bits, _ = evaluator.answer(closed, {}, policies)
    since = np.full(len(presence), NONE, np.int64)
    answers = Answers(evaluator.names, 1, 0, pa.array(np.arange(len(presence))), since, bits)
    evaluator.count(answers, policies)
    return evaluator.statistics()


def compute_true_bits(spec: Specification, presence: Presence) -> NDArray[np.uint64]:
    """Compute the true answers `[query][word]`."""
    queries = compile_queries(spec, tuple(spec.query_patterns.values()))
    bits: NDArray[np.uint64] = queries.answer(to_closed_panes(presence), {})[0]
    return bits


def answer(plan: Plan, presence: Presence, noise: Noise, exhausted: bool = False) -> Presence:
    """Run a plan on these windows, or what replaces it past a limit: `[query][window]`."""
    release = Release(plan.spec, plan.mechanisms, noise)
    policies = np.full(len(presence), len(plan.mechanisms) if exhausted else 0, np.int32)
    words = release.answer(to_closed_panes(presence), {}, policies)[0][0]
    plain = np.ascontiguousarray(words, "<u8").view(np.uint8)
    bits = np.unpackbits(plain, axis=1, count=len(presence), bitorder="little")
    return bits.astype(np.bool_)


def measure(plan: Plan, presence: Presence, noise: Noise) -> Confusion[NDArray[np.float64]]:
    """Run a plan on these windows, and count errors for each query."""
    release = Release(plan.spec, plan.mechanisms, noise)
    policies = np.zeros(len(presence), np.int32)
    found = release.answer(to_closed_panes(presence), {}, policies)[0][0]
    return compare(compute_true_bits(plan.spec, presence), found, len(presence))


def compare(
    true: NDArray[np.uint64], found: NDArray[np.uint64], windows: int
) -> Confusion[NDArray[np.float64]]:
    """Count errors for each query from two sets of bits `[query][word]`."""
    full = np.zeros(-(-windows // 64) * 64, np.bool_)
    full[:windows] = True
    lanes = np.packbits(full, bitorder="little").view("<u8").astype(np.uint64)

    def count(words: NDArray[np.uint64]) -> NDArray[np.float64]:
        return np.asarray(np.bitwise_count(words & lanes).sum(axis=1), np.float64)

    return Confusion(count(true & found), count(~true & found), count(true & ~found))


def compute_scores(
    confusion: Confusion[NDArray[np.float64]], alphas: Sequence[float]
) -> NDArray[np.float64]:
    """Compute relative errors: of the micro average, of the mean over queries, of each query."""
    each = np.asarray(confusion.mre(np.array(alphas)))
    micro = compute_mre(confusion, alphas)
    return np.array([micro, each.mean() if len(each) else micro, *each])


def compute_mre(confusion: Confusion[NDArray[np.float64]], alphas: Sequence[float]) -> float:
    """Compute the relative error of the micro average of quality; true answers have 1."""
    return confusion.total().mre(micro_alpha(alphas))
