"""Reloads of a run: requested at any time, checked completely, taken up between two batches."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from tacit.errors import SourceError, StateError, TacitError
from tacit.pipeline.compiled_spec import CompiledSpec
from tacit.pipeline.engine import Engine
from tacit.pipeline.reader import Input
from tacit.pipeline.status import PublicStatus
from tacit.pipeline.times import format_time
from tacit.pipeline.versions import SpecVersion
from tacit.privacy.noise import Noise

ReadColumns: TypeAlias = Mapping[str, frozenset[str]]
"""The columns that are read of each stream."""
_LOG: Final = logging.getLogger(__name__)


class Reloads:
    """New versions of the specification for the engine of a run."""

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

    def request(self) -> None:
        """Read specification and plan again. Any thread may ask for it."""
        self._requested.set()

    @property
    def columns(self) -> ReadColumns:
        """What must be read for the versions that are in use."""
        streams = self._engine.flow.spec.streams
        return {name: frozenset(self._engine.columns(name)) for name in streams}

    def offer(self, reading: ReadColumns) -> None:
        """If requested: read again, and offer it to the engine; mistakes are logged."""
        if not self._requested.is_set():
            return
        self._requested.clear()
        try:
            if self._reread is None:
                raise StateError("this run does not know where to read its specification again")
            version = self._reread()
            self._engine.windows.check_version(version, learning=self._engine.learning > 0)
            self._check_sources(version, reading)
            self._engine.offer(version)
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

    def advance(self) -> None:
        """Take all steps that are due."""
        engine = self._engine
        while engine.due:
            engine.advance()
            following = engine.windows.next
            if following is None:
                _LOG.info("all windows are now under the new specification")
            else:
                begin = format_time(following.boundary * engine.clock.size)
                _LOG.info("the new specification holds for windows from %s on", begin)

    def _check_sources(self, version: SpecVersion, reading: ReadColumns) -> None:
        """Refuse a version for which the sources lack something."""
        flow = check_inputs(version.flow(self._noise), self._inputs)
        for input_ in self._inputs:
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


def check_inputs(flow: CompiledSpec, inputs: Sequence[Input]) -> CompiledSpec:
    """Raise SchemaError where these inputs do not have what is asked for."""
    flow.check([(one.stream, flow.schema(one.stream, one.source)) for one in inputs])
    return flow
