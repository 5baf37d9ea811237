"""Runs whose windows close by the clock: what comes decides neither when nor what is late."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import pytest

from tacit.answers.answers import Answers
from tacit.pipeline import run as loop
from tacit.pipeline.engine import Engine
from tacit.pipeline.run import Run
from tacit.pipeline.sources import Batch
from tacit.windows.clock import LATE, REASONS
from tests.engines.crashes import check_released_once
from tests.engines.test_ledger_runs import CLOCK, House, Live

DOOR, BED = 0, 2
FIRST = 1_700_000_040


def one(at: int, who: str, kind: int) -> pl.DataFrame:
    """A single tuple."""
    return pl.DataFrame({"who": [who], "at": [at], "kind": [kind]})


@dataclass
class Scripted(Live):
    """A source that sends its frames at times of a simulated clock, and then stops the run.

    The next frame is sent when the engine has counted the tuples of the one before.
    """

    script: Sequence[tuple[float, pl.DataFrame]] = ()
    seconds: float = 0.0
    runs: list[Run] = field(default_factory=list)

    def monotonic(self) -> float:
        """The time of the simulated clock."""
        return self.seconds

    def read(self, columns: Sequence[str], keys: Sequence[str]) -> Iterator[Batch]:
        """Frame by frame; nothing in between."""
        run, silence = self.runs[0], super().read(columns, keys)
        counted = run.engine.counts.sum()
        for number, (when, frame) in enumerate(self.script):
            self.seconds = max(self.seconds, when)
            counted += frame.height
            table = frame.select(columns).rechunk().to_arrow().to_batches()[0]
            yield Batch(table, 1, 0, self.name, receipt=number)
            while run.engine.counts.sum() < counted:
                yield next(silence)
        run.stop()
        yield from silence


def held(
    house: House,
    script: Sequence[tuple[float, pl.DataFrame]],
    now: float,
    monkeypatch: pytest.MonkeyPatch,
) -> Engine:
    """A run over a script while the wall clock shows the same time; its engine."""
    source = Scripted([], script=script)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "time", source)
        house.run(source, prepare=source.runs.append, now=lambda: now)
    return source.runs[0].engine


@pytest.mark.parametrize(
    ("lasts", "private", "at", "late"),
    [
        (3.0, (), 2.5, 0),
        (3.0, (1.0,), 2.5, 0),
        (0.6, (), 1.2, 1),
        (0.6, (0.1, 0.3, 0.9), 1.2, 2),
    ],
)
def test_how_long_a_restart_is_caught_up_with_does_not_depend_on_what_comes(
    lasts: float,
    private: Sequence[float],
    at: float,
    late: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Private tuples of one subject do not decide whether another's tuple is late."""
    monkeypatch.setattr(loop, "_CATCHING_UP", lasts)
    house = House(tmp_path, CLOCK)
    held(house, [(0.0, one(FIRST + 1, "p1", DOOR))], FIRST + 5, monkeypatch)
    script = [(when, one(FIRST + 10, "p2", DOOR)) for when in private]
    script.append((at, one(FIRST + 20, "p1", BED)))
    script.append((lasts, one(FIRST + 80, "p1", BED)))
    engine = held(house, script, FIRST + 90, monkeypatch)
    assert engine.counts.sum() == 3 + len(private)
    assert engine.counts[LATE] == late
    answers = check_released_once(house.place, house.answers)
    assert answers["window_start"].unique().dt.epoch("s").to_list() == [FIRST]


def test_after_a_long_outage_tuples_of_now_are_taken_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older windows make room for them, and no more of these than must be."""
    house = House(tmp_path, CLOCK)
    held(house, [(0.0, one(FIRST + 1, "p1", DOOR))], FIRST + 5, monkeypatch)
    now = FIRST + 300 * 60
    script = [(0.0, one(now - at, "p1", BED)) for at in (0, 60, 200 * 60)]
    engine = held(house, script, now, monkeypatch)
    assert engine.counts.tolist() == [4, *[0] * len(REASONS)]
    capacity = engine.clock.capacity
    assert 0 < engine.clock.next_window - FIRST // 60 <= 300 - capacity // 2 + 2


def test_by_the_clock_a_release_waits_neither_for_tuples_nor_for_their_silence(
    tmp_path: Path,
) -> None:
    """The run wakes when a window closes: not when the next batch comes, or its pulse."""
    house = House(tmp_path, CLOCK.replace("1 min, lateness: 20 s", "1 s"))
    delays, runs = list[float](), list[Run]()
    end = threading.Event()

    class Seldom(Live):
        """Is silent most of the time, and not in step with windows."""

        def read(self, columns: Sequence[str], keys: Sequence[str]) -> Iterator[Batch]:
            for batch in super().read(columns, keys):
                yield batch
                end.wait(1.37)

    def note(_: Answers) -> None:
        delays.append(time.time() % 1)
        if len(delays) == 4:
            end.set()
            runs[0].stop()

    house.run(Seldom([]), prepare=runs.append, released=note)
    assert len(delays) >= 4
    # With batches it would be 0.37 s or more. A loaded machine may be late, not always.
    assert sorted(delays)[1] < 0.3
