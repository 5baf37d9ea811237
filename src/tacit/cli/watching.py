"""`tacit plan --watch`: plan again whenever the specification or its history changes."""

from __future__ import annotations

import glob
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import click

from tacit.cli.paths import allowed_paths
from tacit.cli.signals import listening
from tacit.counting import count
from tacit.errors import SpecificationError, TacitError
from tacit.spec.reading import load
from tacit.spec.subjects import SubjectFile

Stamps: TypeAlias = dict[str, tuple[int, int, int]]
"""For each file its inode, its size and when it was last changed."""
INTERVAL: Final = 1.0
"""Seconds between two looks at the files; they must be at rest for as long before it plans."""


class Call:
    """Tells a running engine to reload, by SIGHUP to a process or to one that a file names."""

    def __init__(self, target: str) -> None:
        self.target = target

    def __call__(self) -> str:
        """Send the signal, if it would be heard; what was done."""
        try:
            pid = int(self.target if self.target.isdigit() else Path(self.target).read_text())
        except (OSError, ValueError):
            return f"no engine was told: {self.target} holds no process number"
        if pid <= 1 or not _hears_hangup(pid):
            return f"no engine was told: process {pid} does not run, or does not reload"
        try:
            os.kill(pid, signal.SIGHUP)
        except OSError as error:
            return f"no engine was told: process {pid}: {os.strerror(error.errno or 0)}"
        return f"told process {pid} to reload"


def watch(
    plan: Callable[[], None],
    files: Callable[[], Stamps],
    call: Call | None = None,
    interval: float = INTERVAL,
) -> None:
    """Plan now and after every change, until SIGINT or SIGTERM; mistakes are told and outlived."""
    ended = threading.Event()
    with listening(ended.set):
        seen = files()
        _say(f"watching {count(len(seen), 'file')}; stop it with Ctrl-C")
        while not ended.is_set():
            if _planned(plan) and call is not None:
                _say(call())
            seen = _changed(files, seen, ended, interval)
    _say("stopped")


def _planned(plan: Callable[[], None]) -> bool:
    """Plan once; whether there is a new plan."""
    try:
        plan()
    except TacitError as error:
        for line in str(error).splitlines():
            click.echo(
                line if isinstance(error, SpecificationError) else f"tacit: {line}", err=True
            )
    except SystemExit as end:
        if not end.code:
            return True
    else:
        return True
    _say("no new plan; watching on")
    return False


def _changed(
    files: Callable[[], Stamps], seen: Stamps, ended: threading.Event, interval: float
) -> Stamps:
    """Wait until files have changed and are at rest again, or the watch has ended."""
    before = seen
    while not ended.wait(interval):
        now = files()
        if now == before and now != seen:
            _say(f"{count(sum(1 for _ in _differing(seen, now)), 'file')} changed; planning again")
            return now
        before = now
    return seen


def _differing(one: Stamps, other: Stamps) -> Iterator[str]:
    return (name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def stamps(spec_file: Path, history: Sequence[str], prior: Path | None = None) -> Stamps:
    """What a plan is made from, as it is on the disk now; files that are not there are left out.

    The files that the specification names are found as long as it can be read.
    """
    names = {str(spec_file), *([] if prior is None else [str(prior)]), *_named_in(spec_file)}
    for text in history:
        path = text if os.path.exists(text) else text.partition("=")[2] or text
        if os.path.isdir(path):
            names |= {entry.path for entry in os.scandir(path) if entry.is_file()}
        elif os.path.exists(path):
            names.add(path)
        else:
            names |= set(glob.glob(path, recursive=True))
    found: Stamps = {}
    for name in names:
        try:
            state = os.stat(name)
        except OSError:
            continue
        found[name] = state.st_ino, state.st_size, state.st_mtime_ns
    return found


def _named_in(spec_file: Path) -> set[str]:
    """The files that a specification refers to."""
    try:
        spec = load(spec_file, allowed_paths())
    except SpecificationError:
        return set()
    named = {area.geojson for area in spec.areas.values() if isinstance(area.geojson, str)}
    if isinstance(spec.subjects, SubjectFile):
        named.add(spec.subjects.file)
    return {str(spec.folder / name) for name in named}


def _hears_hangup(pid: int) -> bool:
    """Whether a process has its own way with SIGHUP: others would be ended by it."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return not Path("/proc/self/status").exists()  # where it cannot be known, it is trusted
    caught = next((line.split()[1] for line in lines if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (signal.SIGHUP - 1) & 1)


def _say(what: str) -> None:
    click.echo(f"tacit: {what}", err=True)
