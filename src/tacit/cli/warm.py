"""`tacit warm`: compile kernels ahead of a run."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from tacit.cli import options
from tacit.errors import SinkError
from tacit.quantities import count


@click.command()
@click.argument("spec", type=click.Path(path_type=Path), required=False)
@options.as_json()
def warm(spec: Path | None, as_json: bool) -> None:
    """Compile kernels ahead of a run.

    Tacit compiles its hot loops for the processor of the machine and caches them. A run compiles
    what is missing; this command does it ahead of time, for example when you build an image. With
    SPEC it compiles what runs of this specification need, else all kernels.

    \b
    Examples:
      tacit warm taxi.yaml
      tacit warm
    """
    from tacit.engines.warmup import list_any_run_features
    from tacit.kernels.ahead import compile_ahead, count_unkept
    from tacit.kernels.needs import find_kernels
    from tacit.spec.yaml_reader import load

    needed = find_kernels(None if spec is None else list_any_run_features(load(spec)))
    started = time.monotonic()
    with show_compilation() as progress:
        compiled = compile_ahead(needed, progress=progress)
    if unkept := count_unkept(needed):
        raise SinkError(
            f"{count(unkept, 'kernel')} could not be cached: set NUMBA_CACHE_DIR to a writable"
            " folder with enough space"
        )
    seconds = round(time.monotonic() - started, 1)
    if as_json:
        report = {"kernels": len(needed), "compiled": compiled, "seconds": seconds}
        click.echo(json.dumps(report, indent=2))
    elif compiled:
        click.echo(f"Compiled {count(compiled, 'kernel')} of {len(needed):,} in {seconds} s.")
    else:
        click.echo(f"All {count(len(needed), 'kernel')} were already compiled.")


def compile_kernels(features: Iterable[str]) -> None:
    """Compile the kernels that a run with these features needs and that are not cached."""
    from tacit.kernels.ahead import compile_ahead
    from tacit.kernels.needs import find_kernels

    with show_compilation() as progress:
        compile_ahead(find_kernels(features), progress=progress)


@contextmanager
def show_compilation(*, always: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Show the progress of a compilation as one line, on a terminal only.

    With `always` it is announced elsewhere too, without progress.
    """
    terminal = sys.stderr.isatty()

    def write(text: str) -> None:
        if terminal:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()

    lines = 0

    def progress(done: int, total: int) -> None:
        nonlocal lines
        lines += 1
        if always and not terminal and lines == 1:
            click.echo(f"Compiling {count(total, 'kernel')} for this machine, once ...", err=True)
        write(f"Compiling kernels for this machine, once: {done} of {total}")

    try:
        yield progress
    finally:
        if lines:
            write("")
