"""Compare one ordered query with Flink's MATCH_RECOGNIZE, end to end from a CSV file."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import data, foreign, ours
from benchmarks.data import Scale
from benchmarks.foreign import UnavailableError
from benchmarks.jobs import Setting, UnequalError
from benchmarks.measuring import timed
from benchmarks.report import OURS, Finding, Skipped, against

MODES = ("batch", "streaming")
QUERIES = [(3, 7, 11)]
SUBJECTS = 1_000


def flink(setting: Setting) -> Iterator[Finding | Skipped]:
    """Run the same query over the same file; the better of Flink's two modes counts."""
    job = f"SEQ of three, {setting.flink:,} events, CSV"
    try:
        python = environment(setting)
    except UnavailableError as error:
        yield Skipped(job, str(error))
        return
    scale = Scale(setting.flink, SUBJECTS)
    parts = data.parts(scale, setting.folder, 1)
    spec = ours.specification("SEQ", QUERIES, scale, unit="ms")
    detect = partial(ours.detect, spec, parts.named)
    expected = ours.dense(detect(), scale, 1)
    seconds, starts = {OURS: timed(detect)[1]}, []
    for mode in MODES:
        done = foreign.run(python, "flink_job", ("order", mode), parts, QUERIES, scale)
        if not np.array_equal(done.detected, expected):
            raise UnequalError(f"Flink ({mode}) gives other answers")
        seconds[f"Flink, {mode}"] = done.spent
        starts.append(f"{done.start:.1f} s to start ({mode})")
    note = f"{int(expected.sum()):,} of {expected.size:,} detected, the same for all; Flink took"
    note += f" {' and '.join(starts)}, not counted, with a small job to warm up"
    yield against(job, seconds, None, note=note)


def environment(setting: Setting) -> Path:
    """Return the Python interpreter that has Flink."""
    return foreign.java_environment(setting.folder / "flink", "apache-flink>=2", "psutil")
