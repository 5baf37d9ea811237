"""One ordered query against Flink's MATCH_RECOGNIZE, end to end from a CSV file.

Flink orders by milliseconds and breaks ties by arrival, so the events have whole
milliseconds and no two of a subject fall into the same one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from benchmarks import data, ours
from benchmarks.data import LATENESS, START, WINDOW, Scale
from benchmarks.jobs import Setting, UnequalError
from benchmarks.measuring import Spent, timed
from benchmarks.report import OURS, Finding, Skipped, against

_PACKAGES = ("apache-flink>=2", "psutil")
_ELEMENTS = (3, 7, 11)
_SUBJECTS = 1_000
_WARM = 20_000


class UnavailableError(Exception):
    """Flink cannot be had here."""


def flink(setting: Setting) -> Iterator[Finding | Skipped]:
    """The same query over the same file; both modes of Flink, the better one counts."""
    job = f"SEQ of three, {setting.flink:,} events, CSV"
    try:
        python = _environment(setting.folder / "flink")
    except UnavailableError as error:
        yield Skipped(job, str(error))
        return
    scale = Scale(setting.flink, _SUBJECTS)
    path, bare = _events(scale, setting.folder)
    spec = ours.specification("SEQ", [_ELEMENTS], scale, unit="ms")
    warm = ours.detect(spec, path)
    expected = ours.dense(warm, scale, 1)[:, :, 0]
    seconds, starts = {OURS: timed(lambda: ours.detect(spec, path))[1]}, {}
    for mode in ("batch", "streaming"):
        spent, start, found = _run(python, bare, mode, scale, setting.folder)
        if not np.array_equal(found, expected):
            raise UnequalError(f"Flink ({mode}) gives other answers")
        seconds[f"Flink, {mode}"] = spent
        starts[mode] = start
    note = f"{int(expected.sum()):,} of {expected.size:,} detected, the same for all; Flink took"
    note += " " + " and ".join(f"{start:.1f} s to start ({mode})" for mode, start in starts.items())
    yield against(job, seconds, None, note=f"{note}, not counted, and a small job to warm up")


def _environment(folder: Path) -> Path:
    """A Python environment with PyFlink alone, made once."""
    if shutil.which("java") is None:
        raise UnavailableError("no Java on this machine; Flink needs Java 17")
    python = folder / "bin" / "python"
    ready = folder / "ready"
    if ready.exists():
        return python
    base = getattr(sys, "_base_executable", sys.executable)
    uv = shutil.which("uv") or Path(sys.prefix).parent / ".uv" / "bin" / "uv"
    if Path(uv).exists():
        steps = [
            [str(uv), "venv", "--quiet", "--clear", "--python", base, str(folder)],
            [str(uv), "pip", "install", "--quiet", "--python", str(python), *_PACKAGES],
        ]
    else:
        steps = [
            [base, "-m", "venv", "--clear", str(folder)],
            [str(python), "-m", "pip", "install", "--quiet", *_PACKAGES],
        ]
    for step in steps:
        if subprocess.run(step, capture_output=True).returncode:
            raise UnavailableError("apache-flink cannot be installed from the package index here")
    ready.touch()
    return python


def _events(scale: Scale, folder: Path) -> tuple[Path, Path]:
    """The events as CSV, with a header for us and without one for Flink."""
    path, bare = folder / f"flink-{scale.events}.csv", folder / f"flink-{scale.events}.bare.csv"
    if not bare.exists():
        frame = (
            pl.DataFrame(data.events(scale))
            .with_columns(pl.col("time").dt.epoch("ms"))
            .unique(["subject", "time"], keep="first", maintain_order=True)
        )
        frame.write_csv(path)
        frame.head(_WARM).write_csv(_small(bare), include_header=False)
        frame.write_csv(bare, include_header=False)
    return path, bare


def _small(bare: Path) -> Path:
    return bare.with_suffix(".warm.csv")


def _run(
    python: Path, events: Path, mode: str, scale: Scale, folder: Path
) -> tuple[Spent, float, NDArray[np.bool_]]:
    """What the job took, what came before it, and what was found."""
    found = folder / f"flink-found-{mode}"
    for old in (found, folder / f"{found.name}.warm"):
        shutil.rmtree(old, ignore_errors=True)
    script = Path(__file__).with_name("flink_job.py")
    command = [str(python), str(script), str(events), str(_small(events)), str(found)]
    command += ["--elements", *map(str, _ELEMENTS), "--mode", mode]
    command += ["--size", str(WINDOW // 1000), "--lateness", str(LATENESS // 1_000_000)]
    command += ["--parallelism", str(os.cpu_count())]
    begun = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    whole = time.perf_counter() - begun
    if done.returncode:
        raise RuntimeError(f"the Flink job failed: {done.stderr[-2000:]}")
    elapsed, processor = map(float, done.stdout.split()[-2:])
    return Spent(elapsed, processor), whole - elapsed, _dense(found, scale)


def _dense(found: Path, scale: Scale) -> NDArray[np.bool_]:
    """`[window][subject]`: where Flink found the pattern."""
    detected = np.zeros((scale.windows, scale.subjects), dtype=np.bool_)
    for part in found.iterdir():
        if part.is_file() and part.stat().st_size and not part.name.startswith("."):
            rows = np.loadtxt(part, delimiter=",", dtype=np.int64, ndmin=2)
            detected[rows[:, 1] - START // WINDOW, rows[:, 0]] = True
    return detected
