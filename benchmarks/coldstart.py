"""Measure the time from a cold start to the first answers: `python -m benchmarks.coldstart`.

Each run is a process with an empty cache of kernels. With `--against FOLDER`, runs alternate with
the `src` of another checkout: this measures a change on a busy machine.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
import polars as pl

import tacit
from benchmarks import data, ours
from benchmarks.data import Scale
from benchmarks.measuring import Spent
from tacit.spec.yaml_writer import to_yaml

_TINY = Scale(events=2_000, subjects=10, windows=5)


@click.command()
@click.option("--against", type=click.Path(path_type=Path, exists=True), help="Another src folder.")
@click.option("--rounds", default=3, show_default=True, help="Cold starts of each.")
def main(against: Path | None, rounds: int) -> None:
    """Measure the seconds of a first `tacit detect`, and of a second one."""
    packages = {"this": Path(tacit.__file__).parent.parent}
    if against is not None:
        packages["other"] = against.absolute()
    times: dict[tuple[str, str], list[Spent]] = {}
    with tempfile.TemporaryDirectory() as name:
        command = _command(Path(name))
        for number in range(rounds):
            for package, folder in packages.items():
                cache = Path(name) / f"{package}{number}"
                for start in ("cold", "warm"):
                    spent = _spent(command, folder, cache)
                    times.setdefault((package, start), []).append(spent)
    for (package, start), runs in times.items():
        elapsed = statistics.median(one.elapsed for one in runs)
        processor = statistics.median(one.processor for one in runs)
        click.echo(f"{package:6} {start}: {elapsed:6.1f} s, {processor:6.1f} s of processor time")


def _command(folder: Path) -> list[str]:
    """Return the command of a run with ordered queries over a small file."""
    pl.DataFrame(data.events(_TINY)).write_parquet(folder / "tiny.parquet")
    spec = ours.specification("SEQ", data.draw_queries(3), _TINY)
    (folder / "tiny.yaml").write_text(to_yaml(spec))
    files = [str(folder / name) for name in ("tiny.yaml", "tiny.parquet", "answers.parquet")]
    return [sys.executable, "-m", "tacit", "detect", *files[:2], "--to", files[2]]


def _spent(command: list[str], package: Path, cache: Path) -> Spent:
    environment = {**os.environ, "PYTHONPATH": str(package), "NUMBA_CACHE_DIR": str(cache)}
    before, started = os.times(), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=environment)
    elapsed, after = time.perf_counter() - started, os.times()
    worked = after.children_user + after.children_system
    return Spent(elapsed, worked - before.children_user - before.children_system)


if __name__ == "__main__":
    main()
