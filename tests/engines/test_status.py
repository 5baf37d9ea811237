"""What is known of a run, and which of it is for the operator alone."""

from __future__ import annotations

import time

import numpy as np

from tacit.pipeline.status import PublicStatus, RunStatus
from tacit.windows.clock import LATE, NO_SUBJECT, REASONS, TAKEN, Clock, Verdicts


class Engine:
    """A clock that has seen some tuples, and how they were judged."""

    def __init__(self) -> None:
        self.clock = Clock.initial(10, 12, 1000, None, 8)
        self.counts = np.zeros(len(REASONS) + 1, np.int64)

    def take(self, *times: int) -> None:
        """Judge tuples of one subject."""
        verdicts = Verdicts.allocate(len(times))
        slots, since = np.zeros(len(times), np.int32), np.full(1, np.iinfo(np.int64).min)
        self.clock.judge(slots, np.array(times), since, 0, 0, True, verdicts)
        self.counts += np.bincount(verdicts.each, minlength=len(self.counts))


def test_a_status_says_how_far_an_engine_is() -> None:
    engine, status = Engine(), RunStatus()
    engine.take(5, 30, 45, 33)
    engine.take(7)
    engine.counts[NO_SUBJECT] += 2
    status.update(engine, unreadable=3)
    assert engine.counts[[TAKEN, LATE]].tolist() == [4, 1]
    assert (status.tuples, status.late, status.refused) == (10, 1, 5)
    assert status.newest == 45
    assert status.open_windows == 2  # those of 30 and 40


def test_before_the_first_tuple_nothing_is_open() -> None:
    status = RunStatus()
    status.update(Engine())
    assert (status.tuples, status.newest, status.open_windows) == (0, None, 0)


def test_releases_add_up_while_the_schedule_goes_on() -> None:
    public = PublicStatus()
    public.release(2, 20, 42, slide=10, subjects=5, exhausted=1, charged={"visit": 10, "stay": 1})
    public.release(1, 30, 52, slide=10, subjects=6, charged={"visit": 5})
    assert public.windows == 3
    assert (public.until, public.next_close) == (30, 52)
    assert (public.subjects, public.exhausted) == (6, 0)
    assert public.charged == {"visit": 15, "stay": 1}


def test_when_the_last_release_was_made_is_told_in_whole_windows() -> None:
    """To the millisecond it would follow how long the release took, and so what came."""
    public, began = PublicStatus(), time.time()
    public.release(1, 30, 52, slide=3_600_000_000, subjects=6)
    assert public.released_at is not None
    assert public.released_at % 3600 == 0
    assert began - 3600 < public.released_at <= time.time()
