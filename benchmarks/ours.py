"""Our engine in the benchmarks: the specification, and runs over frames, files and batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.data import LATENESS, START, WINDOW, Scale, name
from tacit.answers.answers import Answers
from tacit.connectors.files import open_source
from tacit.connectors.frames import FrameSource
from tacit.events.subjects import Subjects
from tacit.pipeline.batches import Rows
from tacit.pipeline.compiled_spec import CompiledSpec
from tacit.pipeline.engine import Engine
from tacit.pipeline.reader import Input
from tacit.pipeline.run import Run
from tacit.spec.specification import Specification

Queries = Sequence[tuple[int, int, int]]


def specification(
    operator: str, queries: Queries, scale: Scale, *, text: bool = False, unit: str | None = None
) -> Specification:
    """Make a specification with an event type per kind, and queries of three kinds each."""
    return Specification.model_validate(
        {
            "streams": {"events": {"subject": "subject", "time": "time", "unit": unit}},
            "windows": {
                "size": f"{WINDOW // 1_000_000} s",
                "lateness": f"{LATENESS // 1_000_000} s",
            },
            "events": {
                f"k{kind}": {"stream": "events", "where": f"kind = {kind}"}
                for kind in range(scale.kinds)
            },
            "queries": [
                {
                    "name": f"q{number}",
                    "consumer": "bench",
                    "pattern": f"{operator}(k{a}, k{b}, k{c})",
                }
                for number, (a, b, c) in enumerate(queries)
            ],
            "subjects": registry(scale, text).to_pylist(),
        }
    ).checked()


def registry(scale: Scale, text: bool = False) -> pa.Array:
    """Return all subjects."""
    numbers = np.arange(scale.subjects, dtype=np.int32)
    return name(numbers) if text else pa.array(numbers.astype(np.int64))


def detect(spec: Specification, source: pa.Table | Path) -> list[Answers]:
    """Run over a frame or a file, like `tacit detect`."""
    return list(detect_each(spec, source))


def detect_each(spec: Specification, source: pa.Table | Path) -> Iterator[Answers]:
    """Run over a frame or a file, and yield answers window by window."""
    opened = open_source(source) if isinstance(source, Path) else FrameSource(source)
    yield from Run(spec, [Input("events", opened)])


def push(spec: Specification, batches: Iterable[pa.RecordBatch]) -> Iterator[Answers]:
    """Run only the engine, batch by batch in this thread."""
    subjects = Subjects()
    assert isinstance(spec.subjects, tuple)
    subjects.add(spec.subjects)
    engine = Engine(CompiledSpec(spec), subjects)
    for batch in batches:
        yield from engine.push(Rows("events", batch))
    yield from engine.finish()


def dense(answers: Iterable[Answers], scale: Scale, queries: int) -> NDArray[np.bool_]:
    """Convert answers to `[window][subject][query]`."""
    found = np.zeros((scale.windows, scale.subjects, queries), dtype=np.bool_)
    for part in answers:
        begin = part.first - START // WINDOW
        found[begin : begin + part.windows] = part.detected.transpose(0, 2, 1)
    return found
