"""Submit small jobs to a running cluster, and measure the time to the first answer.

Runs in the environment that has PyFlink. The cluster is a JobManager and a TaskManager on this
machine, started with Flink's own scripts. A first job, which is not counted, warms up its Java.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.flink.cluster import StandaloneCluster

from benchmarks.processes import used
from tacit.engines.flink.folders import Folders

_TIMES = 3
# A busy machine may stop a process for longer than the tests allow.
_PATIENT = {"heartbeat.timeout": 120_000, "heartbeat.interval": 10_000}


def main() -> None:
    """Run all jobs, and print the medians as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("spec", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", nargs="+")
    given = parser.parse_args()
    cores = os.cpu_count() or 1
    with StandaloneCluster(taskmanagers=1, slots=cores, settings=_PATIENT) as cluster:
        runs = [
            _run(given.spec, given.folder / str(number), given.files, cluster.address, cores)
            for number in range(_TIMES + 1)
        ]
    found = {name: statistics.median(run[name] for run in runs[1:]) for name in runs[0]}
    print(json.dumps({**found, "first": runs[0]["elapsed"]}))


def _run(
    spec: Path, folder: Path, files: Sequence[str], address: str, cores: int
) -> dict[str, float]:
    """Run a job to its end; return the seconds until its stages, and the processor time."""
    folder.mkdir()
    folders, answers = Folders(folder / "job"), folder / "answers.jsonl"
    command = [sys.executable, "-m", "tacit", "submit", str(spec), *files]
    command += ["--mechanism", "uniform", "--to", str(answers), "--folder", str(folders.root)]
    command += ["--cluster", address, "--parallelism", str(cores), "--name", folder.name]
    stages: dict[str, Callable[[], bool]] = {
        "started": folders.job_ids.exists,
        "began": lambda: any(path.stat().st_size for path in folders.progress.glob("[0-9]*")),
        "elapsed": lambda: answers.exists() and answers.stat().st_size > 0,
    }
    found: dict[str, float] = {}
    before, started = used(), time.perf_counter()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        while process.poll() is None and "elapsed" not in found:
            for name, reached in stages.items():
                if name not in found and reached():
                    found[name] = time.perf_counter() - started
            time.sleep(0.02)
        found["processor"] = used() - before
    if process.wait(300) or found.keys() < stages.keys():
        raise RuntimeError((folder / "log").read_text())
    return found


if __name__ == "__main__":
    main()
