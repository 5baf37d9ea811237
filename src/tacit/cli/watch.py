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

from tacit.cli.options import allowed_paths
from tacit.cli.signals import handle_signals
from tacit.errors import SpecificationError, TacitError
from tacit.quantities import count
from tacit.spec.subjects import SubjectFile
from tacit.spec.yaml_reader import load

Stamps: TypeAlias = dict[str, tuple[int, int, int]]
"""For each file its inode, its size and its modification time."""
INTERVAL: Final = 1.0
"""Seconds between two checks; files must be unchanged this long before planning starts."""


class ReloadSignal:
    """Sends SIGHUP to a run: to a process id, or to the one in a file."""

    def __init__(self, target: str) -> None:
        self.target = target

    def __call__(self) -> str:
        """Send the signal if the process handles it; returns what was done."""
        try:
            pid = int(self.target if self.target.isdigit() else Path(self.target).read_text())
        except (OSError, ValueError):
            return f"no reload signal sent: {self.target} holds no process id"
        if pid <= 1 or not _handles_hangup(pid):
            return f"no reload signal sent: process {pid} is not running or does not handle SIGHUP"
        try:
            os.kill(pid, signal.SIGHUP)
        except OSError as error:
            return f"no reload signal sent: process {pid}: {os.strerror(error.errno or 0)}"
        return f"sent a reload signal to process {pid}"


def watch_files(
    plan: Callable[[], None],
    files: Callable[[], Stamps],
    signal_reload: ReloadSignal | None = None,
    interval: float = INTERVAL,
) -> None:
    """Plan now and after every change, until SIGINT or SIGTERM; errors do not end it."""
    ended = threading.Event()
    with handle_signals(ended.set):
        seen = files()
        _print(f"watching {count(len(seen), 'file')}; press Ctrl-C to stop")
        while not ended.is_set():
            if _try_plan(plan) and signal_reload is not None:
                _print(signal_reload())
            seen = _wait_for_change(files, seen, ended, interval)
    _print("stopped")


def _try_plan(plan: Callable[[], None]) -> bool:
    """Plan once; returns whether there is a new plan."""
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
    _print("no new plan; still watching")
    return False


def _wait_for_change(
    files: Callable[[], Stamps], seen: Stamps, ended: threading.Event, interval: float
) -> Stamps:
    """Wait until files have changed and then stayed the same, or the watch has ended."""
    before = seen
    while not ended.wait(interval):
        now = files()
        if now == before and now != seen:
            changed = sum(1 for _ in _find_changed(seen, now))
            _print(f"{count(changed, 'file')} changed; planning again")
            return now
        before = now
    return seen


def _find_changed(one: Stamps, other: Stamps) -> Iterator[str]:
    return (name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def read_stamps(spec_file: Path, history: Sequence[str], prior: Path | None = None) -> Stamps:
    """Return the stamps of all files that a plan depends on; missing files are left out.

    Files that the specification names are included if the specification can be read.
    """
    names = {str(spec_file), *([] if prior is None else [str(prior)]), *_list_spec_files(spec_file)}
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


def _list_spec_files(spec_file: Path) -> set[str]:
    """Return the files that a specification names."""
    try:
        spec = load(spec_file, allowed_paths())
    except SpecificationError:
        return set()
    named = {area.geojson for area in spec.areas.values() if isinstance(area.geojson, str)}
    if isinstance(spec.subjects, SubjectFile):
        named.add(spec.subjects.file)
    return {str(spec.folder / name) for name in named}


def _handles_hangup(pid: int) -> bool:
    """Return whether a process handles SIGHUP; it would end any other process."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return not Path("/proc/self/status").exists()  # without /proc, assume that it does
    caught = next((line.split()[1] for line in lines if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (signal.SIGHUP - 1) & 1)


def _print(message: str) -> None:
    click.echo(f"tacit: {message}", err=True)
