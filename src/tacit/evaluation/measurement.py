"""Measure the quality of a plan on windows of presence bits, with the engine's own evaluator.

Windows are either an array `[window][event type]`, in no order and of no particular subject, or
`Streams`: the windows of several subjects, in order of time. Plans have memory only if they are
made from streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tacit.answers.answers import Answers
from tacit.patterns.event_lists import EventLists
from tacit.pipeline.protected_evaluator import ProtectedEvaluator
from tacit.pipeline.survey import HistorySurvey
from tacit.planning.plan import Plan
from tacit.privacy.mechanisms.mechanism import RunMemory, hash_names
from tacit.privacy.noise import Noise
from tacit.privacy.quality import Confusion, micro_alpha
from tacit.privacy.statistics import Statistics
from tacit.spec.queries import compile_queries
from tacit.spec.specification import Specification
from tacit.windows.clock import NONE
from tacit.windows.panes import ClosedPanes

Presence = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Streams:
    """The windows of several subjects, in order of time."""

    presence: Presence
    """`[subject][window][event type]`"""
    first: int = 0
    """The number of the first window: it starts so many windows after the epoch."""

    @property
    def flat(self) -> Presence:
        """`[window][event type]`, subject by subject."""
        return self.presence.reshape(-1, self.presence.shape[-1])


def to_closed_panes(windows: Presence | Streams) -> ClosedPanes:
    """Convert to closed windows; those in no order are one window of as many subjects."""
    streams = _to_streams(windows)
    subjects, number, types = streams.presence.shape
    width = -(-types // 64)
    padded = np.zeros((number, subjects, 64 * width), np.bool_)
    padded[..., :types] = streams.presence.swapaxes(0, 1)
    words = np.packbits(padded, axis=-1, bitorder="little").view("<u8").astype(np.uint64)
    nothing = EventLists(
        np.zeros(1, np.int64), np.empty(0, np.int64), np.empty((0, width), np.uint64)
    )
    return ClosedPanes(streams.first, words, np.empty(0, np.int64), nothing)


def _to_streams(windows: Presence | Streams) -> Streams:
    return windows if isinstance(windows, Streams) else Streams(windows[:, np.newaxis])


def compute_statistics(spec: Specification, history: Presence | Streams) -> list[Statistics]:
    """Compute the statistics of a history of presence, for subjects that no pattern names."""
    evaluator = HistorySurvey(spec, literal=False)
    closed = to_closed_panes(history)
    subjects = closed.words.shape[1]
    policies = np.zeros(subjects, np.int32)
    bits, _ = evaluator.answer(closed, {}, policies)
    since = np.full(subjects, NONE, np.int64)
    names = pa.array(np.arange(subjects))
    answers = Answers(evaluator.names, spec.windows.size, closed.first, names, since, bits)
    evaluator.count(answers, policies)
    return evaluator.statistics()


def compute_true_bits(spec: Specification, windows: Presence | Streams) -> NDArray[np.uint64]:
    """Compute the true answers `[window][query][word]`."""
    queries = compile_queries(spec, tuple(spec.query_patterns.values()))
    bits: NDArray[np.uint64] = queries.match(to_closed_panes(windows), {})
    return bits


def answer(
    plan: Plan,
    windows: Presence | Streams,
    noise: Noise,
    *,
    exhausted: bool = False,
    before: Streams | None = None,
) -> Presence:
    """Run a plan on these windows, or what replaces it past a limit.

    Returns `[query][window]`, or `[query][subject][window]` for streams. Memory starts from the
    prior, as it does when a plan is first used, or with the windows `before` these.
    """
    words = _answer(plan, windows, noise, exhausted=exhausted, before=before)
    subjects = len(_to_streams(windows).presence)
    bits = unpack(words, subjects)
    return bits.transpose(1, 2, 0) if isinstance(windows, Streams) else bits[0]


def unpack(words: NDArray[np.uint64], subjects: int) -> Presence:
    """Convert words of 64 subjects to a bool for each, in the last dimension."""
    plain = np.ascontiguousarray(words, "<u8").view(np.uint8)
    bits = np.unpackbits(plain, axis=-1, count=subjects, bitorder="little")
    return bits.astype(np.bool_)


def _answer(
    plan: Plan,
    windows: Presence | Streams,
    noise: Noise,
    *,
    exhausted: bool = False,
    before: Streams | None = None,
) -> NDArray[np.uint64]:
    """Return the answers `[window][query][word]`."""
    evaluator = ProtectedEvaluator(plan.spec, plan.mechanisms, noise)
    closed = to_closed_panes(windows)
    policy = len(plan.mechanisms) if exhausted else 0
    policies = np.full(closed.words.shape[1], policy, np.int32)
    keys = hash_names(range(len(policies))) if evaluator.remembers else None
    memory = RunMemory({}, keys=keys)
    if before is not None:
        evaluator.answer(to_closed_panes(before), {}, policies, memory)
        memory = RunMemory(memory.after, keys=keys)
    return evaluator.answer(closed, {}, policies, memory)[0]


def measure(
    plan: Plan, windows: Presence | Streams, noise: Noise, *, before: Streams | None = None
) -> Confusion[NDArray[np.float64]]:
    """Run a plan on these windows, and count errors for each query; see `answer`."""
    found = _answer(plan, windows, noise, before=before)
    subjects = len(_to_streams(windows).presence)
    return compare(compute_true_bits(plan.spec, windows), found, subjects)


def compare(
    true: NDArray[np.uint64], found: NDArray[np.uint64], subjects: int
) -> Confusion[NDArray[np.float64]]:
    """Count errors for each query from two sets of bits `[window][query][word]`."""
    full = np.zeros(-(-subjects // 64) * 64, np.bool_)
    full[:subjects] = True
    lanes = np.packbits(full, bitorder="little").view("<u8").astype(np.uint64)

    def count(words: NDArray[np.uint64]) -> NDArray[np.float64]:
        return np.asarray(np.bitwise_count(words & lanes).sum(axis=(0, 2)), np.float64)

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
