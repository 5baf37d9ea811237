"""Plans and analyses, made in a process of their own: the run is not slowed down.

The process reads a job as JSON from standard input, and writes lines of JSON: how far it is, and
at last the result or an error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from fractions import Fraction
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from tacit.errors import PlanError, TacitError
from tacit.planning.plan import Plan
from tacit.privacy.exponentials import format_epsilon
from tacit.progress import ProgressCallback, scale_progress
from tacit.spec.specification import Specification
from tacit.spec.yaml_reader import loads
from tacit.spec.yaml_writer import to_yaml

COMMAND: Sequence[str] = (sys.executable, "-m", "tacit.service.planner")
"""Starts the process."""
_STOPPED: Final = "the planner was stopped; try again"
_ENDED: Final = "the planner ended without a result; is there enough memory? Try again"
_NICE: Final = 5
_END_SECONDS: Final = 10.0
"""Seconds to wait for the end of a process that was killed."""
_EPSILONS: Final = tuple(Fraction(tenths, 10) for tenths in (1, 5, 10, 20, 30, 50, 100))
"""The epsilons of a curve: fewer than `tacit curve` has, since each needs plans."""
_MOST_COSTS: Final = 3
"""For how many suggestions of a report of leaks their cost is computed."""


class JobKind(StrEnum):
    """What to make."""

    PLAN = "plan"
    CURVES = "curves"
    """Quality against epsilon, and against limits."""
    LEAKS = "leaks"
    """What public events tell about private patterns."""


@dataclass(frozen=True)
class PlanJob:
    """What to make, for which specification, and where history is."""

    specification: str
    folder: str
    allow_paths: list[str]
    history: list[tuple[str | None, str]]
    kind: JobKind = JobKind.PLAN

    @classmethod
    def of(
        cls,
        spec: Specification,
        history: Sequence[tuple[str | None, str]],
        kind: JobKind = JobKind.PLAN,
    ) -> PlanJob:
        """Create a job."""
        paths = [str(path) for path in spec.allow_paths]
        return cls(to_yaml(spec), str(spec.folder.absolute()), paths, list(history), kind)

    @cached_property
    def digest(self) -> str:
        """A hash of the job: the same job has the same result."""
        return sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    @property
    def sources(self) -> list[Any]:
        """The history, as functions such as `tacit.plan` take it."""
        return [source if stream is None else {stream: source} for stream, source in self.history]

    def load(self) -> Specification:
        """Read the specification."""
        return loads(self.specification, "<proposal>", Path(self.folder), self.allow_paths)


class PlannerProcess:
    """Does one job at a time, each in a new process; `stop` ends the one that runs."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._stopped = False

    def make(self, job: PlanJob, progress: ProgressCallback) -> dict[str, Any]:
        """Do a job and return the result as plain data; raise PlanError if it fails."""
        with self._lock:
            if self._stopped:
                raise PlanError(_STOPPED)
            self._process = subprocess.Popen(
                COMMAND,
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
                if "made" in told:
                    return dict(told["made"])
                if "error" in told:
                    raise PlanError(told["error"])
                progress(told["share"], told["what"])
            raise PlanError(_STOPPED if self._stopped else _ENDED)
        finally:
            process.stdout.close()
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)

    def stop(self) -> None:
        """End the process, and refuse further jobs."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                self._process.kill()


def make(job: PlanJob, progress: ProgressCallback) -> dict[str, Any]:
    """Do a job in this process; return the result as plain data."""
    match JobKind(job.kind):
        case JobKind.PLAN:
            return _make_plan(job, progress).to_dict()
        case JobKind.CURVES:
            return _make_curves(job, progress)
        case JobKind.LEAKS:
            return _find_leaks(job, progress)


def _make_plan(job: PlanJob, progress: ProgressCallback) -> Plan:
    from tacit.engines.local import plan

    spec = job.load()
    if not job.history:
        try:
            return plan(spec)
        except PlanError as error:
            raise PlanError(
                "the service has no history to plan from; start it with --history SOURCE"
            ) from error
    return plan(spec, *job.sources, progress=progress)


def _make_curves(job: PlanJob, progress: ProgressCallback) -> dict[str, Any]:
    """Compute quality against epsilon, and against limits where there are any."""
    from tacit.engines.local import survey_history
    from tacit.insight.curve import compute_curve
    from tacit.planning.limits import predict_curve

    spec = job.load()
    statistics = survey_history(spec, job.sources, {}, None, scale_progress(progress, 0, 0.2))
    curve = compute_curve(
        spec, statistics, epsilons=_EPSILONS, progress=scale_progress(progress, 0.2, 0.7)
    )
    found = curve.to_dict() | {"unit": curve.unit, "declared": format_epsilon(curve.declared)}
    limits: list[dict[str, Any]] = []
    try:
        if any(private.limit is not None for private in spec.private):
            for point in predict_curve(spec, statistics, progress=scale_progress(progress, 0.7, 1)):
                each = {row["query"]: row["quality"] for row in point.expected.rows()}
                limits.append(
                    {
                        "factor": float(point.factor),
                        "limits": point.limits,
                        "quality": point.expected.quality,
                        "queries": each,
                    }
                )
    except PlanError as error:
        return found | {"limits": [], "without_limits": str(error)}
    return found | {"limits": limits, "without_limits": None}


def _find_leaks(job: PlanJob, progress: ProgressCallback) -> dict[str, Any]:
    from tacit.insight.leaks import leaks

    return leaks(job.load(), *job.sources, costs=_MOST_COSTS, progress=progress).to_dict()


def main() -> None:
    """Read a job, and write the progress and the result."""
    with suppress(OSError):
        os.nice(_NICE)

    def tell(**values: Any) -> None:
        print(json.dumps(values), flush=True)

    job = PlanJob(**json.load(sys.stdin))
    try:
        made = make(job, lambda share, what: tell(share=share, what=what))
    except TacitError as error:
        tell(error=str(error))
        return
    tell(made=made)


if __name__ == "__main__":
    main()
