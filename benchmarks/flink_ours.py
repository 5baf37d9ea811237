"""Our own job on embedded Flink: it runs where `tacit[flink]` is installed, and measures itself.

The first run gives true answers, for comparison, and warms up Java. The second is protected, and is
measured: from the moment when all readers are ready until every window is in the ledger. The third
is measured in the same way, and gives true answers.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.processes import find_processes, used
from tacit.engines.flink.folders import Folders
from tacit.engines.flink.progress import Progress
from tacit.engines.flink.run import FlinkRun
from tacit.engines.flink.submission import JobOptions, open_submission
from tacit.errors import EngineError
from tacit.pipeline.versions import SpecVersion
from tacit.planning.planner import plan_without_history
from tacit.spec.yaml_reader import load


class Watch(threading.Thread):
    """Records when all readers are ready, processor time, and the statistics of checkpoints."""

    def __init__(self, run: FlinkRun, progress: Path) -> None:
        super().__init__(daemon=True)
        self._run = run
        self._progress = progress
        self._over = threading.Event()
        self.started = 0.0
        self._used: list[tuple[float, float]] = []
        """Times, and the processor time until then: that of workers is lost when they end."""
        self.size = 0
        self.checkpoint = 0.0

    def run(self) -> None:
        """Poll until the end; the cluster rarely, since that takes time itself."""
        while not self._over.wait(0.02):
            if any(self._progress.iterdir()) and Progress(self._progress).has_begun():
                break
        processes = find_processes()
        self.started = asked = time.time()
        while True:
            self._used.append((time.time(), used(processes)))
            if self._over.wait(0.05):
                return
            running_job = self._run.running_job
            if running_job is not None and time.time() - asked > 0.5:
                asked = time.time()
                with suppress(EngineError):
                    seen = running_job.cluster.get_checkpoints(running_job.job)
                    self.size = max(self.size, seen.size)
                    self.checkpoint = max(self.checkpoint, seen.mean_duration)

    def stop(self) -> None:
        """Stop polling."""
        self._over.set()
        self.join()

    def processor(self, end: float) -> float:
        """Return the processor time from the start until then."""
        spent = (used for when, used in self._used if when >= end)
        return next(spent, self._used[-1][1]) - self._used[0][1]


def main() -> None:
    """Run, and print the measurements as JSON: of the protected run, and of the true one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("spec", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--parallelism", type=int, required=True)
    parser.add_argument("--only-timed", action="store_true", help="Only the protected run.")
    given = parser.parse_args()
    if given.only_timed:
        print(json.dumps(_run(given, "protected", true=False)))
        return
    _run(given, "true", true=True)
    found = _run(given, "protected", true=False)
    print(json.dumps({**found, "true": _run(given, "again", true=True)}))


def _run(given: argparse.Namespace, name: str, *, true: bool) -> dict[str, float]:
    """Run a job of this name to its end; return its measurements."""
    spec = load(given.spec)
    version = SpecVersion(spec, plan_without_history(spec, "uniform"))
    sources = [(None, file) for file in given.files]
    options = JobOptions(name, given.folder / f"{name}.job", parallelism=given.parallelism)
    place = f"{given.folder / name}/"
    with open_submission(version, sources, [place], options, true=true) as run:
        watch = Watch(run, Folders(options.folder).progress)
        watch.start()
        run.run()
        watch.stop()
    end = run.released_at or watch.started
    return {
        "elapsed": end - watch.started,
        "processor": watch.processor(end),
        "state": watch.size,
        "checkpoint": watch.checkpoint,
    }


if __name__ == "__main__":
    main()
