"""Progress on a terminal: spinners and bars on standard error, nothing elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from tacit.pipeline.sources import Source


class ProgressCallback(Protocol):
    """Called with a source and how far it has been read."""

    def __call__(self, source: Source, position: int) -> None:
        """Report that so many rows or bytes of this source have been read."""


@contextmanager
def show_spinner(what: str) -> Iterator[Callable[[str], None]]:
    """Show a spinner with a text; yields a function that changes the text."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status(what) as status:
        yield status.update


@contextmanager
def show_progress(sources: list[Source]) -> Iterator[ProgressCallback | None]:
    """Show a progress bar for each source, with its rate and the time left."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        yield _ProgressBars(progress, sources)


@contextmanager
def show_data_sets(name: str, datasets: int) -> Iterator[Callable[[int], None] | None]:
    """Show a progress bar that counts data sets, with the time left."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("data sets"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        task = progress.add_task(name, total=datasets)
        yield lambda done: progress.update(task, completed=done)


class _ProgressBars:
    """Updates one bar for each source."""

    def __init__(self, progress: Progress, sources: list[Source]) -> None:
        self._progress = progress
        self._started = time.monotonic()
        self._tasks: dict[int, TaskID] = {
            id(source): progress.add_task(source.name, total=source.total, rate="")
            for source in sources
        }

    def __call__(self, source: Source, position: int) -> None:
        rate = position / max(time.monotonic() - self._started, 1e-9)
        amount = f"{rate:,.0f} rows/s" if source.unit == "rows" else f"{rate / 1e6:,.1f} MB/s"
        self._progress.update(self._tasks[id(source)], completed=position, rate=amount)
