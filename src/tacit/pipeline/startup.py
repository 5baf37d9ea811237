"""What a run checks and opens before its first tuple. `tacit doctor` calls the same functions."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from tacit.errors import SourceError, StateError
from tacit.events.subjects import Subjects
from tacit.options import command, option
from tacit.pipeline.checkpoints import Checkpoint
from tacit.pipeline.compiled_spec import CompiledSpec
from tacit.pipeline.engine import Engine
from tacit.pipeline.reader import Input
from tacit.pipeline.registry import open_registry
from tacit.pipeline.sources import STANDARD_INPUT, EmptySourceError
from tacit.pipeline.versions import SpecVersion
from tacit.privacy.noise import Noise
from tacit.spec.specification import Specification
from tacit.spec.subjects import SubjectFile, list_subjects


def check_sources(spec: Specification, inputs: Sequence[Input], *, durable: bool) -> None:
    """Refuse a run in which a stream has no source."""
    given = [input_.stream for input_ in inputs]
    missing = [stream for stream in spec.streams if stream not in given]
    if missing:
        raise SourceError(
            f"no source is given for {', '.join(missing)}; write {missing[0]}="
            f"{command('SOURCE', '')} for it"
        )
    if sum(input_.source.name == STANDARD_INPUT for input_ in inputs) > 1:
        raise SourceError("standard input can feed only one stream")
    replayed = not all(input_.source.live for input_ in inputs)
    if durable and replayed and spec.windows.close == "clock":
        raise SourceError(
            "windows close by the clock (windows.close: clock), but files are not read in real"
            " time; read a live source, or write close: events"
        )


def with_content(inputs: Sequence[Input]) -> list[Input]:
    """Drop empty inputs; raise EmptySourceError if all of them are empty."""
    full = []
    for input_ in inputs:
        with suppress(EmptySourceError):
            input_.source.schema()
            full.append(input_)
    if inputs and not full:
        inputs[0].source.schema()
    return full


def read_checkpoint(given: bytes | None, *, private: bool) -> Checkpoint | None:
    """Decode the last checkpoint of this run, if there is one."""
    if given is None:
        return None
    checkpoint = Checkpoint.from_bytes(given)
    if checkpoint.private == private:
        return checkpoint
    seed, name = option("seed"), option("name")
    if private:
        raise StateError(
            f"this run was started with {seed}, so its answers are not private, and it cannot"
            f" continue with private noise: start another run with {name}, or continue with {seed}"
        )
    raise StateError(
        f"this run was started without {seed}: with one its answers would no longer be private."
        f" Continue without it, or start another run with {name}"
    )


def open_engine(
    compiled: CompiledSpec,
    version: SpecVersion | None,
    noise: Noise,
    inputs: Sequence[Input],
    checkpoint: Checkpoint | None,
) -> Engine:
    """Create an engine, or restore one from a checkpoint, and check its registry.

    Subjects that were added to the list since the checkpoint get answers from the next window on.
    """
    # Files are replayed: their windows always close by event time.
    live = all(input_.source.live for input_ in inputs)
    ticking = live and compiled.spec.windows.close == "clock"
    registry, learn = Subjects(), 0
    if checkpoint is None:
        registry, learn = open_registry(compiled, inputs)
    engine = Engine(compiled, registry, version=version, noise=noise, learn=learn, ticking=ticking)
    if checkpoint is not None:
        engine.restore(checkpoint.snapshot)
        names = list_subjects(compiled.spec.subjects, compiled.spec.folder)
        if names:
            engine.register(names)
    listed_in_file = isinstance(compiled.spec.subjects, SubjectFile)
    if not engine.learning and (compiled.evaluator.protects or listed_in_file):
        engine.check_names()
    return engine
