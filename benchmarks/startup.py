"""Measure the start of the command, and check that a second run does not compile."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import polars as pl

import tacit
from benchmarks import data, ours
from benchmarks.data import Scale
from benchmarks.jobs import Setting
from benchmarks.measuring import Spent
from benchmarks.report import Finding, Skipped
from tacit.spec.yaml_writer import to_yaml

_TINY = Scale(events=2_000, subjects=10, windows=5)
_TIMES = 9


def startup(setting: Setting) -> Iterator[Finding | Skipped]:
    """Compare `tacit --help` with an import of Polars, and the first run with the second."""
    program = str(Path(sys.executable).parent / "tacit")
    commands = {
        "tacit --help": [program, "--help"],
        "import polars": [sys.executable, "-c", "import polars"],
    }
    seconds = _medians(commands)
    shown, imported = seconds.values()
    yield Finding(
        "Start-up",
        "s until tacit --help has answered",
        shown.elapsed,
        shown.processor,
        0.5,
        "at most",
        "s",
        seconds,
        f"{shown.elapsed / imported.elapsed:.2f} of the time of import polars",
    )
    yield _second_run(program, setting.folder)


def _medians(commands: Mapping[str, Sequence[str]]) -> dict[str, Spent]:
    """Return the median of several alternating runs of each, without the first."""
    runs: dict[str, list[Spent]] = {name: [] for name in commands}
    for _ in range(_TIMES + 1):
        for name, command in commands.items():
            runs[name].append(_spent(command))
    return {
        name: Spent(
            statistics.median(spent.elapsed for spent in spents[1:]),
            statistics.median(spent.processor for spent in spents[1:]),
        )
        for name, spents in runs.items()
    }


def _spent(command: Sequence[str], cache: str = "") -> Spent:
    environment = dict(os.environ) | ({"NUMBA_CACHE_DIR": cache} if cache else {})
    before, started = os.times(), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=environment)
    elapsed, after = time.perf_counter() - started, os.times()
    worked = after.children_user + after.children_system
    return Spent(elapsed, worked - before.children_user - before.children_system)


def _second_run(program: str, folder: Path) -> Finding | Skipped:
    """Run `tacit detect` twice, starting with an empty cache of kernels."""
    job, sources = "Cached kernels", _sources()
    events, spec = folder / "tiny.parquet", folder / "tiny.yaml"
    table = pl.DataFrame(data.events(_TINY))
    table.write_parquet(events)
    asked = ours.specification("SEQ", data.draw_queries(3), _TINY)
    spec.write_text(to_yaml(asked))
    with tempfile.TemporaryDirectory() as cache:
        command = [program, "detect", str(spec), str(events), "--to", f"{cache}/answers.parquet"]
        seconds, kernels = {}, []
        for name in ("first run", "second run"):
            seconds[name] = _spent(command, cache)
            kernels.append({path: path.stat().st_mtime_ns for path in Path(cache).rglob("*.nbc")})
    if _sources() != sources:
        return Skipped(job, "the sources were edited meanwhile, so that kernels had to be compiled")
    first, second = kernels
    again = sum(1 for path, written in second.items() if first.get(path) != written)
    return Finding(
        job,
        "kernels that the second run compiled",
        again,
        target=0,
        bound="at most",
        unit="",
        seconds=seconds,
        note=f"the first run compiled {len(first)}",
    )


def _sources() -> str:
    """Return a fingerprint of the package's files."""
    files = sorted(Path(tacit.__file__).parent.rglob("*.py"))
    return sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()
