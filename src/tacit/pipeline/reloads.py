"""Reloads of a run: requested at any time, fully checked, applied between two batches."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from tacit.errors import SourceError, StateError, TacitError
from tacit.pipeline.compiled_spec import CompiledSpec
from tacit.pipeline.engine import Engine
from tacit.pipeline.reader import Input
from tacit.pipeline.status import PublicStatus
from tacit.pipeline.times import format_time
from tacit.pipeline.versions import SpecVersion
from tacit.privacy.noise import Noise

ReadColumns: TypeAlias = Mapping[str, frozenset[str]]
"""The columns that are read from each stream."""
_MOST_REFUSED: Final = 100
_LOG: Final = logging.getLogger(__name__)


class RefusedReload(NamedTuple):
    """A reload that changed nothing."""

    plan: str | None
    """The digest of the plan of the version that was refused; None if it could not be read."""
    error: TacitError


class Reloads:
    """Applies new versions of the specification to the engine of a run."""

    def __init__(
        self,
        engine: Engine,
        inputs: Sequence[Input],
        noise: Noise,
        public: PublicStatus,
        reread: Callable[[], SpecVersion] | None,
    ) -> None:
        self._engine = engine
        self._inputs = inputs
        self._noise = noise
        self._public = public
        self._reread = reread
        self._requested = threading.Event()
        self.refused: tuple[RefusedReload, ...] = ()
        """The reloads that were refused since the last one that was accepted."""

    def request(self) -> None:
        """Request a reload. Any thread may call it."""
        self._requested.set()

    @property
    def columns(self) -> ReadColumns:
        """The columns that the versions in use need."""
        streams = self._engine.compiled.spec.streams
        return {name: frozenset(self._engine.columns(name)) for name in streams}

    def offer(self, reading: ReadColumns) -> None:
        """If a reload is requested, read the files and offer them to the engine; log mistakes."""
        if not self._requested.is_set():
            return
        self._requested.clear()
        version = None
        try:
            if self._reread is None:
                raise StateError(
                    "this run cannot reload: it was not started from a specification file"
                )
            version = self._reread()
            self.check(version, reading)
            self._engine.offer(version)
        except TacitError as error:
            self._public.reloads_refused += 1
            plan = None if version is None else version.plan_digest
            refused = RefusedReload(plan, error.with_traceback(None))
            self.refused = (*self.refused, refused)[-_MOST_REFUSED:]
            _LOG.error("the specification is not reloaded, the old one stays in use: %s", error)
        else:
            self._public.reloads += 1
            self.refused = ()
            _LOG.info("the specification is reloaded")
            if not self._engine.learning:
                self._engine.check_names()
                self.warn()

    def check(self, version: SpecVersion, reading: ReadColumns | None = None) -> None:
        """Raise if the run cannot change to a version. Any thread may call it."""
        self._engine.windows.check_version(version, learning=self._engine.learning > 0)
        self._check_sources(version, self.columns if reading is None else reading)

    def warn(self) -> None:
        """Log warnings about the registry."""
        for message in self._engine.warnings:
            _LOG.warning("%s", message)

    def advance(self) -> None:
        """Take all steps that are due."""
        engine = self._engine
        while engine.due:
            engine.advance()
            following = engine.windows.next
            if following is None:
                _LOG.info("all windows use the new specification now")
            else:
                begin = format_time(following.boundary * engine.clock.size)
                _LOG.info("windows from %s on use the new specification", begin)

    def _check_sources(self, version: SpecVersion, reading: ReadColumns) -> None:
        """Refuse a version for which the sources lack something."""
        compiled = check_inputs(version.compile(self._noise), self._inputs)
        for input_ in self._inputs:
            now = self._engine.column_types(input_.stream, input_.source).types
            then = compiled.column_types(input_.stream, input_.source).types
            changed = [name for name in then if now.get(name, then[name]) != then[name]]
            if changed:
                raise StateError(
                    f"column '{changed[0]}' of stream '{input_.stream}' is {now[changed[0]]} in"
                    f" this run and {then[changed[0]]} in the new specification or plan; start"
                    " another run for that"
                )
            more = set(compiled.columns(input_.stream)) - reading[input_.stream]
            if more and input_.source.once and not input_.source.live:
                raise SourceError(
                    f"{input_.source.name} is being read without {', '.join(sorted(more))}, and can"
                    " be read only once; restart the run for that"
                )


def check_inputs(compiled: CompiledSpec, inputs: Sequence[Input]) -> CompiledSpec:
    """Raise SchemaError if these inputs lack columns or have wrong types."""
    compiled.check([(one.stream, compiled.schema(one.stream, one.source)) for one in inputs])
    return compiled
