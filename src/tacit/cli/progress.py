"""Progress on a terminal: spinners and bars on standard error, nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from tacit.progress import ProgressCallback, ignore_progress

_ESTIMATE_SECONDS: Final = 600.0
"""Seconds over which the speed is averaged: the steps of planning may take long."""


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
def show_progress(what: str) -> Iterator[ProgressCallback]:
    """Show a bar with the finished share and the time left; yields the function that updates it.

    The share is rounded down: 100 % means that everything is done.
    """
    if not sys.stderr.isatty():
        yield ignore_progress
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[percent]:>3} %"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        speed_estimate_period=_ESTIMATE_SECONDS,
    ) as progress:
        task = progress.add_task(what, total=None, percent=0)

        def update(fraction: float, what: str) -> None:
            progress.update(
                task,
                description=what,
                completed=fraction,
                total=1 if fraction else None,  # without a size the bar only shows that it works
                percent=int(100 * fraction),
            )

        yield update


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
