"""Analyses of the version in force, made from history in the background: for operators alone.

One is begun when somebody looks at it, in a process with low priority. Its result is stored with
the version, so it is made once.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
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
        self._history = json.dumps(list(workflow.history))
        self._lock = threading.Lock()
        self._known: dict[tuple[int, JobKind], Analysis] = {}
        self._waiting: list[tuple[int, JobKind]] = []
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._process = PlannerProcess()
        self._thread = threading.Thread(target=self._work, name="tacit-analyses", daemon=True)

    def begin(self) -> None:
        """Begin to work."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; what was not finished is begun again when somebody looks at it."""
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
        key = version, kind
        with self._lock:
            if key not in self._known:
                result = self._load(key)
                self._known[key] = Analysis(version, result)
                if result is None:
                    self._waiting.append(key)
                    self._wake.set()
            return self._known[key]

    def _work(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait()
            self._wake.clear()
            while self._waiting and not self._stopping.is_set():
                with self._lock:
                    key = self._waiting.pop(0)
                self._known[key] = self._make(key)

    def _make(self, key: tuple[int, JobKind]) -> Analysis:
        version, kind = key

        def tell(share: float, what: str) -> None:
            self._known[key] = Analysis(version, share=share, doing=what)

        try:
            spec = self._workflow.load_version(version).spec
            made = self._process.make(PlanJob.of(spec, self._workflow.history, kind), tell)
            self._store(key, made)
        except TacitError as error:
            return Analysis(version, reason=str(error))
        except Exception:
            log.exception("an analysis failed")
            return Analysis(version, reason="it failed; the log has the reason")
        return Analysis(version, made)

    def _load(self, key: tuple[int, JobKind]) -> Mapping[str, Any] | None:
        same = self._select(key)
        query = sa.select(ANALYSES.c.content).where(*same, ANALYSES.c.history == self._history)
        with self._workflow.database.reading() as connection:
            found = connection.execute(query).scalar()
        return None if found is None else dict(json.loads(found))

    def _store(self, key: tuple[int, JobKind], made: Mapping[str, Any]) -> None:
        row = {
            "run": self._workflow.name,
            "version": key[0],
            "kind": str(key[1]),
            "history": self._history,
            "content": json.dumps(made),
        }
        with self._workflow.database.writing() as connection:
            connection.execute(ANALYSES.delete().where(*self._select(key)))
            connection.execute(ANALYSES.insert().values(row))

    def _select(self, key: tuple[int, JobKind]) -> tuple[sa.ColumnElement[bool], ...]:
        columns = ANALYSES.c
        return (
            columns.run == self._workflow.name,
            columns.version == key[0],
            columns.kind == str(key[1]),
        )
