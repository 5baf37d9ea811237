"""Our own job on embedded Flink: it runs where `tacit[flink]` is installed, and measures itself.

The first run gives true answers, for comparison; the second is protected, and is measured: from the
moment when all readers are ready until every window is in the ledger.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.processes import used
from tacit.engines.flink.folders import Folders
from tacit.engines.flink.progress import Progress
from tacit.engines.flink.run import FlinkRun
from tacit.engines.flink.submission import JobOptions, open_submission
from tacit.errors import EngineError
from tacit.pipeline.versions import SpecVersion
from tacit.planning.planner import plan_without_history
from tacit.spec.yaml_reader import load


class Watch(threading.Thread):
    """Records when all readers are ready, and the statistics of checkpoints."""

    def __init__(self, run: FlinkRun, progress: Path) -> None:
        super().__init__(daemon=True)
        self._run = run
        self._progress = progress
        self._over = threading.Event()
        self.started = self._before = 0.0
        self.processor = 0.0
        self.size = 0
        self.checkpoint = 0.0

    def run(self) -> None:
        """Poll until the end; rarely, since polling takes time itself."""
        while not self._over.wait(0.02):
            if any(self._progress.iterdir()) and Progress(self._progress).has_begun():
                break
        self.started, self._before = time.time(), used()
        while not self._over.wait(0.5):
            # Workers end with the job, and their times are lost then.
            self.processor = max(self.processor, used() - self._before)
            running_job = self._run.running_job
            if running_job is not None:
                with suppress(EngineError):
                    seen = running_job.cluster.get_checkpoints(running_job.job)
                    self.size = max(self.size, seen.size)
                    self.checkpoint = max(self.checkpoint, seen.mean_duration)

    def stop(self) -> None:
        """Stop polling."""
        self._over.set()
        self.join()


def main() -> None:
    """Run twice, and print the measurements of the second run as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("spec", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--parallelism", type=int, required=True)
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--only-timed", action="store_true")
    given = parser.parse_args()
    spec = load(given.spec)
    version = SpecVersion(spec, plan_without_history(spec, "uniform"))
    sources = [(None, name) for name in given.files]
    found: dict[str, float] = {}
    for true in (True, False):
        if true and given.only_timed:
            continue
        name = "true" if true else "protected"
        options = JobOptions(
            name,
            given.folder / f"{name}.job",
            parallelism=given.parallelism,
            shards=given.shards,
        )
        place = f"{given.folder / name}/"
        with open_submission(version, sources, [place], options, true=true) as run:
            watch = Watch(run, Folders(options.folder).progress)
            watch.start()
            run.run()
            watch.stop()
            found = {
                "elapsed": (run.released_at or watch.started) - watch.started,
                "processor": watch.processor,
                "state": watch.size,
                "checkpoint": watch.checkpoint,
            }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
