"""Plans for proposals, made in a process of their own: the run is not slowed down.

The process reads a job as JSON from standard input, and writes lines of JSON: how far it is, and
at last the plan or an error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tacit.errors import PlanError, TacitError
from tacit.planning.plan import Plan
from tacit.progress import ProgressCallback
from tacit.spec.specification import Specification
from tacit.spec.yaml_reader import loads
from tacit.spec.yaml_writer import to_yaml

_STOPPED: Final = "the planner was stopped; try again"
_NICE: Final = 5


@dataclass(frozen=True)
class PlanJob:
    """What to plan for: a specification, and where history is."""

    specification: str
    folder: str
    allow_paths: list[str]
    history: list[tuple[str | None, str]]

    @classmethod
    def of(cls, spec: Specification, history: Sequence[tuple[str | None, str]]) -> PlanJob:
        """Create a job."""
        paths = [str(path) for path in spec.allow_paths]
        return cls(to_yaml(spec), str(spec.folder.absolute()), paths, list(history))

    def load(self) -> Specification:
        """Read the specification."""
        return loads(self.specification, "<proposal>", Path(self.folder), self.allow_paths)


class PlannerProcess:
    """Makes one plan at a time, each in a new process; `stop` ends the one that runs."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._stopped = False

    def plan(self, job: PlanJob, progress: ProgressCallback) -> dict[str, Any]:
        """Make a plan and return it as plain data; raise PlanError with the reason if it fails."""
        with self._lock:
            if self._stopped:
                raise PlanError(_STOPPED)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tacit.service.planner"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with suppress(BrokenPipeError):
                json.dump(asdict(job), process.stdin)
                process.stdin.close()
            for line in process.stdout:
                told = json.loads(line)
                if "plan" in told:
                    return dict(told["plan"])
                if "error" in told:
                    raise PlanError(told["error"])
                progress(told["share"], told["what"])
            raise PlanError(_STOPPED)
        finally:
            process.stdout.close()
            process.kill()
            process.wait()

    def stop(self) -> None:
        """End the process, and refuse further jobs."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                self._process.kill()


def make(job: PlanJob, progress: ProgressCallback) -> Plan:
    """Make the plan of a job, in this process."""
    from tacit.engines.local import plan

    spec = job.load()
    if not job.history:
        try:
            return plan(spec)
        except PlanError as error:
            raise PlanError(
                "the service has no history to plan from; start it with --history SOURCE"
            ) from error
    history = [source if stream is None else {stream: source} for stream, source in job.history]
    return plan(spec, *history, progress=progress)


def main(write: Callable[[str], object] = sys.stdout.write) -> None:
    """Read a job, and write the progress and the plan."""
    with suppress(OSError):
        os.nice(_NICE)

    def tell(**values: Any) -> None:
        write(json.dumps(values) + "\n")
        sys.stdout.flush()

    job = PlanJob(**json.load(sys.stdin))
    try:
        made = make(job, lambda share, what: tell(share=share, what=what))
    except TacitError as error:
        tell(error=str(error))
        return
    tell(plan=made.to_dict())


if __name__ == "__main__":
    main()
