"""`tacit warm`, and the same before a run: compile kernels ahead, and show how far it is."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from tacit.counting import count
from tacit.engines.warming import any_run_features
from tacit.errors import SinkError
from tacit.kernels.ahead import compile_ahead, count_unkept
from tacit.kernels.needs import needed_kernels
from tacit.spec.reading import load


def run_warming(spec_file: Path | None, as_json: bool) -> None:
    """Compile what a specification, or any, may need."""
    wanted = needed_kernels(None if spec_file is None else any_run_features(load(spec_file)))
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
