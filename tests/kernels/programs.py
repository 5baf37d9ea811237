"""Small programs with kernels, each run in a process of its own.

Most of them run in forks of a process that has the compiler imported and used once: to start it
takes much longer than what the programs do. Used as `python -m tests.kernels.programs`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engines.forking import Forks, serve

MODULE = """
import numpy as np
from tacit.kernels import compiled

@compiled
def total(values):
    found = values[0] * 0
    for value in values:
        found += value
    return found
"""
COUNT = """
import atexit, numba
from numba.core import event
recorded = event.RecordingListener()
event.register("numba:compile", recorded)
def compilations():
    return sum(found.is_start for _, found in recorded.buffer)
"""
"""Counts how often Numba compiles anything."""


def environment(cache: Path | None, **more: str) -> dict[str, str]:
    """This process's environment with another cache of kernels."""
    kept = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    named = {} if cache is None else {"NUMBA_CACHE_DIR": str(cache)}
    return {**kept, **named, "PYTHONDONTWRITEBYTECODE": "1", **more}


def start(
    folder: Path,
    code: str,
    cache: Path | None,
    *,
    module: str = MODULE,
    prefix: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    """Start a program that can import `module` as `sums` and count compilations."""
    (folder / "sums.py").write_text(module)
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", COUNT + code],
        cwd=folder,
        env=environment(cache, **(variables or {})),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@dataclass(frozen=True)
class Program:
    """A program in a fork."""

    forks: Forks
    pid: int
    output: Path

    def finish(self) -> str:
        """What it printed; it must end well and say nothing on standard error."""
        ended, printed = self.forks.wait(self.pid), self.output.read_text()
        assert ended == 0, printed
        return printed.strip()


@dataclass(frozen=True)
class Programs:
    """Runs programs in a folder; they can import `module` as `sums` and count compilations."""

    forks: Forks
    folder: Path

    def start(self, code: str, cache: Path | None, *, module: str = MODULE) -> Program:
        """Start a program."""
        file = self.folder / "sums.py"
        if not file.exists() or file.read_text() != module:  # another program may be reading it
            file.write_text(module)
        output = self.folder / f"output-{len(list(self.folder.glob('output-*')))}"
        output.touch(exist_ok=False)
        given = (str(self.folder), str(cache or ""), COUNT + code)
        return Program(self.forks, self.forks.start(output, *given), output)

    def run(self, code: str, cache: Path | None, *, module: str = MODULE) -> str:
        """Run a program to its end."""
        return self.start(code, cache, module=module).finish()


def _import_compiler() -> None:
    import numpy as np

    import tacit.kernels.ahead  # noqa: F401
    from tacit.kernels import compiled

    @compiled
    def doubled(values):  # type: ignore[no-untyped-def]
        return values + values

    doubled(np.arange(3))


def _child(output: str, arguments: list[str]) -> None:
    import numba

    folder, cache, code = arguments
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.chdir(folder)
    sys.path.insert(0, folder)
    sys.dont_write_bytecode = True
    os.environ.pop("NUMBA_CACHE_DIR", None)
    if cache:
        os.environ["NUMBA_CACHE_DIR"] = cache
    config: Any = numba.config
    config.CACHE_DIR = cache
    exec(code, {"__name__": "__main__"})


if __name__ == "__main__":
    _import_compiler()
    serve(_child)
