"""Presence that is found before tuples are judged: windows are the same as without."""

from __future__ import annotations

import time
from dataclasses import dataclass
from threading import current_thread, main_thread
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from tacit.connectors.frames import FrameSource
from tacit.events.masks import EventMasks
from tacit.kernels.threads import Workers
from tacit.pipeline.reader import Input
from tacit.pipeline.run import Run
from tacit.spec.specification import Specification
from tacit.windows import panes
from tacit.windows.clock import LATE, NONE, TAKEN, Clock, Verdicts
from tacit.windows.panes import Panes
from tacit.windows.runs import NO_EXTENTS, RUN, RunExtents
from tacit.windows.staging import StagedPresence

SIZE, LATENESS, SLOTS, RUNS = 6_000_000, 1_000_000, 700, 100
TABLE = np.array([[1], [2], [4], [0], [10]], np.uint64)
NO_ORDER = np.zeros(1, np.uint64)
TWO = Workers(2)


def draw(seed: int) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.uint8]]:
    """Draw nearly sorted tuples; single ones and whole runs are late or unregistered."""
    rng = np.random.default_rng(seed)
    count = RUNS * RUN + 77
    slots = rng.integers(0, SLOTS, count).astype(np.int32)
    slots[rng.integers(0, count, 2)] = -1
    slots[20 * RUN : 21 * RUN] = -1
    arrivals = np.sort(rng.integers(0, 5 * SIZE, count))
    times = np.maximum(arrivals - rng.integers(0, LATENESS // 4, count), 0)
    times[rng.integers(60 * RUN, count, 2)] -= 2 * SIZE
    for run in (78, 90):  # the first of a batch, so that its window is staged
        times[run * RUN : (run + 1) * RUN] = times[run * RUN] - 3 * SIZE
    return slots, times.astype(np.int64), rng.integers(0, len(TABLE), count).astype(np.uint8)


@dataclass
class Uses:
    """How many batches staging was used for: all staged runs, those of one window, or none."""

    whole: int = 0
    part: int = 0
    none: int = 0


def close_all(
    seed: int, batch: int, *, stages: bool, table: NDArray[np.uint64] = TABLE
) -> tuple[list[NDArray[np.uint64]], Uses]:
    """Insert as an engine does; return windows, and how often staging was used."""
    slots, times, codes = draw(seed)
    made = Panes(SIZE, 3, SLOTS, NO_ORDER)
    clock = Clock.initial(SIZE, LATENESS, 10 * SIZE, None, made.capacity)
    since = np.full(SLOTS, NONE, np.int64)
    closed, uses = [], Uses()
    for start in range(0, len(times), batch):
        part = slice(start, start + batch)
        own, masks = (slots[part], times[part]), EventMasks(table, codes[part])
        extents, staged = RunExtents.measure(own[1], own[0]), None
        if stages:
            assert made.stages(masks, SLOTS, ahead=True) == (len(own[0]) >= SLOTS)
            staged = made.stage(own[1], own[0], masks, SLOTS)
            for name in ("earliest", "latest", "least"):
                assert (getattr(staged.extents, name) == getattr(extents, name)).all()
        verdicts, begin = Verdicts.allocate(len(own[0])), 0
        while begin < len(own[0]):
            end = clock.judge(*own, since, begin, 0, True, verdicts, extents)
            if staged is not None:
                added = staged.add_accepted(verdicts, begin, end, np.zeros((3, SLOTS, 1), "u8"))
                if not added.any():
                    uses.none += 1
                elif (added == (staged.runs > 0)).all():
                    uses.whole += 1
                else:
                    uses.part += 1
                for run in np.flatnonzero(added).tolist():
                    assert (verdicts.each[run * RUN : (run + 1) * RUN] == TAKEN).all()
            made.insert(*own, masks, verdicts, begin, end, staged)
            begin = end
            assert clock.first_window is not None
            for window in range(max(clock.first_window, clock.next_window), clock.closed):
                closed.append(made.pop(window, 1).words)
                clock.mark_closed(window + 1)
    closed += [made.pop(window, 1).words for window in range(clock.next_window, clock.ended)]
    return closed, uses


@pytest.mark.parametrize("batch", [3 * RUN, 10 * RUN, 13 * RUN, 200 * RUN])
@pytest.mark.parametrize("bit", [0, 40])
def test_staged_presence_gives_the_same_windows(
    batch: int, bit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(panes, "_STAGED", 1)
    table = TABLE << np.uint64(bit)
    for seed in range(3):
        plain, _ = close_all(seed, batch, stages=False, table=table)
        staged, uses = close_all(seed, batch, stages=True, table=table)
        assert uses.none > 0, "a run is late, or the clock stops within the batch"
        assert uses.whole > 0 or batch > RUNS * RUN
        assert len(plain) == len(staged) >= 5
        for one, other in zip(plain, staged, strict=True):
            assert (one == other).all()
            assert one.any()


def test_one_refused_tuple_of_a_staged_run_counts() -> None:
    """The clock may have judged a run tuple by tuple; runs of two windows count separately."""
    words = np.zeros((2, 4, 3), np.uint64)
    words[0, 1, 2], words[1, 2, 1] = 5, 6
    runs = np.array([1, 0, 2, 1], np.uint8)
    staged = StagedPresence(7, words, runs, NO_EXTENTS)
    count = 4 * RUN - 5
    verdicts = Verdicts(np.full(count, TAKEN, np.uint8), np.array([7, NONE, NONE, NONE]))

    def add(begin: int, end: int) -> tuple[list[bool], list[list[int]]]:
        ring = np.zeros((5, 3, 1), np.uint64)
        return staged.add_accepted(verdicts, begin, end, ring).tolist(), ring[:, :, 0].tolist()

    empty = [0, 0, 0]
    one, both = [empty] * 3 + [[0, 0, 5], empty], [empty] * 3 + [[0, 0, 5], [0, 6, 0]]
    assert add(0, count) == ([True, False, True, True], both)
    assert add(0, count - 1) == ([], [empty] * 5), "not all are judged"
    assert add(RUN, count) == ([], [empty] * 5)
    verdicts.each[RUN] = LATE
    assert add(0, count) == ([True, False, True, True], both), "that run is not staged"
    verdicts.each[2 * RUN] = LATE
    assert add(0, count) == ([True, False, False, True], one)
    verdicts.each[-1] = LATE
    assert add(0, count) == ([False] * 4, [empty] * 5)


def test_few_windows_are_staged_and_only_of_registered_subjects() -> None:
    times = np.arange(6 * RUN) // (2 * RUN) * SIZE + SIZE  # two runs in each window
    times[3 * RUN :: 3] -= SIZE
    times[5 * RUN] += 4 * SIZE
    slots = np.zeros(6 * RUN, np.int32)
    slots[RUN + 5] = -1
    masks = EventMasks(TABLE, np.zeros(6 * RUN, np.uint8))
    staged = StagedPresence.find(times, slots, masks, SIZE, SLOTS)
    assert staged.first == 1
    assert staged.runs.tolist() == [1, 0, 1, 2, 2, 0]


def test_a_run_that_is_behind_lets_the_reading_thread_stage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(panes, "_STAGED", 1)
    monkeypatch.setattr(FrameSource, "most_rows", 2 * RUN)
    spec = Specification.model_validate(
        {
            "streams": {"events": {"subject": "who", "time": "at"}},
            "windows": {"size": "6 s", "lateness": "1 s"},
            "events": {
                f"k{kind}": {"stream": "events", "where": f"kind = {kind}"} for kind in range(4)
            },
            "queries": [
                {"name": "both", "consumer": "all", "pattern": "AND(k0, k1)"},
                {"name": "ordered", "consumer": "all", "pattern": "SEQ(k2, k3)"},
            ],
            "subjects": list(range(SLOTS)),
        }
    ).checked()
    slots, times, codes = draw(5)
    frame = pl.DataFrame(
        {"who": slots, "at": pl.Series(times).cast(pl.Datetime("us")), "kind": codes}
    )
    threads: set[bool] = set()
    find = Panes.stage

    def stage(made: Panes, *parts: Any) -> StagedPresence:
        threads.add(current_thread() is main_thread())
        return find(made, *parts)

    monkeypatch.setattr(Panes, "stage", stage)
    found = []
    for answers in Run(spec, [Input("events", FrameSource(frame))], workers=TWO):
        found.append(answers.detected)
        time.sleep(0.02)
    assert threads == {True, False}, "the first batch is not staged ahead"
    monkeypatch.setattr(panes, "_STAGED", 10**9)
    expected = list(Run(spec, [Input("events", FrameSource(frame))], workers=TWO))
    assert (np.concatenate(found) == np.concatenate([one.detected for one in expected])).all()
