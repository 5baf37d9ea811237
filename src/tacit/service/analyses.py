"""Analyses of the version in force, made from history in the background: for operators alone.

One starts when a user opens it, in a process with low priority. Its result is stored under
the hash of the specification and the sources of history, so it is made once, also if an older
version returns.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tacit.errors import TacitError
from tacit.ledger.alchemy import sa
from tacit.service.planner import JobKind, PlanJob, PlannerProcess
from tacit.service.tables import ANALYSES
from tacit.service.workflow import Workflow

log = logging.getLogger("tacit.service")


@dataclass(frozen=True, slots=True)
class Analysis:
    """How far an analysis is, or its result."""

    version: int
    result: Mapping[str, Any] | None = None
    reason: str = ""
    """Why there is no result and none will come."""
    share: float = 0.0
    doing: str = "waiting"

    @property
    def busy(self) -> bool:
        """Whether it is being made."""
        return self.result is None and not self.reason


class Analyses:
    """Makes analyses one after the other, and keeps them. Any thread may use it."""

    def __init__(self, workflow: Workflow) -> None:
        self._workflow = workflow
        self._lock = threading.Lock()
        self._jobs: dict[tuple[int, JobKind], PlanJob] = {}
        """The jobs of versions that a user opened."""
        self._known: dict[str, Analysis] = {}
        """By the hash of the job: versions with the same specification share it."""
        self._waiting: list[PlanJob] = []
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._process = PlannerProcess()
        self._thread = threading.Thread(target=self._work, name="tacit-analyses", daemon=True)

    def begin(self) -> None:
        """Begin to work."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; what was not finished starts again when a user opens it."""
        self._stopping.set()
        self._process.stop()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(10)

    def look(self, kind: JobKind) -> Analysis:
        """Return the analysis of the version in force; it is begun if there is none yet."""
        version, stored = self._workflow.latest()
        if not self._workflow.history:
            why = "the service has no history; start it with --history SOURCE"
            return Analysis(version, reason=why)
        if not stored.spec.private:
            return Analysis(version, reason="nothing is declared private")
        with self._lock:
            job = self._jobs.get((version, kind))
            if job is None:
                job = PlanJob.of(stored.spec, self._workflow.history, kind)
                self._jobs[version, kind] = job
            if job.digest not in self._known:
                result = self._load(job)
                self._known[job.digest] = Analysis(version, result)
                if result is None:
                    self._waiting.append(job)
                    self._wake.set()
            return replace(self._known[job.digest], version=version)

    def _work(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait()
            self._wake.clear()
            while self._waiting and not self._stopping.is_set():
                with self._lock:
                    job = self._waiting.pop(0)
                self._known[job.digest] = self._make(job)

    def _make(self, job: PlanJob) -> Analysis:
        begun = self._known[job.digest]

        def tell(share: float, what: str) -> None:
            self._known[job.digest] = replace(begun, share=share, doing=what)

        try:
            made = self._process.make(job, tell)
            self._store(job, made)
        except TacitError as error:
            return replace(begun, reason=str(error))
        except Exception:
            log.exception("an analysis failed")
            return replace(begun, reason="it failed; the log has the reason")
        return replace(begun, result=made)

    def _load(self, job: PlanJob) -> Mapping[str, Any] | None:
        query = sa.select(ANALYSES.c.content).where(*self._select(job))
        with self._workflow.database.reading() as connection:
            found = connection.execute(query).scalar()
        return None if found is None else dict(json.loads(found))

    def _store(self, job: PlanJob, made: Mapping[str, Any]) -> None:
        row = {"run": self._workflow.name, "job": job.digest, "content": json.dumps(made)}
        with self._workflow.database.writing() as connection:
            connection.execute(ANALYSES.delete().where(*self._select(job)))
            connection.execute(ANALYSES.insert().values(row))

    def _select(self, job: PlanJob) -> tuple[sa.ColumnElement[bool], ...]:
        return ANALYSES.c.run == self._workflow.name, ANALYSES.c.job == job.digest
