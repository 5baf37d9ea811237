"""Presence that is found before tuples are judged: windows are the same as without."""

from __future__ import annotations

import time

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from tacit.connectors.frames import FrameSource
from tacit.events.masks import EventMasks
from tacit.kernels.threads import ONE_THREAD, Workers
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


def close_all(seed: int, batch: int, workers: Workers) -> tuple[list[NDArray[np.uint64]], int, int]:
    """Insert as an engine does; return windows, and how many batches staging was used for, or not.

    With one thread nothing is staged.
    """
    slots, times, codes = draw(seed)
    made = Panes(SIZE, 3, SLOTS, NO_ORDER, workers=workers)
    clock = Clock.initial(SIZE, LATENESS, 10 * SIZE, None, made.capacity)
    since = np.full(SLOTS, NONE, np.int64)
    closed, used, unused = [], 0, 0
    for start in range(0, len(times), batch):
        part = slice(start, start + batch)
        own, masks = (slots[part], times[part]), EventMasks(TABLE, codes[part])
        extents = RunExtents.measure(own[1], own[0])
        staged = made.stage(own[1], own[0], masks, SLOTS)
        verdicts, begin = Verdicts.allocate(len(own[0])), 0
        while begin < len(own[0]):
            end = clock.judge(*own, since, begin, 0, True, verdicts, extents)
            if staged is not None:
                accepted = staged.is_accepted(verdicts, begin, end)
                used, unused = used + accepted, unused + (not accepted)
            made.insert(*own, masks, verdicts, begin, end, staged)
            begin = end
            assert clock.first_window is not None
            for window in range(max(clock.first_window, clock.next_window), clock.closed):
                closed.append(made.pop(window, 1).words)
                clock.mark_closed(window + 1)
    closed += [made.pop(window, 1).words for window in range(clock.next_window, clock.ended)]
    return closed, used, unused


@pytest.mark.parametrize("batch", [3 * RUN, 10 * RUN, 13 * RUN, 200 * RUN])
def test_staged_presence_gives_the_same_windows(
    batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(panes, "_STAGED", 1)
    for seed in range(3):
        plain, none, _ = close_all(seed, batch, ONE_THREAD)
        staged, used, unused = close_all(seed, batch, TWO)
        assert none == 0
        assert unused > 0, "a run is late, or the clock stops within the batch"
        assert used > 0 or batch > RUNS * RUN
        assert len(plain) == len(staged) >= 5
        for one, other in zip(plain, staged, strict=True):
            assert (one == other).all()


def test_one_refused_tuple_of_a_staged_run_counts() -> None:
    """The clock may have judged a run tuple by tuple."""
    runs = np.array([True, False, True])
    staged = StagedPresence(0, np.zeros((4, 1), np.uint64), runs, NO_EXTENTS)
    verdicts = Verdicts(np.full(3 * RUN - 5, TAKEN, np.uint8), np.array([0, NONE, NONE]))
    assert staged.is_accepted(verdicts, 0, 3 * RUN - 5)
    assert not staged.is_accepted(verdicts, 0, 3 * RUN - 6), "not all are judged"
    assert not staged.is_accepted(verdicts, RUN, 3 * RUN - 5)
    verdicts.each[RUN] = LATE
    assert staged.is_accepted(verdicts, 0, 3 * RUN - 5), "that run is not staged"
    verdicts.each[-1] = LATE
    assert not staged.is_accepted(verdicts, 0, 3 * RUN - 5)


def test_a_run_that_is_behind_uses_what_the_reading_thread_staged(
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
    added: list[int] = []
    add = StagedPresence.add_to

    def count(staged: StagedPresence, ring: NDArray[np.uint64]) -> None:
        added.append(staged.first)
        add(staged, ring)

    monkeypatch.setattr(StagedPresence, "add_to", count)
    found = []
    for answers in Run(spec, [Input("events", FrameSource(frame))], workers=TWO):
        found.append(answers.detected)
        time.sleep(0.02)
    assert added
    before = len(added)
    expected = list(Run(spec, [Input("events", FrameSource(frame))], workers=ONE_THREAD))
    assert len(added) == before
    assert (np.concatenate(found) == np.concatenate([one.detected for one in expected])).all()
