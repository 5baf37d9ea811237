"""Reloads of a run: asked for at any time, checked completely, taken up between two batches."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import numpy as np

from tacit.engines.local import Detection
from tacit.engines.status import Public
from tacit.engines.succession import Succession
from tacit.engines.terms import Terms
from tacit.errors import SourceError, StateError, TacitError

Columns: TypeAlias = Mapping[str, frozenset[str]]
"""The columns that are read of each stream."""
_LOG: Final = logging.getLogger(__name__)


class Reloads:
    """New terms for the engine of a run."""

    def __init__(
        self,
        run: Detection,
        engine: Succession,
        public: Public,
        reread: Callable[[], Terms] | None,
    ) -> None:
        self._run = run
        self._engine = engine
        self._public = public
        self._reread = reread
        self._asked = threading.Event()

    def ask(self) -> None:
        """Read specification and plan anew. Any thread may ask."""
        self._asked.set()

    @property
    def columns(self) -> Columns:
        """What must be read for the terms that are in use."""
        streams = self._run.spec.streams
        return {name: frozenset(self._engine.columns(name)) for name in streams}

    def offer(self, reading: Columns) -> None:
        """If it was asked for: read anew, and offer it to the engine; mistakes are logged."""
        if not self._asked.is_set():
            return
        self._asked.clear()
        try:
            if self._reread is None:
                raise StateError("this run was not told where to read its specification anew")
            terms = self._reread()
            self._engine.check(terms)
            self._check_sources(terms, reading)
            self._engine.offer(terms)
        except TacitError as error:
            self._public.reloads_refused += 1
            _LOG.error("the specification is not reloaded, the old one stays: %s", error)
        else:
            self._public.reloads += 1
            _LOG.info("the specification is reloaded")
            if not self._engine.learning:
                self._engine.check_names()
                self.warn()

    def warn(self) -> None:
        """Log what the operator should look at in the registry."""
        for message in self._engine.warnings:
            _LOG.warning("%s", message)

    def turn(self) -> None:
        """Take all steps that are due."""
        engine = self._engine
        while engine.due:
            engine.turn()
            if engine.heir is None:
                _LOG.info("all windows are now under the new specification")
            else:
                begin = written(engine.heir.boundary * engine.clock.size)
                _LOG.info("the new specification holds for windows from %s on", begin)
        self._run.flow, self._run.spec = engine.flow, engine.latest.spec

    def _check_sources(self, terms: Terms, reading: Columns) -> None:
        """Refuse terms for which the sources lack something."""
        inputs = self._run.inputs
        flow = self._engine.check_sources(terms, inputs)
        for input_ in inputs:
            now = self._engine.column_types(input_.stream, input_.source).types
            then = flow.column_types(input_.stream, input_.source).types
            changed = [name for name in then if now.get(name, then[name]) != then[name]]
            if changed:
                raise StateError(
                    f"column '{changed[0]}' of stream '{input_.stream}' is {now[changed[0]]} in"
                    f" this run and {then[changed[0]]} in the new specification or plan; begin"
                    " another run for that"
                )
            more = set(flow.columns(input_.stream)) - reading[input_.stream]
            if more and input_.source.once and not input_.source.live:
                raise SourceError(
                    f"{input_.source.name} is being read without {', '.join(sorted(more))}, and can"
                    " be read only once; begin the run again for that"
                )


def written(microseconds: int) -> str:
    """A moment as ISO 8601 in UTC, however far it is.

    >>> written(1_201_910_400_000_000)
    '2008-02-02T00:00:00Z'
    """
    moment = np.datetime64(microseconds, "us")
    if microseconds % 1_000_000:
        return str(np.datetime_as_string(moment, timezone="UTC"))
    return str(np.datetime_as_string(moment, unit="s", timezone="UTC"))
