"""Compare the delivery of a window to Parquet with its release, for a million subjects.

A release is everything from a closed window to the commit in the ledger: charges, draws, packed
answers. A delivery reads the release from the ledger and writes a file into a folder, synced to
disk. In a run both happen at the same time, so a run keeps up if a delivery takes no longer.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial
from itertools import count
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks import data, ours
from benchmarks.data import Scale
from benchmarks.jobs import Setting, UnequalError
from benchmarks.measuring import Spent, timed
from benchmarks.protected import PRIVATE
from benchmarks.report import Finding
from tacit.answers.answers import Answers
from tacit.connectors.files import open_source
from tacit.connectors.folder_sink import FolderSink
from tacit.connectors.frames import FrameSource
from tacit.engines.local import survey
from tacit.ledger.ledger import Ledger
from tacit.pipeline.delivery import Delivery
from tacit.pipeline.reader import Input
from tacit.pipeline.run import Run
from tacit.planning.plan import Plan
from tacit.planning.planner import make_plan
from tacit.spec.specification import Private, Specification

_SUBJECTS = 1_000_000
_QUERIES, _WINDOWS, _EVENTS = 20, 3, 3
"""Queries; windows; events of a subject in a window, on average."""
_WEEK = 7 * 24 * 60
"""One-minute windows in a week."""


def delivery(setting: Setting) -> Iterator[Finding]:
    """Measure the time of a delivery for each second of the release, and the bytes of both."""
    subjects = min(_SUBJECTS, setting.scale.events // 20)
    scale = Scale(_EVENTS * _WINDOWS * subjects, subjects, _WINDOWS)
    with tempfile.TemporaryDirectory(dir=setting.folder) as name:
        folder = Path(name)
        source = folder / "events.parquet"
        pq.write_table(data.events(scale, text=True), source, row_group_size=data.ROW_GROUP)
        spec, plan = _prepare(scale)
        numbers = count()
        least: dict[str, Spent] = {}
        for number in range(setting.rounds + 1):
            fresh = folder / str(next(numbers))
            fresh.mkdir()
            found, stored, written = _measure(spec, plan, source, fresh)
            shutil.rmtree(fresh)
            if number:  # the first round is for warming up
                least = {job: least.get(job, spent).least(spent) for job, spent in found.items()}
    one, other = least["release"], least["delivery"]
    yield Finding(
        f"Delivery to Parquet, {subjects:,} subjects, {_QUERIES} queries",
        "of the time of the release",
        other.elapsed / one.elapsed,
        other.processor / one.processor,
        1,
        "at most",
        seconds=least,
        note=f"a window: {one.elapsed:.2f} s released, {other.elapsed:.2f} s delivered,"
        f" {stored / 1e6:.2f} MB in the ledger, {written / 1e6:.2f} MB of Parquet",
    )
    yield Finding(
        f"Seven days of one-minute windows in the ledger, {subjects:,} subjects",
        f"for {_QUERIES} queries, by --retain",
        stored * _WEEK / 1e9,
        unit="GB",
        note=f"{8 * stored / (subjects * _QUERIES):.2f} bits for an answer",
    )


def _prepare(scale: Scale) -> tuple[Specification, Plan]:
    """Make the specification, and a plan from the history of few subjects."""
    private = tuple(Private(pattern=pattern, epsilon=Decimal(1)) for pattern in PRIVATE)

    def specify(some: Scale) -> Specification:
        plain = ours.specification("AND", data.draw_queries(_QUERIES), some, text=True)
        return plain.model_copy(update={"private": private}).checked()

    few = Scale(10_000 * _EVENTS, 10_000, 1)
    history = [Input("events", FrameSource(data.events(few, 3, text=True)))]
    statistics = survey(specify(few), history, literal=False)
    spec = specify(scale)
    return spec, make_plan(spec, statistics, "optimal")


def _measure(
    spec: Specification, plan: Plan, source: Path, folder: Path
) -> tuple[dict[str, Spent], float, float]:
    """Release all windows, then deliver them; return the times and bytes of a window."""
    place, target = folder / "spent.db", folder / "answers"
    with Ledger.open(str(place)) as ledger:
        run = Run(spec, [Input("events", open_source(source))], plan=plan, ledger=ledger)
        released = _time_commits(run)
        windows = run.run().windows
        one = released()
        lease = ledger.take_over("tacit", spec.fingerprint)
        with FolderSink(target) as sink:
            other = timed(partial(_deliver, Delivery.from_ledger(ledger, lease, [sink])))[1]
    files = sorted(target.glob("*.parquet"))
    if len(files) != windows:
        raise UnequalError(f"{windows} windows were released, {len(files)} were delivered")
    with sqlite3.connect(place) as connection:
        stored = connection.execute("SELECT sum(length(body)) FROM tacit_bodies").fetchone()[0]
    written = sum(file.stat().st_size for file in files)
    spent = {"release": one, "delivery": other}
    per_window = {
        job: Spent(all_.elapsed / windows, all_.processor / windows) for job, all_ in spent.items()
    }
    return per_window, stored / windows, written / windows


def _time_commits(run: Run) -> Callable[[], Spent]:
    """Time the commits of a run, in its thread alone: others read ahead meanwhile."""
    commit = run._settlement.commit
    elapsed = processor = 0.0

    def timed_commit() -> Iterator[Answers]:
        nonlocal elapsed, processor
        began, used = time.perf_counter(), time.thread_time()
        yield from commit()
        elapsed += time.perf_counter() - began
        processor += time.thread_time() - used

    run._settlement.commit = timed_commit  # type: ignore[method-assign]
    return lambda: Spent(elapsed, processor)


def _deliver(delivery: Delivery) -> None:
    delivery.start()
    while not delivery.is_done(1.0):
        delivery.check()
    delivery.check()
    delivery.close()
