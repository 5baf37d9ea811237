"""`tacit warm`, and the same before a run: compile kernels ahead, and show how far it is."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from tacit.counting import count
from tacit.engines.local import Input
from tacit.errors import SinkError, TacitError
from tacit.events.predicates import parse_predicate
from tacit.kernels.ahead import compile_ahead, count_unkept
from tacit.kernels.needs import needed_kernels
from tacit.patterns.tree import Name, walk
from tacit.spec.reading import load
from tacit.spec.specification import Specification

_ANY = (
    "command:*",
    "source:*",
    "subject:*",
    "time:*",
    "column:*",
    "mechanism:*",
    "ledger:*",
)
"""What a specification leaves open."""


def run_warming(spec_file: Path | None, as_json: bool) -> None:
    """Compile what a specification, or any, may need."""
    features = None if spec_file is None else [*spec_features(load(spec_file)), *_ANY]
    wanted = needed_kernels(features)
    begun = time.monotonic()
    with _shown() as progress:
        compiled = compile_ahead(wanted, progress=progress)
    if unkept := count_unkept(wanted):
        raise SinkError(
            f"{count(unkept, 'kernel')} could not be kept: set NUMBA_CACHE_DIR to a folder of your"
            " own with room for them"
        )
    seconds = round(time.monotonic() - begun, 1)
    if as_json:
        report = {"kernels": len(wanted), "compiled": compiled, "seconds": seconds}
        click.echo(json.dumps(report, indent=2))
    elif compiled:
        click.echo(f"Compiled {count(compiled, 'kernel')} of {len(wanted):,} in {seconds} s.")
    else:
        click.echo(f"All {count(len(wanted), 'kernel')} were compiled before.")


def warm_up(features: Iterable[str]) -> None:
    """Compile what a run with these features needs; only what no run before it needed."""
    with _shown() as progress:
        compile_ahead(needed_kernels(features), progress=progress)


def run_features(
    command: str,
    spec: Specification,
    inputs: Sequence[Input],
    mechanism: str | None = None,
    *,
    ledger: bool = False,
) -> set[str]:
    """What decides which kernels a run needs."""
    features = spec_features(spec) | {f"command:{command}"}
    for one in inputs:
        features |= _source_features(spec, one)
    if mechanism is not None:
        features.add(f"mechanism:{mechanism}")
    if ledger:
        features.add("ledger:yes")
    return features


def _source_features(spec: Specification, given: Input) -> set[str]:
    """What a source is, and the types of the columns that are read from it."""
    source, stream = given.source, spec.streams[given.stream]
    features = {f"source:{type(source).__name__}"}
    events = [event for event in spec.events.values() if event.stream == given.stream]
    conditions = [parse_predicate(event.where) for event in events if event.where is not None]
    read = {column for condition in conditions for column in condition.columns}
    columns = [("subject", stream.subject), ("time", stream.time), *(("column", c) for c in read)]
    if source.textual:
        return features | {f"{kind}:text" for kind, _ in columns}
    if source.live or source.once:
        return features
    try:
        schema = source.schema()
    except TacitError:
        return features  # the run itself says what is wrong
    known = [(kind, column) for kind, column in columns if schema.get_field_index(column) >= 0]
    return features | {f"{kind}:{schema.field(column).type}" for kind, column in known}


def spec_features(spec: Specification) -> set[str]:
    """What a specification alone decides."""
    patterns = [*spec.query_patterns.values(), *spec.private_patterns]
    parts = (part for pattern in patterns for part in walk(pattern))
    features = {f"operator:{type(part).__name__}" for part in parts if not isinstance(part, Name)}
    if any(event.areas for event in spec.events.values()):
        features.add("areas:yes")
    if spec.windows.slide not in (None, spec.windows.size):
        features.add("windows:sliding")
    return features


@contextmanager
def _shown() -> Iterator[Callable[[int, int], None]]:
    """Show progress as a line on a terminal; nothing where standard error goes elsewhere."""
    terminal = sys.stderr.isatty()

    def write(text: str) -> None:
        if terminal:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()

    lines = 0

    def progress(done: int, total: int) -> None:
        nonlocal lines
        lines += 1
        write(f"Compiling kernels for this machine, once: {done} of {total}")

    try:
        yield progress
    finally:
        if lines:
            write("")
