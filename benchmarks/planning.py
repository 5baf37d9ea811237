"""Measure planning from a file, each plan in a separate process: time, memory, size, loading.

`python -m benchmarks.planning growth KIND MECHANISM WINDOWS [QUERIES]` plans for 250, 500, 1000 and
2000 queries with these windows, and for QUERIES (250) with twice and four times as many. For the
sizes of the targets, use 25000 windows and 1000 queries.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import tacit
from benchmarks.jobs import Setting
from benchmarks.measuring import timed
from benchmarks.memory import resident, sampled
from benchmarks.report import Finding
from tacit.planning.plan import Plan
from tacit.spec.specification import Specification

KINDS: Final = ("disjoint", "connected", "entangled")
_TYPES: Final = 300
_PRIVATE: Final = 100
_SHARED: Final = 30
"""The number of event types that entangled private patterns share."""
_SUBJECTS: Final = 100
_FAMILY: Final = 3
"""The number of elements of a disjoint private pattern."""


def planning(setting: Setting) -> Iterator[Finding]:
    """Plan for 1000 queries, 100 private patterns and 100,000 windows, and for half as many."""
    windows = setting.scale.events // 200
    for kind in KINDS:
        for name in ("adaptive", "optimal"):
            found = {
                size: _measure(kind, name, *size)
                for size in ((1000, windows), (500, windows), (1000, windows // 2))
            }
            yield from _findings(kind, name, windows, found)


def _measure(kind: str, mechanism: str, queries: int, windows: int) -> dict[str, float]:
    """Plan in a process of its own, and load the plan in another."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "plan.json")
        planned = _run("plan", path, kind, str(queries), str(windows), mechanism)
        return planned | _run("load", path, kind, str(queries))


def _run(*arguments: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.planning", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _findings(
    kind: str, name: str, windows: int, found: dict[tuple[int, int], dict[str, float]]
) -> Iterator[Finding]:
    whole = found[1000, windows]
    label = f"{name}, {kind}"
    yield Finding(
        f"Planning {label}: 1000 queries, 100 private patterns, {windows:,} windows",
        "seconds, reading included",
        whole["elapsed"],
        whole["processor"],
        60,
        "at most",
        "s",
        note=f"{whole['memory']:,.0f} MiB more than before, a plan of {whole['size']:.1f} MB",
    )
    yield Finding(
        f"Loading the plan of {label}",
        "seconds",
        whole["loading"],
        whole["loading_processor"],
        1,
        "at most",
        "s",
    )
    for more, half in (("queries", (500, windows)), ("windows", (1000, windows // 2))):
        less = found[half]
        measures = ("processor", "memory", "size")
        ratios = [f"{key} {whole[key] / max(less[key], 1e-9):.2f}" for key in measures]
        yield Finding(
            f"Planning {label}: twice the {more}",
            "times the processor time",
            whole["processor"] / less["processor"],
            None,
            2.2,
            "at most",
            note=", ".join(ratios),
        )


def draw_specification(kind: str, queries: int) -> Specification:
    """Draw 100 private patterns and many queries about them and public event types.

    Disjoint private patterns have no elements in common, and each query is about one of them.
    Connected ones are over 300 event types, and queries connect them all. Entangled ones share
    30 event types, so that each is in more than ten of them.
    """
    random = np.random.default_rng(4)
    types = _TYPES
    if kind == "disjoint":
        types = _PRIVATE * _FAMILY + _TYPES // 2
        families = np.arange(_PRIVATE * _FAMILY).reshape(_PRIVATE, _FAMILY)
        private = [_every(family) for family in families]
        asked = [_draw_disjoint(random, families[n % _PRIVATE], types) for n in range(queries)]
    else:
        of = _SHARED if kind == "entangled" else types
        private = [_every(_draw(random, of, 3, 5)) for _ in range(_PRIVATE)]
        asked = [
            _every(np.concatenate([_draw(random, of, 1, 2), of + _draw(random, types - of, 1, 2)]))
            if kind == "entangled"
            else _every(_draw(random, types, 2, 4))
            for _ in range(queries)
        ]
    return Specification.model_validate(
        {
            "streams": {"events": {"subject": "subject", "time": "time"}},
            "windows": {"size": "1 min"},
            "events": {f"k{n}": {"stream": "events", "where": f"kind = {n}"} for n in range(types)},
            "private": [{"pattern": pattern, "epsilon": 2} for pattern in private],
            "queries": [
                {"name": f"q{n}", "consumer": "bench", "pattern": pattern}
                for n, pattern in enumerate(asked)
            ],
        }
    ).checked()


def _draw_disjoint(random: np.random.Generator, family: np.ndarray[Any, Any], types: int) -> str:
    own = random.choice(family, random.integers(1, _FAMILY + 1), replace=False)
    public = _PRIVATE * _FAMILY + _draw(random, types - _PRIVATE * _FAMILY, 1, 2)
    return _every(np.concatenate([own, public]))


def _draw(random: np.random.Generator, types: int, least: int, most: int) -> np.ndarray[Any, Any]:
    return random.choice(types, random.integers(least, most + 1), replace=False)


def _every(types: np.ndarray[Any, Any]) -> str:
    return f"AND({', '.join(f'k{n}' for n in sorted(types.tolist()))})"


def write_history(types: int, windows: int, path: Path) -> None:
    """Write events of 100 subjects as Parquet; each window has some 50 of the event types."""
    random = np.random.default_rng(6)
    rates = random.uniform(0.02, 0.3, types)
    writer = None
    step = 50 * _SUBJECTS
    for begin in range(0, windows, step):
        present = random.random((min(step, windows - begin), types)) < rates
        row, kind = np.nonzero(present)
        row += begin
        table = pa.table(
            {
                "subject": pa.array(row % _SUBJECTS, pa.int32()),
                "time": pa.array((row // _SUBJECTS * 60 + 30) * 1_000_000, pa.timestamp("us")),
                "kind": pa.array(kind, pa.int16()),
            }
        )
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def plan(path: Path, kind: str, queries: int, windows: int, mechanism: str) -> dict[str, float]:
    """Plan from a file, and save the plan."""
    spec = draw_specification(kind, queries)
    with tempfile.TemporaryDirectory() as folder:
        few, history = Path(folder) / "few.parquet", Path(folder) / "many.parquet"
        write_history(len(spec.types), 2 * _SUBJECTS, few)
        write_history(len(spec.types), windows, history)
        tacit.plan(draw_specification(kind, 20), few, mechanism=mechanism)  # compiles
        early = resident()
        with sampled(0.02) as seen:
            made, spent = timed(partial(tacit.plan, spec, history, mechanism=mechanism))
    made.save(path)
    assert made.expected is not None
    return {
        "elapsed": spent.elapsed,
        "processor": spent.processor,
        "memory": max(seen) - early,
        "size": path.stat().st_size / 1e6,
        "quality": made.expected.quality,
    }


def load(path: Path, kind: str, queries: int) -> dict[str, float]:
    """Load a plan that another process has saved."""
    spec = draw_specification(kind, queries)
    spent = timed(partial(Plan.load, path, spec))[1]
    return {"loading": spent.elapsed, "loading_processor": spent.processor}


def grow(kind: str, mechanism: str, windows: int, same: int = 250) -> None:
    """Print how processor time, memory and the size of a plan grow."""
    sizes = [(queries, windows) for queries in (250, 500, 1000, 2000)]
    for queries, number in [*sizes, (same, 2 * windows), (same, 4 * windows)]:
        found = _measure(kind, mechanism, queries, number)
        print(
            f"{queries} queries, {number} windows: {found['processor']:.1f} s,"
            f" {found['memory']:.0f} MiB, {found['size']:.2f} MB,"
            f" loaded in {found['loading_processor']:.2f} s",
            flush=True,
        )


def main(job: str, path: str, kind: str, queries: str, *more: str) -> None:
    """Measure in this process and print the result."""
    if job == "growth":
        grow(path, kind, int(queries), *map(int, more))
        return
    if job == "load":
        found = load(Path(path), kind, int(queries))
    else:
        found = plan(Path(path), kind, int(queries), int(more[0]), more[1])
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
