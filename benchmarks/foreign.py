"""Run rivals in separate Python environments, by scripts that measure themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from benchmarks.data import LATENESS, START, WINDOW, Parts, Scale
from benchmarks.measuring import Spent
from benchmarks.ours import Queries

ROOT = Path(__file__).parents[1]
"""The folder of the scripts."""


class UnavailableError(Exception):
    """Something is not available on this machine."""


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a job in another process."""

    spent: Spent
    """The time of the job itself."""
    start: float
    """The seconds of everything else: the start, the warm-up, the end."""
    detected: NDArray[np.bool_]
    """`[window][subject][query]`: the answers."""
    true: Spent | None = None
    """The time of the same job with true answers, if ours was measured so too."""


def java_environment(folder: Path, *packages: str) -> Path:
    """Create an environment with only these packages, once; return its Python. Needs Java."""
    if shutil.which("java") is None:
        raise UnavailableError(f"no Java on this machine; {packages[0]} needs Java 17")
    python, ready = folder / "bin" / "python", folder / "ready"
    if ready.exists():
        return python
    base = getattr(sys, "_base_executable", sys.executable)
    uv = shutil.which("uv") or Path(sys.prefix).parent / ".uv" / "bin" / "uv"
    if Path(uv).exists():
        steps = [
            [str(uv), "venv", "--quiet", "--clear", "--python", base, str(folder)],
            [str(uv), "pip", "install", "--quiet", "--python", str(python), *packages],
        ]
    else:
        steps = [
            [base, "-m", "venv", "--clear", str(folder)],
            [str(python), "-m", "pip", "install", "--quiet", *packages],
        ]
    for step in steps:
        if subprocess.run(step, capture_output=True).returncode:
            raise UnavailableError(f"{packages[0]} cannot be installed from the package index here")
    ready.touch()
    return python


def run(
    python: Path, script: str, words: tuple[str, ...], parts: Parts, queries: Queries, scale: Scale
) -> Done:
    """Run a script over the events; it warms up, and reports the time of the job itself."""
    command = [str(python), "-m", f"benchmarks.{script}", *words]
    with tempfile.TemporaryDirectory(dir=parts.bare.parent) as folder:
        found = Path(folder) / "found"
        command += [str(parts.bare), str(parts.few), str(found)]
        command += ["--queries", *(",".join(map(str, query)) for query in queries)]
        command += ["--size", str(WINDOW // 1000), "--lateness", str(LATENESS // 1_000_000)]
        command += ["--parallelism", str(os.cpu_count())]
        started = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        whole = time.perf_counter() - started
        if done.returncode:
            raise RuntimeError(f"{script} failed: {done.stderr[-2000:]}")
        elapsed, processor = map(float, done.stdout.split()[-2:])
        return Done(Spent(elapsed, processor), whole - elapsed, _dense(found, scale, len(queries)))


def _dense(found: Path, scale: Scale, queries: int) -> NDArray[np.bool_]:
    """Read detections from files with a subject, a window and a number whose bits are queries."""
    detected = np.zeros((scale.windows, scale.subjects, queries), dtype=np.bool_)
    for part in found.iterdir():
        if part.is_file() and part.stat().st_size and not part.name.startswith((".", "_")):
            rows = pl.read_csv(part, has_header=False).to_numpy()
            subjects, windows, bits = rows.T
            bits_set = bits[:, np.newaxis] >> np.arange(queries) & 1
            detected[windows - START // WINDOW, subjects] |= bits_set.astype(np.bool_)
    return detected
